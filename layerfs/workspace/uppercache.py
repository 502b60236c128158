"""The upper stat cache: which upper files were already read, so that the next commit reads only what moved.

Owns one rule, Git's: a file whose inode, size, mtime and ctime are those remembered has the remembered entry – provided
its ctime was clearly in the past when it was read, because two changes within one tick of the kernel's clock leave the
same ctime. ctime moves with content, mode, owner, attributes and links, and no program can set it back. The cache
belongs to one upper over one base; it is only a cache, so bytes that do not verify are an empty one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

from layerfs.capture.statcache import is_racy
from layerfs.errors import MalformedObject
from layerfs.kernels.rows import Row
from layerfs.objects.entry import Entry, decode_entry, encode_entry

_MAGIC = b"LFSUPC1\n"
_ROW = struct.Struct("<IQQqqI")
_SUM_BYTES = 8


class Remembered(NamedTuple):
    """What the inode looked like when ``entry`` was made of it."""

    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int
    entry: Entry


class UpperCache:
    """A mapping of upper paths to remembered entries, for one base tree."""

    __slots__ = ("base", "rows")

    def __init__(self, base: bytes, rows: dict[bytes, Remembered] | None = None) -> None:
        self.base = base
        self.rows = {} if rows is None else rows

    def entry_for(self, path: bytes, row: Row) -> Entry | None:
        """Return the entry of an upper file that has not moved since, or None."""
        known = self.rows.get(path)
        if (
            known is None
            or known.ino != row.ino
            or known.ctime_ns != row.ctime_ns
            or known.mtime_ns != row.mtime_ns
            or known.size != row.size
        ):
            return None
        return known.entry

    def encode(self) -> bytes:
        """Return the cache as bytes."""
        parts = [_MAGIC, struct.pack("<I", len(self.base)), self.base]
        for path, known in self.rows.items():
            entry = encode_entry(b"", known.entry)
            parts += (
                _ROW.pack(len(path), known.ino, known.size, known.mtime_ns, known.ctime_ns, len(entry)),
                path,
                entry,
            )
        data = b"".join(parts)
        return data + xxhash.xxh3_64_digest(data)


def remember(base: bytes, files: Iterable[tuple[bytes, Row, Entry]], started_ns: int) -> UpperCache:
    """Make a cache of (path, row, entry) as a scan that began at ``started_ns`` found them, without the racy ones."""
    cache = UpperCache(base)
    for path, row, entry in files:
        if not is_racy(row.ctime_ns, started_ns):
            cache.rows[path] = Remembered(row.ino, row.size, row.mtime_ns, row.ctime_ns, entry)
    return cache


def decode_cache(data: bytes, base: bytes) -> UpperCache:
    """Return the cache in ``data``, or an empty one if the bytes do not verify or belong to another base."""
    cache = UpperCache(base)
    body = data[:-_SUM_BYTES]
    head = _MAGIC + struct.pack("<I", len(base)) + base
    if not body.startswith(head) or xxhash.xxh3_64_digest(body) != data[-_SUM_BYTES:]:
        return cache
    at = len(head)
    rows: dict[bytes, Remembered] = {}
    try:
        while at < len(body):
            path_len, ino, size, mtime_ns, ctime_ns, entry_len = _ROW.unpack_from(body, at)
            at += _ROW.size
            path = body[at : at + path_len]
            at += path_len
            _, entry, end = decode_entry(body, at)
            if end != at + entry_len:
                return cache
            rows[path] = Remembered(ino, size, mtime_ns, ctime_ns, entry)
            at = end
    except (struct.error, MalformedObject):
        return cache
    cache.rows = rows
    return cache

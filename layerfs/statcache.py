"""The stat cache: what a directory looked like when it was last captured, and which tree that gave.

For every directory it keeps the packed rows of one scan (``rows``) and the id of the tree captured from them. A directory
whose next scan is byte-equal has not changed: no entry of it is decoded, no file opened. The cache is disposable – a
missing, torn or foreign file is an empty cache – and it never says "unchanged" of a file that may have changed:

* ctime cannot be set by a user, so an edit that restores mtime and size is seen;
* a row whose ctime is not safely older than the scan (*racy*, as in Git's index) is stored with ctime zero, which no
  later scan equals, so the file is read again next time.

A capture may pass a damaged cache on; correctness never depends on it having been written.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import xxhash
import zstandard

from layerfs.ids import ObjectId, TreeId
from layerfs.rows import ROW_HEADER, Row

MAGIC = b"LFSTAT02"
RACY_NS = 20_000_000
COARSE_RACY_NS = 2_000_000_000
NANO = 1_000_000_000
_CTIME_SECONDS_AT = 60
_CTIME_NANOS_AT = 72
_REALTIME_COARSE = 5
_HEAD = struct.Struct("<IIIBIIQ32s")
"""Of one directory in the file: lengths of path, sub-directory names and rows; special, files, others, size; tree id."""


class CachedDirectory(NamedTuple):
    """One directory at its last capture: its rows, its tree, and its sub-directories.

    A sub-directory that is cached too was captured together with this one, so its tree is the one this tree holds.
    ``special`` says that it held linked files or mount points, so that its entries are always looked at. ``files``,
    ``others`` and ``size`` sum up what lies right in it, apart from directories.
    """

    blob: bytes
    tree: TreeId
    subdirectories: tuple[bytes, ...]
    special: bool
    files: int = 0
    others: int = 0
    size: int = 0


def kernel_now_ns() -> int:
    """Return the clock that the kernel stamps files with (its coarse real-time clock), in nanoseconds.

    This is a property of the file system, not the time layerfs records; tests that fix the clock do not touch it.
    """
    return time.clock_gettime_ns(_REALTIME_COARSE)


def is_racy(ctime_ns: int, scanned_ns: int) -> bool:
    """Whether a change after the scan could leave this very ctime: it is too close to the time of the scan.

    Two ticks of the slowest usual kernel clock, or two seconds on file systems that keep whole seconds.
    """
    margin = RACY_NS if ctime_ns % NANO else COARSE_RACY_NS
    return ctime_ns >= scanned_ns - margin


def smudge(blob: bytes, rows: list[Row], scanned_ns: int) -> bytes:
    """Return the rows with the ctime of every racy one zeroed."""
    out: bytearray | None = None
    at = 0
    for row in rows:
        if is_racy(row.ctime_ns, scanned_ns):
            out = out if out is not None else bytearray(blob)
            out[at + _CTIME_SECONDS_AT : at + _CTIME_SECONDS_AT + 8] = bytes(8)
            out[at + _CTIME_NANOS_AT : at + _CTIME_NANOS_AT + 4] = bytes(4)
        at += ROW_HEADER.size + len(row.name)
    return blob if out is None else bytes(out)


class StatCache:
    """Cached directories by path."""

    def __init__(self) -> None:
        self._directories: dict[bytes, CachedDirectory] = {}

    def get(self, path: bytes) -> CachedDirectory | None:
        """Return what is known of a directory."""
        return self._directories.get(path)

    def put(self, path: bytes, directory: CachedDirectory) -> None:
        """Remember a directory."""
        self._directories[path] = directory

    def __len__(self) -> int:
        return len(self._directories)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StatCache) and self._directories == other._directories

    __hash__ = None  # type: ignore[assignment]

    def items(self) -> Iterator[tuple[bytes, CachedDirectory]]:
        """Yield (path, directory)."""
        return iter(self._directories.items())


def encode_cache(cache: StatCache) -> bytes:
    """Return the bytes of a cache file."""
    parts: list[bytes] = []
    for path, directory in cache.items():
        names = b"/".join(directory.subdirectories)
        blob, tree, _, special, *counts = directory
        parts += (_HEAD.pack(len(path), len(names), len(blob), special, *counts, tree), path, names, blob)
    body = zstandard.ZstdCompressor(level=1).compress(b"".join(parts))
    return MAGIC + xxhash.xxh3_64_digest(body) + body


def decode_cache(payload: bytes) -> StatCache:
    """Decode a cache file; anything that is not one whole cache of this version is an empty cache."""
    cache = StatCache()
    body = payload[len(MAGIC) + 8 :]
    if payload[: len(MAGIC)] != MAGIC or xxhash.xxh3_64_digest(body) != payload[len(MAGIC) : len(MAGIC) + 8]:
        return cache
    try:
        data = zstandard.ZstdDecompressor().decompress(body)
        at = 0
        while at < len(data):
            path_length, names_length, blob_length, special, *counts, tree = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            names_at = at + path_length
            blob_at = names_at + names_length
            path, names = data[at:names_at], data[names_at:blob_at]
            at = blob_at + blob_length
            subdirectories = tuple(names.split(b"/")) if names else ()
            blob = data[blob_at:at]
            oid = TreeId(ObjectId(tree))
            cache.put(path, CachedDirectory(blob, oid, subdirectories, bool(special), *counts))
    except (struct.error, zstandard.ZstdError):
        return StatCache()
    return cache if at == len(data) else StatCache()


def load_cache(path: bytes) -> StatCache:
    """Read a cache file; a missing one is an empty cache."""
    try:
        with open(path, "rb") as file:
            return decode_cache(file.read())
    except FileNotFoundError:
        return StatCache()


def save_cache(path: bytes, cache: StatCache, owner: tuple[int, int] | None = None) -> None:
    """Write a cache file in place of an older one; see :func:`write_cache`."""
    write_cache(path, encode_cache(cache), owner)


def write_cache(path: bytes, content: bytes, owner: tuple[int, int] | None) -> None:
    """Put a cache's bytes in place of the older ones, for the store's owner; not synced, since losing it costs only time.

    For the same reason a full or failing disk is no error here: what the cache belongs to is recorded already.
    """
    temporary = path + b".new"
    try:
        with open(temporary, "wb", opener=_open_private) as file:
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        with suppress(OSError):
            os.unlink(temporary)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)

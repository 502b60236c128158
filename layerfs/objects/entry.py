"""Entries: everything layerfs keeps about one name in a directory, and their canonical bytes.

An entry does not hold its name; a tree maps names to entries. The fixed header is laid out for decoding speed (a tree of
a million files is a million of these); see the byte table in layerfs-object(5). What is deliberately absent: ctime,
atime and inode numbers (they belong to a file system, not to a state) and link counts (derived from link groups).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from layerfs.errors import MalformedObject
from layerfs.ids import ID_BYTES


class EntryKind(IntEnum):
    """What a name is; the number is part of the format."""

    FILE = 1
    DIR = 2
    SYMLINK = 3
    FIFO = 4
    SOCKET = 5
    CHARDEV = 6
    BLOCKDEV = 7


Xattrs = tuple[tuple[bytes, bytes], ...]

HEADER = struct.Struct("<BBHIIqIQHH")
"""kind, flags, mode, uid, gid, mtime seconds, mtime nanoseconds, size, name length, ref length."""

_FLAG_XATTRS = 1
_FLAG_LINKED = 2
_GROUP = struct.Struct("<Q")
_DEVICE = struct.Struct("<II")
_XATTR = struct.Struct("<HI")
_COUNT = struct.Struct("<H")

NANO = 1_000_000_000
MODE_MASK = 0o7777
NAME_MAX = 255
TARGET_MAX = 4095


class Entry(NamedTuple):
    """One directory entry without its name.

    ``mode`` is the 12 permission bits; ``mtime_ns`` nanoseconds since the epoch; ``size`` the bytes of a regular file,
    else 0. ``ref`` depends on the kind: content id (``b""`` when the file is empty), tree id, symlink target, or eight
    bytes of device number (little-endian major, minor). ``link_group`` is 0 for a file that has one name only.
    """

    kind: EntryKind
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int
    ref: bytes
    xattrs: Xattrs = ()
    link_group: int = 0


def device_ref(major: int, minor: int) -> bytes:
    """Return the ``ref`` of a device node."""
    return _DEVICE.pack(major, minor)


def device_number(entry: Entry) -> tuple[int, int]:
    """Return (major, minor) of a device entry."""
    major, minor = _DEVICE.unpack(entry.ref)
    return major, minor


def encode_entry(name: bytes, entry: Entry) -> bytes:
    """Return the canonical bytes of one named entry."""
    flags = 0
    tail = b""
    if entry.link_group:
        flags |= _FLAG_LINKED
        tail = _GROUP.pack(entry.link_group)
    if entry.xattrs:
        flags |= _FLAG_XATTRS
        parts = [tail, _COUNT.pack(len(entry.xattrs))]
        for key, value in entry.xattrs:
            parts += (_XATTR.pack(len(key), len(value)), key, value)
        tail = b"".join(parts)
    seconds, nanos = divmod(entry.mtime_ns, NANO)
    try:
        header = HEADER.pack(
            entry.kind,
            flags,
            entry.mode,
            entry.uid,
            entry.gid,
            seconds,
            nanos,
            entry.size,
            len(name),
            len(entry.ref),
        )
    except struct.error as error:
        raise MalformedObject(f"entry cannot be encoded: {error}") from None
    return header + name + entry.ref + tail


_KINDS = {int(kind): kind for kind in EntryKind}
KINDS: tuple[EntryKind | None, ...] = (None, *EntryKind)
"""The kinds by number, for ``native.plain_entries``."""

_REF_LENGTHS = {
    EntryKind.FILE: (ID_BYTES,),
    EntryKind.DIR: (ID_BYTES,),
    EntryKind.FIFO: (0,),
    EntryKind.SOCKET: (0,),
    EntryKind.CHARDEV: (_DEVICE.size,),
    EntryKind.BLOCKDEV: (_DEVICE.size,),
}
_FORBIDDEN_NAMES = frozenset((b".", b".."))


def decode_entry(payload: bytes, at: int) -> tuple[bytes, Entry, int]:
    """Decode one named entry at ``at``; return name, entry and the offset after it.

    Raises MalformedObject for anything :func:`encode_entry` would not have written, hostile names included: no name
    with ``/`` or NUL, no ``.`` or ``..``, so that no tree can ever lead a restore outside its target. The empty name is
    accepted here and only there where a root object holds it (the caller checks).
    """
    try:
        number, flags, mode, uid, gid, seconds, nanos, size, name_len, ref_len = HEADER.unpack_from(
            payload, at
        )
    except struct.error:
        raise MalformedObject("malformed entry: too short") from None
    at += HEADER.size
    middle = at + name_len
    end = middle + ref_len
    name = payload[at:middle]
    ref = payload[middle:end]
    kind = _KINDS.get(number)
    if kind is None:
        raise MalformedObject(f"malformed entry: unknown kind {number}")
    if len(ref) != ref_len or len(name) != name_len:
        raise MalformedObject("malformed entry: too short")
    if name_len > NAME_MAX or b"/" in name or b"\0" in name or name in _FORBIDDEN_NAMES:
        raise MalformedObject("malformed entry: impossible name")
    if mode > MODE_MASK or nanos >= NANO or flags > (_FLAG_XATTRS | _FLAG_LINKED):
        raise MalformedObject("malformed entry: field out of range")
    if kind is EntryKind.FILE:
        if ref_len != (ID_BYTES if size else 0):
            raise MalformedObject("malformed entry: content id does not fit the size")
    elif size:
        raise MalformedObject("malformed entry: size on something that is not a file")
    elif kind is EntryKind.SYMLINK:
        if not 0 < ref_len <= TARGET_MAX or b"\0" in ref:
            raise MalformedObject("malformed entry: impossible symlink target")
    elif ref_len not in _REF_LENGTHS[kind]:
        raise MalformedObject("malformed entry: reference does not fit the kind")
    if not flags:
        return name, Entry(kind, mode, uid, gid, seconds * NANO + nanos, size, ref), end
    group, xattrs, end = _decode_tail(payload, end, flags)
    if group and kind is EntryKind.DIR:
        raise MalformedObject("malformed entry: linked directory")
    return name, Entry(kind, mode, uid, gid, seconds * NANO + nanos, size, ref, xattrs, group), end


def _decode_tail(payload: bytes, at: int, flags: int) -> tuple[int, Xattrs, int]:
    group = 0
    try:
        if flags & _FLAG_LINKED:
            (group,) = _GROUP.unpack_from(payload, at)
            at += _GROUP.size
            if not group:
                raise MalformedObject("malformed entry: empty link group")
        if not flags & _FLAG_XATTRS:
            return group, (), at
        (count,) = _COUNT.unpack_from(payload, at)
        at += _COUNT.size
        items: list[tuple[bytes, bytes]] = []
        for _ in range(count):
            key_len, value_len = _XATTR.unpack_from(payload, at)
            at += _XATTR.size
            key = payload[at : at + key_len]
            value = payload[at + key_len : at + key_len + value_len]
            at += key_len + value_len
            if at > len(payload) or not key or b"\0" in key or (items and items[-1][0] >= key):
                raise MalformedObject("malformed entry: extended attributes")
            items.append((key, value))
    except struct.error:
        raise MalformedObject("malformed entry: too short") from None
    if not items:
        raise MalformedObject("malformed entry: extended attributes")
    return group, tuple(items), at


def encode_root(entry: Entry) -> bytes:
    """Return the payload of a root object: the captured directory's own entry, with an empty name."""
    return encode_entry(b"", entry)


def decode_root(payload: bytes) -> Entry:
    """Decode a root object; raise MalformedObject unless it is one directory entry with an empty name."""
    name, entry, end = decode_entry(payload, 0)
    if name or end != len(payload) or entry.kind is not EntryKind.DIR:
        raise MalformedObject("malformed root: not one directory entry")
    return entry

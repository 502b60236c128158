"""Pack files: a header followed by frames, read in order or at an offset.

A pack is a *log* pack, to which batches ending in a move are appended, or a *bulk* pack, written at once outside the
lane. Log packs form a chain: each names its predecessor and the sequence of its first move; one that begins with a
restart can be read without any before it. Owns the header and the
sequential scan that tells whole frames from a torn tail; the bytes of a frame are in ``frames``, the index in
``packindex``, and which packs belong to a store is in ``metadb``.

===============  =====  ==========================================
magic            8      ``LFPACK1\\n``
version          u16    1
role             u16    1 log, 2 bulk
flags            u32    log packs: 1 when it begins with a restart, which says the whole state anew; else 0
store id         16     of the store that wrote it
number           u64    log packs: number in the file's name; bulk packs: 0, the name is chosen last
first sequence   u64    log packs: sequence of the first move in it; bulk packs: 0
previous         u64    log packs: number of the log pack before it, 0 for the first
checksum         u64    XXH3-64 of everything before
===============  =====  ==========================================
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from layerfs.durable.atomicfile import storage_errors
from layerfs.errors import StoreDamaged
from layerfs.objects import frames

MAGIC = b"LFPACK1\n"
VERSION = 1
LOG = 1
BULK = 2
RESTARTS = 1
HEADER = Struct("<8sHHI16sQQQ")
CHECKSUM = Struct("<Q")
HEADER_BYTES = HEADER.size + CHECKSUM.size
SCAN_BUFFER = 1 << 20
PACK_SUFFIX = b".pack"
INDEX_SUFFIX = b".idx"
NAME_DIGITS = 8


class PackHeader(NamedTuple):
    """What the first 64 bytes of a pack say."""

    role: int
    store_id: bytes
    number: int = 0
    first_sequence: int = 0
    previous: int = 0
    flags: int = 0


class ScannedFrame(NamedTuple):
    """A whole, checked frame found by a scan."""

    offset: int
    frame: bytes
    head: frames.FrameHead

    @property
    def end(self) -> int:
        """Offset of the first byte after the frame."""
        return self.offset + self.head.total


def pack_name(number: int) -> str:
    """Return the name of a pack as moves record it."""
    return f"{number:0{NAME_DIGITS}d}"


def pack_number(name: str) -> int:
    """Return the number in a pack's name; raise StoreDamaged when it is not one."""
    if (
        not (name.isascii() and name.isdigit() and NAME_DIGITS <= len(name) <= 18)
        or pack_name(int(name)) != name
    ):
        raise StoreDamaged("move names a pack that cannot exist")
    return int(name)


def pack_file(number: int) -> bytes:
    """Return the file name of pack ``number``."""
    return pack_name(number).encode("ascii") + PACK_SUFFIX


def index_file(number: int) -> bytes:
    """Return the file name of the index of pack ``number``."""
    return pack_name(number).encode("ascii") + INDEX_SUFFIX


def file_number(name: bytes) -> int | None:
    """Return the pack number a file name in ``packs/`` stands for; None for every other file."""
    digits = name.removesuffix(PACK_SUFFIX)
    if digits == name or not digits.isdigit() or not NAME_DIGITS <= len(digits) <= 18:
        return None
    return int(digits) if pack_file(int(digits)) == name else None


def encode_header(header: PackHeader) -> bytes:
    """Return the first bytes of a pack."""
    body = HEADER.pack(
        MAGIC,
        VERSION,
        header.role,
        header.flags,
        header.store_id,
        header.number,
        header.first_sequence,
        header.previous,
    )
    return body + CHECKSUM.pack(xxh3_64_intdigest(body))


def decode_header(data: bytes) -> PackHeader:
    """Decode the first bytes of a pack; raise StoreDamaged when they are anything else."""
    if len(data) < HEADER_BYTES:
        raise StoreDamaged("pack header is cut short")
    magic, version, role, flags, store_id, number, first, previous = HEADER.unpack_from(data)
    if magic != MAGIC or xxh3_64_intdigest(data[: HEADER.size]) != CHECKSUM.unpack_from(data, HEADER.size)[0]:
        raise StoreDamaged("pack header does not verify")
    if version != VERSION or role not in (LOG, BULK) or flags & ~RESTARTS or (flags and role != LOG):
        raise StoreDamaged(f"pack version {version} is not known to this layerfs")
    return PackHeader(role, store_id, number, first, previous, flags)


def read_header(descriptor: int) -> PackHeader:
    """Read and decode the header of an open pack file."""
    return decode_header(read_exactly(descriptor, 0, HEADER_BYTES, "reading a pack"))


def read_exactly(descriptor: int, offset: int, length: int, doing: str) -> bytes:
    """Read up to ``length`` bytes at ``offset``; shorter only at the end of the file."""
    with storage_errors(doing):
        data = os.pread(descriptor, length, offset)
        while len(data) < length:
            more = os.pread(descriptor, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data


def read_frame(descriptor: int, offset: int) -> tuple[bytes, frames.FrameHead]:
    """Read and check the frame at ``offset``; raise StoreDamaged when there is no whole one."""
    start = read_exactly(descriptor, offset, frames.HEADER.size, "reading a pack")
    head = frames.read_head(start)
    rest = read_exactly(descriptor, offset + len(start), head.total - len(start), "reading a pack")
    frame = start + rest
    frames.check_frame(frame)
    return frame, head


def scan_frames(descriptor: int, offset: int, end: int) -> Iterator[ScannedFrame]:
    """Yield the whole frames from ``offset`` up to ``end``; stop at the first byte that does not begin one.

    The caller compares where the last frame ended with the length of the file to learn of a torn tail.
    """
    while offset < end:
        try:
            frame, head = read_frame(descriptor, offset)
        except StoreDamaged:
            return
        if offset + head.total > end:
            return
        yield ScannedFrame(offset, frame, head)
        offset += head.total


def find_frame(descriptor: int, offset: int, end: int) -> Iterator[ScannedFrame]:
    """Yield every whole frame that begins anywhere from ``offset`` on: what can be salvaged behind damage."""
    while offset < end:
        window = read_exactly(descriptor, offset, SCAN_BUFFER, "reading a pack")
        found = window.find(frames.MAGIC)
        if found < 0:
            offset += max(1, len(window) - len(frames.MAGIC) + 1)
            continue
        offset += found
        try:
            frame, head = read_frame(descriptor, offset)
        except StoreDamaged:
            offset += 1
            continue
        yield ScannedFrame(offset, frame, head)
        offset += head.total

"""Frames: the unit of a pack, a self-describing, checksummed run of stored objects.

Owns the byte layout below and nothing else; it is pure (bytes in, values out). A frame says what it holds before its
payload, so a pack can be listed and verified without decoding, and every declared length is bounded before anything is
allocated for it. Bytes that are not a frame raise StoreDamaged, whatever they are.

====================  =====  ==========================================================
magic                 4      ``LFr1``
type                  u8     1 solid; 2 delta (reserved: decoded once it exists)
codec                 u8     0 stored as is, 1 one zstd stream with its content size
flags                 u16    0
raw length            u32    length of the decoded payload, at most 16 MiB
stored length         u32    length of the payload in the file, at most the raw length + 64 KiB
count                 u32    objects in the frame, 1 … 65,536
prefix                32     only in a delta frame: the id of the object it names
objects               37·n   kind u8, length u32, id 32; the payload holds them in this order
payload               …      stored length bytes
checksum              u64    XXH3-64 of everything before
====================  =====  ==========================================================

All integers are little-endian. Where frames lie in a file is in ``packs``; which object lies in which, in ``packindex``.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from layerfs.errors import StoreDamaged
from layerfs.ids import ObjectId
from layerfs.objects.kinds import MAX_OBJECT_BYTES, Kind

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor

MAGIC = b"LFr1"
SOLID = 1
DELTA = 2
RAW = 0
ZSTD = 1
MAX_RAW = MAX_OBJECT_BYTES
MAX_STORED = MAX_RAW + 64 * 1024
MAX_COUNT = 65_536
HEADER = Struct("<4sBBHIII")
ROW = Struct("<BI32s")
CHECKSUM = Struct("<Q")
GAP = 0
"""Kind of bytes in a solid frame's payload that belong to no object any more; the row's id is zeros."""
NO_ID = bytes(32)
SMALLEST = HEADER.size + ROW.size + CHECKSUM.size
NOT_WORTH_NUMERATOR, NOT_WORTH_DENOMINATOR = 31, 32
"""A group that does not shrink below 31/32 of its size is stored as is: reading it is then free."""


class FrameObject(NamedTuple):
    """One object of a frame: its kind, its id, and where it lies in the decoded payload."""

    kind: int
    oid: ObjectId
    start: int
    length: int


class FrameHead(NamedTuple):
    """What a frame says of itself before its payload."""

    codec: int
    raw_length: int
    stored_length: int
    objects: int
    payload_start: int
    total: int


def read_head(data: bytes | memoryview, at: int = 0) -> FrameHead:
    """Decode and bound-check the fixed header at ``at``; it must be wholly in ``data``."""
    if len(data) - at < HEADER.size:
        raise StoreDamaged("frame header is cut short")
    magic, frame_type, codec, flags, raw_length, stored_length, count = HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise StoreDamaged("not a frame: wrong magic")
    if frame_type != SOLID:
        raise StoreDamaged(f"frame type {frame_type} is not known to this version")
    if codec not in (RAW, ZSTD) or flags:
        raise StoreDamaged("frame has an unknown codec or flag")
    if not 1 <= count <= MAX_COUNT or raw_length > MAX_RAW or stored_length > MAX_STORED:
        raise StoreDamaged("frame declares an impossible length")
    if codec == RAW and raw_length != stored_length:
        raise StoreDamaged("frame stored as is declares two lengths")
    payload_start = HEADER.size + count * ROW.size
    total = payload_start + stored_length + CHECKSUM.size
    return FrameHead(codec, raw_length, stored_length, count, payload_start, total)


def check_frame(frame: bytes | memoryview) -> FrameHead:
    """Return the head of a whole frame whose length and checksum are right."""
    head = read_head(frame)
    if len(frame) != head.total:
        raise StoreDamaged("frame is cut short")
    end = head.total - CHECKSUM.size
    if xxh3_64_intdigest(memoryview(frame)[:end]) != CHECKSUM.unpack_from(frame, end)[0]:
        raise StoreDamaged("frame checksum does not match")
    return head


def read_objects(frame: bytes | memoryview, head: FrameHead) -> list[FrameObject]:
    """Return the objects a checked frame lists; their lengths must add up to the payload."""
    objects: list[FrameObject] = []
    start = 0
    rows = memoryview(frame)[HEADER.size : head.payload_start]
    for kind, length, oid in ROW.iter_unpack(rows):
        if kind == GAP and oid == NO_ID:
            start += length
            continue
        if not Kind.CHUNK <= kind <= Kind.MOVE:
            raise StoreDamaged(f"frame holds an object of unknown kind {kind}")
        objects.append(FrameObject(kind, oid, start, length))
        start += length
    if start != head.raw_length:
        raise StoreDamaged("frame's objects do not add up to its payload")
    return objects


def read_payload(frame: bytes | memoryview, head: FrameHead, decompressor: ZstdDecompressor) -> bytes:
    """Return the decoded payload of a checked frame; never allocates beyond the declared, bounded length."""
    stored = memoryview(frame)[head.payload_start : head.payload_start + head.stored_length]
    if head.codec == RAW:
        return bytes(stored)
    import zstandard

    try:
        if zstandard.frame_content_size(stored) != head.raw_length:
            raise StoreDamaged("frame payload does not have its declared length")
        payload = decompressor.decompress(stored, max_output_size=head.raw_length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise StoreDamaged("frame payload does not decompress") from error
    if len(payload) != head.raw_length:
        raise StoreDamaged("frame payload does not have its declared length")
    return payload


def encode_frame(
    objects: Sequence[tuple[int, ObjectId, bytes]], compressor: ZstdCompressor | None
) -> bytes:
    """Return the solid frame of ``objects`` (kind, id, payload); compressed when that is worth it."""
    payload = objects[0][2] if len(objects) == 1 else b"".join([payload for _, _, payload in objects])
    if not 1 <= len(objects) <= MAX_COUNT or len(payload) > MAX_RAW:
        raise ValueError("frame exceeds its limits")
    raw_length = len(payload)
    codec = RAW
    if compressor is not None and raw_length > 64:
        squeezed = compressor.compress(payload)
        if len(squeezed) * NOT_WORTH_DENOMINATOR < raw_length * NOT_WORTH_NUMERATOR:
            codec, payload = ZSTD, squeezed
    pack_row = ROW.pack
    rows = [pack_row(kind, len(data), oid) for kind, oid, data in objects]
    head = HEADER.pack(MAGIC, SOLID, codec, 0, raw_length, len(payload), len(objects)) + b"".join(rows)
    hasher = xxh3_64(head)
    hasher.update(payload)
    return b"".join((head, payload, CHECKSUM.pack(hasher.intdigest())))

"""Frames: the unit of a pack, a self-describing, checksummed run of stored objects.

Owns the byte layout below and nothing else; it is pure (bytes in, values out). A frame is bounded before anything is
allocated for it: by its header, and what its payload says of itself by the payload. Bytes that are not a frame raise
StoreDamaged, whatever they are.

====================  =====  ==========================================================
magic                 4      ``LFr1``
type                  u8     1 solid, 2 delta, 3 dense
codec                 u8     0 stored as is, 1 one zstd stream with its content size
flags                 u16    dense: the kind of all its objects; else 0
raw length            u32    length of the decoded payload, at most 16 MiB
stored length         u32    length of the payload in the file, at most the raw length + 64 KiB
count                 u32    objects in the frame, 1 … 65,536
rows                  37·n   solid only: kind u8, length u32, id 32
payload               …      stored length bytes
checksum              u64    XXH3-64 of everything before
====================  =====  ==========================================================

The payload of a *solid* frame, decoded, is its objects in the order of the rows.

In a *delta* frame every object is a zstd stream of its own (without magic, content size or checksum), for which another
object, usually the version before, serves as a raw dictionary, its *prefix*. The payload is columns: the kinds, n bytes;
the lengths; the lengths of the streams; the first 16 bytes of the ids of the prefixes, zeros where there is none; the
ids; and then the streams. That the streams are compressed once more together makes ids that new nodes name cost little.
Objects are decoded one at a time; following prefixes from frame to frame, and bounding that, is the task of ``database``.

A *dense* frame, which ``repack`` writes, leaves out all that can be had from its payload. That is: the number m of its
references, u32; the lengths of the objects; for each reference, the bytes between the one before and it; and how many
objects lie between the one that is named and the one that names it; then the objects, without the 32 bytes of each
reference. A *reference* is a place in an object where the id of an earlier object of the frame stands. Ids are found by
hashing; listing a dense frame therefore decodes it.

A column of numbers is n low bytes, then n second, n third and n highest ones. All integers are little-endian. Where
frames lie in a file is in ``packs``; which object lies in which, in ``packindex``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from layerfs.errors import StoreDamaged
from layerfs.ids import ID_BYTES, ObjectId
from layerfs.objects.kinds import MAX_OBJECT_BYTES, Kind, object_id

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor

MAGIC = b"LFr1"
SOLID = 1
DELTA = 2
DENSE = 3
RAW = 0
ZSTD = 1
MAX_RAW = MAX_OBJECT_BYTES
MAX_STORED = MAX_RAW + 64 * 1024
MAX_COUNT = 65_536
HEADER = Struct("<4sBBHIII")
ROW = Struct("<BI32s")
REFERENCES = Struct("<I")
PREFIX_BYTES = 16
NO_PREFIX = bytes(PREFIX_BYTES)
CHECKSUM = Struct("<Q")
GAP = 0
"""Kind of bytes in a solid frame's payload that belong to no object any more; the row's id is zeros."""
NO_ID = bytes(32)
COLUMN_BYTES = 4
DELTA_ROW_BYTES = 1 + 2 * COLUMN_BYTES + PREFIX_BYTES + ID_BYTES
SMALLEST = HEADER.size + COLUMN_BYTES + CHECKSUM.size
NOT_WORTH_NUMERATOR, NOT_WORTH_DENOMINATOR = 31, 32
"""A group that does not shrink below 31/32 of its size is stored as is: reading it is then free."""

_DECLARES_SIZE = 0xE0
"""Bits of the first byte of a zstd stream: its content size follows."""

LEAST_SQUEEZED = 64
SAMPLE_PLACES = 3
SAMPLE_BYTES = 1536


class FrameObject(NamedTuple):
    """One object of a frame: its kind, its id, and where it lies in the decoded payload."""

    kind: int
    oid: ObjectId
    start: int
    length: int


class DeltaObject(NamedTuple):
    """One object of a delta frame: as above, its prefix (None: it has none), and where its stream lies in the payload."""

    kind: int
    oid: ObjectId
    start: int
    length: int
    prefix: bytes | None
    stored_start: int
    stored_length: int


class DeltaRow(NamedTuple):
    """One object to be written into a delta frame, with its stream."""

    kind: int
    oid: ObjectId
    length: int
    prefix: bytes | None
    stream: bytes


class Named(NamedTuple):
    """A place where an object of a dense frame names an earlier one; objects are numbered in their order."""

    number: int
    at: int
    target: int


class FrameHead(NamedTuple):
    """What a frame says of itself before its payload."""

    type: int
    codec: int
    flags: int
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
    if frame_type not in (SOLID, DELTA, DENSE):
        raise StoreDamaged(f"frame type {frame_type} is not known to this version")
    if frame_type == DENSE and not Kind.CHUNK <= flags < Kind.MOVE:
        raise StoreDamaged(f"dense frame holds objects of unknown kind {flags}")
    if codec not in (RAW, ZSTD) or (flags and frame_type != DENSE):
        raise StoreDamaged("frame has an unknown codec or flag")
    if not 1 <= count <= MAX_COUNT or raw_length > MAX_RAW or stored_length > MAX_STORED:
        raise StoreDamaged("frame declares an impossible length")
    if codec == RAW and raw_length != stored_length:
        raise StoreDamaged("frame stored as is declares two lengths")
    payload_start = HEADER.size + (count * ROW.size if frame_type == SOLID else 0)
    total = payload_start + stored_length + CHECKSUM.size
    return FrameHead(frame_type, codec, flags, raw_length, stored_length, count, payload_start, total)


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
    if head.type == DELTA:
        return [FrameObject(*row[:4]) for row in read_deltas(decode_payload(frame, head), head)]
    if head.type == DENSE:
        return list_dense(decode_payload(frame, head), head)
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


class DensePayload(NamedTuple):
    """A dense frame's decoded payload with its references filled in: the objects lie in ``data`` from ``start`` on."""

    data: bytes
    start: int
    lengths: Sequence[int]


def read_dense(payload: bytes, head: FrameHead) -> DensePayload:
    """Return the objects in the decoded payload of a dense frame; a reference is filled with the id it stands for."""
    count = head.objects
    at = REFERENCES.size
    if len(payload) < at:
        raise StoreDamaged("dense frame is too short for its lengths")
    (references,) = REFERENCES.unpack_from(payload)
    start = at + COLUMN_BYTES * (count + 2 * references)
    total = len(payload) - start + ID_BYTES * references
    if start > len(payload) or total > MAX_RAW:
        raise StoreDamaged("dense frame is too short for its lengths")
    lengths = _from_planes(payload, at, count)
    if sum(lengths) != total:
        raise StoreDamaged("dense frame's objects do not add up to its payload")
    if not references:
        return DensePayload(payload, start, lengths)
    at += COLUMN_BYTES * count
    gaps = _from_planes(payload, at, references)
    backs = _from_planes(payload, at + COLUMN_BYTES * references, references)
    return DensePayload(_fill(head.flags, payload, start, lengths, gaps, backs), 0, lengths)


def _fill(
    kind: int, payload: bytes, at: int, lengths: Sequence[int], gaps: Sequence[int], backs: Sequence[int]
) -> bytes:
    """Put the ids of earlier objects where later ones name them."""
    objects: list[bytes] = []
    ids: dict[int, bytes] = {}
    parts: list[bytes] = []
    left = lengths[0]
    for gap, back in zip(gaps, backs, strict=True):
        while gap >= left:
            if len(objects) + 1 == len(lengths):
                raise StoreDamaged("dense frame refers to an object from outside of one")
            objects.append(b"".join((*parts, payload[at : at + left])))
            at += left
            gap -= left
            left = lengths[len(objects)]
            parts = []
        target = len(objects) - 1 - back
        left -= gap + ID_BYTES
        if left < 0 or target < 0:
            raise StoreDamaged("dense frame refers to an object from outside of one")
        oid = ids.get(target)
        if oid is None:
            oid = ids[target] = object_id(kind, objects[target])
        parts += (payload[at : at + gap], oid)
        at += gap
    return b"".join((*objects, *parts, payload[at:]))


def _to_planes(numbers: Sequence[int]) -> list[bytes]:
    plain = struct.pack(f"<{len(numbers)}I", *numbers)
    return [plain[plane::COLUMN_BYTES] for plane in range(COLUMN_BYTES)]


def _from_planes(data: bytes, at: int, count: int) -> Sequence[int]:
    """Return ``count`` numbers of four bytes each, stored as their lowest bytes, then the second ones, and so on."""
    plain = bytearray(COLUMN_BYTES * count)
    for plane in range(COLUMN_BYTES):
        plain[plane::COLUMN_BYTES] = data[at + plane * count : at + (plane + 1) * count]
    return struct.unpack(f"<{count}I", plain)


def list_dense(payload: bytes, head: FrameHead) -> list[FrameObject]:
    """Return the objects in the decoded payload of a dense frame; their ids are found by hashing."""
    data, at, lengths = read_dense(payload, head)
    view = memoryview(data)
    objects: list[FrameObject] = []
    start = 0
    for length in lengths:
        oid = object_id(head.flags, view[at + start : at + start + length])
        objects.append(FrameObject(head.flags, oid, start, length))
        start += length
    return objects


def encode_dense_frame(
    kind: int, payloads: Sequence[bytes], compressor: ZstdCompressor | None, named: Sequence[Named] = ()
) -> bytes:
    """Return the dense frame of these objects of one kind; compressed when that is worth it.

    ``named`` says where objects name earlier ones, in ascending order, none twice.
    """
    parts: list[bytes] = []
    gaps: list[int] = []
    todo = iter(named)
    following = next(todo, None)
    gap = 0
    for number, payload in enumerate(payloads):
        at = 0
        while following is not None and following.number == number:
            parts.append(payload[at : following.at])
            gaps.append(gap + following.at - at)
            gap = 0
            at = following.at + ID_BYTES
            following = next(todo, None)
        parts.append(payload[at:])
        gap += len(payload) - at
    if following is not None:
        raise ValueError("objects are named out of order")
    backs = [each.number - each.target - 1 for each in named]
    count = len(payloads)
    columns = (*_to_planes([len(payload) for payload in payloads]), *_to_planes(gaps), *_to_planes(backs))
    payload = b"".join((REFERENCES.pack(len(named)), *columns, *parts))
    raw_length = len(payload)
    if not 1 <= count <= MAX_COUNT or raw_length > MAX_RAW:
        raise ValueError("frame exceeds its limits")
    codec, payload = _squeeze(payload, compressor)
    return _assemble(HEADER.pack(MAGIC, DENSE, codec, kind, raw_length, len(payload), count), payload)


def _squeeze(payload: bytes, compressor: ZstdCompressor | None) -> tuple[int, bytes]:
    if compressor is not None and len(payload) > LEAST_SQUEEZED:
        squeezed = compressor.compress(payload)
        if len(squeezed) * NOT_WORTH_DENOMINATOR < len(payload) * NOT_WORTH_NUMERATOR:
            return ZSTD, squeezed
    return RAW, payload


def _assemble(head: bytes, payload: bytes) -> bytes:
    hasher = xxh3_64(head)
    hasher.update(payload)
    return b"".join((head, payload, CHECKSUM.pack(hasher.intdigest())))


def read_deltas(payload: bytes, head: FrameHead) -> list[DeltaObject]:
    """Return the objects that the decoded payload of a delta frame lists; both their lengths must add up."""
    count = head.objects
    stored = DELTA_ROW_BYTES * count
    if stored > len(payload):
        raise StoreDamaged("delta frame is too short for its objects")
    lengths = _from_planes(payload, count, count)
    stored_lengths = _from_planes(payload, (1 + COLUMN_BYTES) * count, count)
    prefixes = (1 + 2 * COLUMN_BYTES) * count
    ids = prefixes + PREFIX_BYTES * count
    if sum(lengths) > MAX_RAW or stored + sum(stored_lengths) != len(payload):
        raise StoreDamaged("delta frame's objects do not add up to its payload")
    objects: list[DeltaObject] = []
    start = 0
    for number, kind in enumerate(payload[:count]):
        if not Kind.CHUNK <= kind < Kind.MOVE:
            raise StoreDamaged(f"delta frame holds an object of unknown kind {kind}")
        prefix = payload[prefixes + PREFIX_BYTES * number : prefixes + PREFIX_BYTES * (number + 1)]
        oid = ObjectId(payload[ids + ID_BYTES * number : ids + ID_BYTES * (number + 1)])
        named = None if prefix == NO_PREFIX else prefix
        objects.append(DeltaObject(kind, oid, start, lengths[number], named, stored, stored_lengths[number]))
        start += lengths[number]
        stored += stored_lengths[number]
    return objects


def read_stream(data: bytes, row: DeltaObject, prefix: bytes | None) -> bytes:
    """Decode one object of a delta frame, given the frame's decoded payload and the payload of the object's prefix."""
    import zstandard

    stream = memoryview(data)[row.stored_start : row.stored_start + row.stored_length]
    if not row.length:
        return b""
    if not stream or stream[0] & _DECLARES_SIZE:  # as much as it says would be allocated
        raise StoreDamaged("object of a delta frame is no stream of the form that is written")
    dictionary = None if not prefix else zstandard.ZstdCompressionDict(prefix, zstandard.DICT_TYPE_RAWCONTENT)
    decompressor = zstandard.ZstdDecompressor(dictionary, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    try:
        payload = decompressor.decompress(stream, max_output_size=row.length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise StoreDamaged("object of a delta frame does not decompress") from error
    if len(payload) != row.length:
        raise StoreDamaged("object of a delta frame does not have its declared length")
    return payload


def encode_stream(payload: bytes, prefix: bytes | None, level: int) -> bytes:
    """Return the stream of one object of a delta frame."""
    import zstandard

    if not payload:
        return b""
    length = len(payload)
    known = len(prefix) if prefix else 0
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level,
        source_size=length,
        dict_size=known,
        window_log=max(10, (length + known).bit_length()),
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,
        write_content_size=0,
        write_checksum=0,
        write_dict_id=0,
    )
    dictionary = None if not prefix else zstandard.ZstdCompressionDict(prefix, zstandard.DICT_TYPE_RAWCONTENT)
    return zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters).compress(payload)


def encode_delta_frame(rows: Sequence[DeltaRow], compressor: ZstdCompressor | None = None) -> bytes:
    """Return the delta frame of objects whose streams are made; compressed once more when that is worth it."""
    payload = b"".join(
        (
            bytes([row.kind for row in rows]),
            *_to_planes([row.length for row in rows]),
            *_to_planes([len(row.stream) for row in rows]),
            *[row.prefix or NO_PREFIX for row in rows],
            *[row.oid for row in rows],
            *[row.stream for row in rows],
        )
    )
    raw_length = len(payload)
    if not 1 <= len(rows) <= MAX_COUNT or raw_length > MAX_RAW or sum(row.length for row in rows) > MAX_RAW:
        raise ValueError("frame exceeds its limits")
    codec, payload = _squeeze(payload, compressor)
    return _assemble(HEADER.pack(MAGIC, DELTA, codec, 0, raw_length, len(payload), len(rows)), payload)


def read_payload(frame: bytes | memoryview, head: FrameHead, decompressor: ZstdDecompressor) -> bytes:
    """Return the decoded payload of a checked frame; never allocates beyond its declared length."""
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


def decode_payload(frame: bytes | memoryview, head: FrameHead) -> bytes:
    """Return the decoded payload of a checked frame, without a decompressor at hand."""
    if head.codec == RAW:
        return bytes(memoryview(frame)[head.payload_start : head.payload_start + head.stored_length])
    import zstandard

    return read_payload(frame, head, zstandard.ZstdDecompressor())


def make_compressor(level: int, size: int = 0) -> ZstdCompressor:
    """Return a compressor for frames (of this size, if it is known); one thread at a time may use it."""
    import zstandard

    parameters = zstandard.ZstdCompressionParameters.from_level(level, source_size=size)
    return zstandard.ZstdCompressor(compression_params=parameters)


def is_incompressible(payload: bytes) -> bool:
    """Whether a look at three places of some content says that compressing it is a waste of time."""
    import zstandard

    length = len(payload)
    if length < SAMPLE_PLACES * SAMPLE_BYTES:
        return False
    step = (length - SAMPLE_BYTES) // (SAMPLE_PLACES - 1)
    sample = b"".join([payload[at * step : at * step + SAMPLE_BYTES] for at in range(SAMPLE_PLACES)])
    squeezed = zstandard.ZstdCompressor(level=1).compress(sample)
    return len(squeezed) * NOT_WORTH_DENOMINATOR >= len(sample) * NOT_WORTH_NUMERATOR


def encode_frame(objects: Sequence[tuple[int, ObjectId, bytes]], compressor: ZstdCompressor | None) -> bytes:
    """Return the solid frame of ``objects`` (kind, id, payload); compressed when that is worth it."""
    payload = objects[0][2] if len(objects) == 1 else b"".join([payload for _, _, payload in objects])
    if not 1 <= len(objects) <= MAX_COUNT or len(payload) > MAX_RAW:
        raise ValueError("frame exceeds its limits")
    raw_length = len(payload)
    codec, payload = _squeeze(payload, compressor)
    pack_row = ROW.pack
    rows = [pack_row(kind, len(data), oid) for kind, oid, data in objects]
    head = HEADER.pack(MAGIC, SOLID, codec, 0, raw_length, len(payload), len(objects)) + b"".join(rows)
    return _assemble(head, payload)

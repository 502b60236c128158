"""Frames: the unit of a pack, a self-describing, checksummed run of stored objects.

Owns the byte layout below and nothing else; it is pure (bytes in, values out). A frame says what it holds before its
payload, so a pack can be listed and verified without decoding, and every declared length is bounded before anything is
allocated for it. Bytes that are not a frame raise StoreDamaged, whatever they are.

====================  =====  ==========================================================
magic                 4      ``LFr1``
type                  u8     1 solid, 2 delta, 3 dense
codec                 u8     0 stored as is, 1 one zstd stream with its content size, 2 a bare zstd stream per object
flags                 u16    dense: the kind of all its objects; else 0
raw length            u32    length of the decoded payload, at most 16 MiB
stored length         u32    length of the payload in the file, at most the raw length + 64 KiB
count                 u32    objects in the frame, 1 … 65,536
objects               37·n   solid: kind u8, length u32, id 32; the payload holds them in this order
objects               57·n   delta: kind u8, length u32, stored u32, prefix 16, id 32; likewise
objects               0      dense: none here
payload               …      stored length bytes
checksum              u64    XXH3-64 of everything before
====================  =====  ==========================================================

A *solid* frame is decoded by itself and as a whole. In a *delta* frame every object has a stream of its own (codec 2:
zstd without magic, content size or checksum), for which another object, usually the version before, serves as a raw
dictionary: the first 16 bytes of its id are the ``prefix``, zeros if there is none. Objects of a delta frame are decoded
one at a time; following prefixes from frame to frame, and bounding that, is the task of ``database``.

A *dense* frame, which ``repack`` writes, is a solid one that leaves out all that can be had from its payload: decoded,
it begins with the lengths of its objects (n low bytes, n second bytes, n third, n highest) before the objects themselves;
ids are found by hashing. Listing it therefore decodes it.

All integers are little-endian. Where frames lie in a file is in ``packs``; which object lies in which, in ``packindex``.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from layerfs.errors import StoreDamaged
from layerfs.ids import ObjectId
from layerfs.objects.kinds import MAX_OBJECT_BYTES, Kind, object_id

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor

MAGIC = b"LFr1"
SOLID = 1
DELTA = 2
DENSE = 3
RAW = 0
ZSTD = 1
STREAMS = 2
MAX_RAW = MAX_OBJECT_BYTES
MAX_STORED = MAX_RAW + 64 * 1024
MAX_COUNT = 65_536
HEADER = Struct("<4sBBHIII")
ROW = Struct("<BI32s")
DELTA_ROW = Struct("<BII16s32s")
PREFIX_BYTES = 16
NO_PREFIX = bytes(PREFIX_BYTES)
CHECKSUM = Struct("<Q")
GAP = 0
"""Kind of bytes in a solid frame's payload that belong to no object any more; the row's id is zeros."""
NO_ID = bytes(32)
_ROW_BYTES = {SOLID: ROW.size, DELTA: DELTA_ROW.size, DENSE: 0}
LENGTH_BYTES = 4
SMALLEST = HEADER.size + LENGTH_BYTES + CHECKSUM.size
NOT_WORTH_NUMERATOR, NOT_WORTH_DENOMINATOR = 31, 32
"""A group that does not shrink below 31/32 of its size is stored as is: reading it is then free."""


SAMPLE_PLACES = 3
SAMPLE_BYTES = 1536


class FrameObject(NamedTuple):
    """One object of a frame: its kind, its id, and where it lies in the decoded payload."""

    kind: int
    oid: ObjectId
    start: int
    length: int


class DeltaObject(NamedTuple):
    """One object of a delta frame: as above, its prefix (None: it has none), and where its stream lies in the frame."""

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
    if (codec != STREAMS if frame_type == DELTA else codec not in (RAW, ZSTD)) or (flags and frame_type != DENSE):
        raise StoreDamaged("frame has an unknown codec or flag")
    if not 1 <= count <= MAX_COUNT or raw_length > MAX_RAW or stored_length > MAX_STORED:
        raise StoreDamaged("frame declares an impossible length")
    if codec == RAW and raw_length != stored_length:
        raise StoreDamaged("frame stored as is declares two lengths")
    payload_start = HEADER.size + count * _ROW_BYTES[frame_type]
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
        return [FrameObject(*row[:4]) for row in read_deltas(frame, head)]
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


def list_dense(payload: bytes, head: FrameHead) -> list[FrameObject]:
    """Return the objects in the decoded payload of a dense frame; their ids are found by hashing."""
    count = head.objects
    start = LENGTH_BYTES * count
    if start > len(payload):
        raise StoreDamaged("dense frame is too short for its lengths")
    planes = [payload[plane * count : (plane + 1) * count] for plane in range(LENGTH_BYTES)]
    view = memoryview(payload)
    objects: list[FrameObject] = []
    for low, second, third, high in zip(*planes, strict=True):
        length = low | second << 8 | third << 16 | high << 24
        if start + length > len(payload):
            raise StoreDamaged("dense frame's objects do not add up to its payload")
        oid = object_id(head.flags, view[start : start + length])
        objects.append(FrameObject(head.flags, oid, start, length))
        start += length
    if start != len(payload):
        raise StoreDamaged("dense frame's objects do not add up to its payload")
    return objects


def encode_dense_frame(kind: int, payloads: Sequence[bytes], compressor: ZstdCompressor | None) -> bytes:
    """Return the dense frame of these objects of one kind; compressed when that is worth it."""
    count = len(payloads)
    lengths = b"".join(len(payload).to_bytes(LENGTH_BYTES, "little") for payload in payloads)
    planes = [lengths[plane::LENGTH_BYTES] for plane in range(LENGTH_BYTES)]
    payload = b"".join((*planes, *payloads))
    raw_length = len(payload)
    if not 1 <= count <= MAX_COUNT or raw_length > MAX_RAW:
        raise ValueError("frame exceeds its limits")
    codec = RAW
    if compressor is not None:
        squeezed = compressor.compress(payload)
        if len(squeezed) * NOT_WORTH_DENOMINATOR < raw_length * NOT_WORTH_NUMERATOR:
            codec, payload = ZSTD, squeezed
    head = HEADER.pack(MAGIC, DENSE, codec, kind, raw_length, len(payload), count)
    hasher = xxh3_64(head)
    hasher.update(payload)
    return b"".join((head, payload, CHECKSUM.pack(hasher.intdigest())))


def read_deltas(frame: bytes | memoryview, head: FrameHead) -> list[DeltaObject]:
    """Return the objects a checked delta frame lists; both their lengths must add up."""
    objects: list[DeltaObject] = []
    start = stored = 0
    rows = memoryview(frame)[HEADER.size : head.payload_start]
    for kind, length, stored_length, prefix, oid in DELTA_ROW.iter_unpack(rows):
        if not Kind.CHUNK <= kind < Kind.MOVE:
            raise StoreDamaged(f"delta frame holds an object of unknown kind {kind}")
        named = None if prefix == NO_PREFIX else prefix
        objects.append(DeltaObject(kind, oid, start, length, named, head.payload_start + stored, stored_length))
        start += length
        stored += stored_length
    if start != head.raw_length or stored != head.stored_length:
        raise StoreDamaged("delta frame's objects do not add up to its payload")
    return objects


def read_stream(frame: bytes | memoryview, row: DeltaObject, prefix: bytes | None) -> bytes:
    """Decode one object of a delta frame, given the payload of its prefix."""
    import zstandard

    stream = memoryview(frame)[row.stored_start : row.stored_start + row.stored_length]
    if not row.length:
        return b""
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


def encode_delta_frame(rows: Sequence[DeltaRow]) -> bytes:
    """Return the delta frame of objects whose streams are made."""
    raw_length = sum(row.length for row in rows)
    payload = b"".join([row.stream for row in rows])
    if not 1 <= len(rows) <= MAX_COUNT or raw_length > MAX_RAW or len(payload) > MAX_STORED:
        raise ValueError("frame exceeds its limits")
    pack_row = DELTA_ROW.pack
    listed = [pack_row(row.kind, row.length, len(row.stream), row.prefix or NO_PREFIX, row.oid) for row in rows]
    head = HEADER.pack(MAGIC, DELTA, STREAMS, 0, raw_length, len(payload), len(rows)) + b"".join(listed)
    hasher = xxh3_64(head)
    hasher.update(payload)
    return b"".join((head, payload, CHECKSUM.pack(hasher.intdigest())))


def read_payload(frame: bytes | memoryview, head: FrameHead, decompressor: ZstdDecompressor) -> bytes:
    """Return the decoded payload of a checked solid or dense frame; never allocates beyond its declared length."""
    stored = memoryview(frame)[head.payload_start : head.payload_start + head.stored_length]
    if head.type == DELTA:
        raise StoreDamaged("a delta frame is not decoded as a whole")
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
    """Return the decoded payload of a checked solid or dense frame, without a decompressor at hand."""
    if head.type != DELTA and head.codec == RAW:
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

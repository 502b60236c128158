"""Copying packs in part: the objects that are wanted, from one pack into a new one, without doing work twice.

A frame all of whose objects are wanted is copied as it is. Of a solid frame with some unwanted ones the bytes are kept
and the unwanted objects become *gaps* that nothing names, as long as half of it is wanted; otherwise, or when the bytes
must really go (``thorough``), the wanted objects are compressed anew. Objects of a delta frame have streams of their own,
which are copied; one whose prefix is not going to be there is stored without.

Moves are never copied: what they say is said by a restart (``log``). Which objects are wanted is the caller's business.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple, Protocol

from xxhash import xxh3_64_intdigest

from layerfs.errors import StoreDamaged
from layerfs.ids import ObjectId, short
from layerfs.objects import frames, packs
from layerfs.objects.database import ObjectDatabase
from layerfs.objects.decodedframe import DeltaFrame
from layerfs.objects.frames import DeltaRow, FrameObject
from layerfs.objects.kinds import Kind, object_id
from layerfs.objects.links import named_among

LEVEL = 6
DEEP_LEVEL = 12
DEEP_BYTES = 2 * 1024 * 1024
"""A payload longer than batches make them was made by a repack, and is compressed as deeply again."""


class Wanted(Protocol):
    """The caller's choice."""

    def object(self, row: FrameObject, frame: int) -> bool:
        """Whether the object in the frame at this offset is to be copied."""

    def prefix(self, oid: ObjectId, prefix: bytes) -> bool:
        """Whether this prefix may serve the object where the copy goes."""


Emit = Callable[[bytes], None]


class CopyOptions(NamedTuple):
    """``verify``: hash every object that is copied; ``thorough``: leave no byte of an unwanted one."""

    verify: bool = False
    thorough: bool = False


def copy_pack(
    database: ObjectDatabase,
    number: int,
    wanted: Wanted,
    emit: Emit,
    options: CopyOptions = CopyOptions(),  # noqa: B008
) -> None:
    """Give the frames of the wanted objects of a sealed pack to ``emit``; raise StoreDamaged when it is not whole."""
    descriptor = database.pack_descriptor(number)
    end = os.fstat(descriptor).st_size
    at = packs.HEADER_BYTES
    for scanned in packs.scan_frames(descriptor, at, end):
        at = scanned.end
        frame = copy_frame(database, scanned, wanted, options)
        if frame is not None:
            emit(frame)
    if at != end:
        raise StoreDamaged(
            f"pack {packs.pack_name(number)} is damaged at offset {at}",
            "'layerfs fsck' names what is affected",
        )


def copy_frame(
    database: ObjectDatabase, scanned: packs.ScannedFrame, wanted: Wanted, options: CopyOptions
) -> bytes | None:
    """Return the frame of the wanted objects of one frame; None when there is none."""
    frame, head = scanned.frame, scanned.head
    rows = frames.read_objects(frame, head)
    kept = [row for row in rows if row.kind != Kind.MOVE and wanted.object(row, scanned.offset)]
    if not kept:
        return None
    if options.verify:
        _verify(database, scanned, kept)
    if head.type == frames.DELTA:
        return _copy_deltas(database, scanned, wanted, {row.oid for row in kept})
    if head.type == frames.DENSE:
        return frame if len(kept) == head.objects else _compress_dense(database, scanned, kept)
    kept_bytes = sum(row.length for row in kept)
    if kept_bytes == head.raw_length and len(kept) == head.objects:
        return frame
    if 2 * kept_bytes >= head.raw_length and not options.thorough:
        return leave_gaps(frame, head, {row.oid for row in kept})
    return _compress(database, scanned, kept)


def leave_gaps(frame: bytes, head: frames.FrameHead, kept: Container[bytes]) -> bytes:
    """Return a checked solid frame in which only the objects ``kept`` are named; the others are gaps."""
    rows: list[bytes] = []
    listed = memoryview(frame)[frames.HEADER.size : head.payload_start]
    for kind, length, oid in frames.ROW.iter_unpack(listed):
        row = (kind, length, oid) if oid in kept else (frames.GAP, length, frames.NO_ID)
        rows.append(frames.ROW.pack(*row))
    payload = frame[head.payload_start : head.payload_start + head.stored_length]
    body = b"".join((frame[: frames.HEADER.size], *rows, payload))
    return body + frames.CHECKSUM.pack(xxh3_64_intdigest(body))


def _verify(database: ObjectDatabase, scanned: packs.ScannedFrame, rows: list[FrameObject]) -> None:
    decoded = database.decode(scanned.frame, scanned.head)
    where = f"frame at {scanned.offset}"
    for row in rows:
        decoded.object(row.oid, where)


def _compress(database: ObjectDatabase, scanned: packs.ScannedFrame, rows: list[FrameObject]) -> bytes:
    import zstandard

    decoded = database.decode(scanned.frame, scanned.head)
    where = f"frame at {scanned.offset}"
    objects = [(row.kind, row.oid, decoded.object(row.oid, where)[1]) for row in rows]
    level = DEEP_LEVEL if scanned.head.raw_length > DEEP_BYTES else LEVEL
    return frames.encode_frame(objects, zstandard.ZstdCompressor(level=level))


def _compress_dense(database: ObjectDatabase, scanned: packs.ScannedFrame, rows: list[FrameObject]) -> bytes:
    import zstandard

    decoded = database.decode(scanned.frame, scanned.head)
    objects = [(row.oid, decoded.object(row.oid, f"frame at {scanned.offset}")[1]) for row in rows]
    compressor = None if scanned.head.codec == frames.RAW else zstandard.ZstdCompressor(level=DEEP_LEVEL)
    kind = rows[0].kind
    return frames.encode_dense_frame(
        kind, [payload for _, payload in objects], compressor, named_among(kind, objects)
    )


def _copy_deltas(
    database: ObjectDatabase, scanned: packs.ScannedFrame, wanted: Wanted, kept: set[ObjectId]
) -> bytes:
    decoded = database.decode(scanned.frame, scanned.head)
    assert isinstance(decoded, DeltaFrame)
    rows = decoded.rows.values()
    found: list[DeltaRow] = []
    for row in rows:
        if row.oid not in kept:
            continue
        prefix = row.prefix
        stream = decoded.data[row.stored_start : row.stored_start + row.stored_length]
        if prefix is not None and not wanted.prefix(row.oid, prefix):
            kind, whole = decoded.object(row.oid, f"frame at {scanned.offset}")
            if kind != row.kind or object_id(kind, whole) != row.oid:
                raise StoreDamaged(f"object {short(row.oid)} does not verify")
            prefix, stream = None, frames.encode_stream(whole, None, LEVEL)
        found.append(DeltaRow(row.kind, row.oid, row.length, prefix, stream))
    if len(found) == len(rows) and all(a.prefix == b.prefix for a, b in zip(found, rows, strict=True)):
        return scanned.frame
    return frames.encode_delta_frame(found, frames.make_compressor(LEVEL))


def delta_objects(descriptor: int, end: int) -> Iterator[tuple[int, frames.DeltaObject]]:
    """Yield (frame offset, object) of every object that has a prefix, reading delta frames only."""
    at = packs.HEADER_BYTES
    while at < end:
        start = packs.read_exactly(descriptor, at, frames.HEADER.size, "reading a pack")
        head = frames.read_head(start)
        if head.type == frames.DELTA:
            frame, _ = packs.read_frame(descriptor, at)
            for row in frames.read_deltas(frames.decode_payload(frame, head), head):
                if row.prefix is not None:
                    yield at, row
        at += head.total

"""File content: bytes in, content id out, and back.

The rule of logical format 1: an empty file has no content id; below ``ONE_PIECE_LIMIT`` bytes a file is one chunk;
from there on it is an extent tree of content-defined chunks and holes. Which of the three applies follows from the size
alone, so an entry needs no tag.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from layerfs.errors import MalformedObject, Unable
from layerfs.ids import ChunkId, ExtentId, ObjectId
from layerfs.objects.chunking import ONE_PIECE_LIMIT, Block, split_content
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.extents import Extent, OldExtents, build_extents, iter_extents
from layerfs.objects.kinds import Kind
from layerfs.objects.source import ObjectSink, ObjectSource

WHOLE_READ_LIMIT = 1 << 30


class ContentRef(NamedTuple):
    """A piece of content by itself, outside a tree: its id (empty for no bytes) and its length in bytes."""

    ref: bytes
    size: int


def put_content(sink: ObjectSink, content: bytes, before: Entry | None = None) -> ContentRef:
    """Put bytes held in memory and return their reference; ``before`` is the file's older version, a hint."""
    if not content:
        return ContentRef(b"", 0)
    if len(content) < ONE_PIECE_LIMIT:
        return ContentRef(put_chunk(sink, content, before), len(content))
    return put_blocks(sink, (content,))


def put_chunk(sink: ObjectSink, content: bytes, before: Entry | None) -> ObjectId:
    """Put the content of a file that is one chunk; ``before`` is the file's older version, a hint."""
    if before is None or before.kind is not EntryKind.FILE or not 0 < before.size < ONE_PIECE_LIMIT:
        return sink.put(Kind.CHUNK, content)
    return sink.put(Kind.CHUNK, content, like=ObjectId(before.ref))


def put_blocks(sink: ObjectSink, blocks: Iterable[Block], before: OldExtents | None = None) -> ContentRef:
    """Put content of at least ``ONE_PIECE_LIMIT`` bytes given as blocks; an int stands for that many zero bytes.

    ``before`` is the extent tree of the file's older version, a hint for storing what differs.
    """
    size = 0

    def put(data: memoryview) -> ChunkId:
        like = None if before is None else before.chunk_at(size)
        if like is None:
            return ChunkId(sink.put(Kind.CHUNK, bytes(data)))
        return ChunkId(sink.put(Kind.CHUNK, bytes(data), like=like))

    def extents() -> Iterator[Extent]:
        nonlocal size
        for _, length, data in split_content(blocks):
            chunk = None if data is None else put(data)
            size += length
            yield Extent(length, chunk)

    root = build_extents(sink, extents(), before)
    if size < ONE_PIECE_LIMIT:
        raise MalformedObject("content below the one-piece limit has no extent tree")
    return ContentRef(root, size)


def put_stream(sink: ObjectSink, blocks: Iterable[Block]) -> ContentRef:
    """Put content of any length, in bounded memory, and return its reference; an int stands for so many zero bytes."""
    stream = iter(blocks)
    start = bytearray()
    for block in stream:
        if isinstance(block, int) and len(start) + block >= ONE_PIECE_LIMIT:
            return put_blocks(sink, chain((bytes(start), block), stream))
        start += bytes(block) if isinstance(block, int) else block
        if len(start) >= ONE_PIECE_LIMIT:
            return put_blocks(sink, chain((bytes(start),), stream))
    return put_content(sink, bytes(start))


def iter_pieces(source: ObjectSource, ref: bytes, size: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield (length, bytes or None for a hole) in file order; raises if the pieces do not add up to ``size``."""
    if not size:
        return
    if size < ONE_PIECE_LIMIT:
        data = source.read(ObjectId(ref), Kind.CHUNK)
        if len(data) != size:
            raise MalformedObject("malformed content: chunk does not fit the file's size")
        yield size, data
        return
    total = 0
    for _, (length, chunk) in iter_extents(source, ExtentId(ObjectId(ref))):
        total += length
        yield length, None if chunk is None else read_chunk(source, chunk, length)
    if total != size:
        raise MalformedObject("malformed content: extents do not add up to the file's size")


def read_chunk(source: ObjectSource, chunk: ChunkId, length: int) -> bytes:
    """Return the bytes of a piece that is ``length`` long."""
    data = source.read(chunk, Kind.CHUNK)
    if len(data) != length:
        raise MalformedObject("malformed content: chunk does not fit its extent")
    return data


def old_extents(source: ObjectSource, entry: Entry | None) -> OldExtents | None:
    """Return the extent tree of a file's older version for :func:`put_blocks`; None when it has none."""
    if entry is None or entry.kind is not EntryKind.FILE or entry.size < ONE_PIECE_LIMIT:
        return None
    return OldExtents(source, ExtentId(ObjectId(entry.ref)))


def read_content(source: ObjectSource, entry: Entry) -> bytes:
    """Return a file's whole content; refuse above ``WHOLE_READ_LIMIT`` bytes (use :func:`iter_pieces`)."""
    if entry.size > WHOLE_READ_LIMIT:
        raise Unable(f"a file of {entry.size} bytes cannot be read into memory at once")
    return b"".join(
        bytes(length) if data is None else data for length, data in iter_pieces(source, entry.ref, entry.size)
    )


def read_range(source: ObjectSource, entry: Entry, offset: int, length: int) -> bytes:
    """Return up to ``length`` bytes at ``offset``, shorter only at the end of the file; reads only what it needs."""
    parts = iter_range(source, entry, offset, length)
    return b"".join(bytes(part) if isinstance(part, int) else part for part in parts)


def iter_range(source: ObjectSource, entry: Entry, offset: int, length: int) -> Iterator[bytes | int]:
    """Yield up to ``length`` bytes at ``offset`` piece by piece, an int for so many of a hole; nothing past the end."""
    end = min(offset + length, entry.size)
    if offset >= end:
        return
    if entry.size < ONE_PIECE_LIMIT:
        yield read_chunk(source, ChunkId(ObjectId(entry.ref)), entry.size)[offset:end]
        return
    for at, (piece, chunk) in iter_extents(source, ExtentId(ObjectId(entry.ref)), offset):
        if at >= end:
            break
        low, high = max(offset - at, 0), min(end - at, piece)
        yield high - low if chunk is None else read_chunk(source, chunk, piece)[low:high]

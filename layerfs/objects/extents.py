"""Extent trees: the ordered pieces and holes of a large file.

A leaf lists (length, chunk id) for data and (length) for a hole; an inner node lists (length, child id). Nodes end where
a hash of the piece itself says so (``nodes``), so the tree depends only on the bytes of the file: two histories that end
in the same bytes end in the same root, and a local edit rewrites one path. Files below ``chunking.ONE_PIECE_LIMIT`` have
no extent tree; their content id is the id of their one chunk. See layerfs-object(5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from layerfs.errors import MalformedObject
from layerfs.ids import ID_BYTES, ChunkId, ExtentId, ObjectId
from layerfs.objects.kinds import Kind
from layerfs.objects.nodes import MAX_LEVEL, Child, NodeBuilder, NodeRule
from layerfs.objects.source import ObjectSink, ObjectSource

_LEAF = struct.Struct("<BQ")
_CHILD = struct.Struct("<Q")
_DATA = 0
_HOLE = 1
MAX_FILE_BYTES = (1 << 63) - 1


def _encode_child(child: Child) -> bytes:
    return _CHILD.pack(child.weight) + child.oid


RULE = NodeRule(
    kind=Kind.EXTENT,
    boundary_bits=6,
    min_items=16,
    max_items=256,
    max_bytes=64 * 1024,
    encode_child=_encode_child,
    key_of_child=False,
)
"""Pieces decide where nodes end; part of logical format 1."""


class Extent(NamedTuple):
    """One piece of a file: ``length`` bytes of a chunk, or a hole when ``chunk`` is None."""

    length: int
    chunk: ChunkId | None


class OldExtents:
    """The extent tree of a file's older version, asked for its pieces and nodes in ascending order of offsets."""

    def __init__(self, source: ObjectSource, root: ExtentId) -> None:
        self._nodes: dict[int, ObjectId] = {}
        self._pieces = self._iter(source, root, 0)
        self._chunk: ObjectId | None = None
        self._end = 0

    def _iter(self, source: ObjectSource, oid: ObjectId, offset: int) -> Iterator[tuple[int, Extent]]:
        node = read_extent_node(source, ExtentId(oid))
        self._nodes[node.level] = oid
        for extent in node.extents:
            offset += extent.length
            yield offset, extent
        for child in node.children:
            yield from self._iter(source, child.oid, offset)
            offset += child.weight

    def chunk_at(self, offset: int) -> ObjectId | None:
        """Return the chunk that lies at or last before an offset."""
        while self._end <= offset:
            found = next(self._pieces, None)
            if found is None:
                break
            self._end, extent = found
            self._chunk = extent.chunk or self._chunk
        return self._chunk

    def nodes(self) -> Mapping[int, ObjectId]:
        """Return the node of each level that was met last."""
        return self._nodes


def build_extents(sink: ObjectSink, extents: Iterable[Extent], before: OldExtents | None = None) -> ExtentId:
    """Put the extent tree of a file and return its root; at least one extent."""
    builder = NodeBuilder(sink, RULE)
    for length, chunk in extents:
        if before is not None:
            for level, oid in before.nodes().items():
                builder.replaces(level, oid)
        add_extent(builder, Extent(length, chunk))
    root = builder.finish()
    if root is None:
        raise MalformedObject("a file without extents has no extent tree")
    return ExtentId(root)


def add_extent(builder: NodeBuilder, extent: Extent) -> None:
    """Append one piece to the tree that a builder makes."""
    length, chunk = extent
    encoded = _LEAF.pack(_HOLE, length) if chunk is None else _LEAF.pack(_DATA, length) + chunk
    builder.add(encoded, encoded, length)


class ExtentNode(NamedTuple):
    """One decoded node: extents on level 0, children above it."""

    level: int
    extents: list[Extent]
    children: list[Child]

    @property
    def length(self) -> int:
        """Bytes of the file below this node."""
        return sum(item.length for item in self.extents) + sum(child.weight for child in self.children)


def decode_extent_node(payload: bytes) -> ExtentNode:
    """Decode an extent node; raise MalformedObject unless it is canonical on its own."""
    if len(payload) < 2:
        raise MalformedObject("malformed extent node: empty")
    level = payload[0]
    at = 1
    end = len(payload)
    if level == 0:
        extents: list[Extent] = []
        while at < end:
            if at + _LEAF.size > end:
                raise MalformedObject("malformed extent node: too short")
            tag, length = _LEAF.unpack_from(payload, at)
            at += _LEAF.size
            chunk = None
            if tag == _DATA:
                chunk = ChunkId(ObjectId(payload[at : at + ID_BYTES]))
                at += ID_BYTES
            if tag not in (_DATA, _HOLE) or not 0 < length <= MAX_FILE_BYTES or at > end:
                raise MalformedObject("malformed extent node: bad extent")
            if chunk is None and extents and extents[-1].chunk is None:
                raise MalformedObject("malformed extent node: two holes in a row")
            extents.append(Extent(length, chunk))
        return ExtentNode(0, extents, [])
    if level > MAX_LEVEL or (end - 1) % (_CHILD.size + ID_BYTES):
        raise MalformedObject("malformed extent node: bad inner node")
    children: list[Child] = []
    while at < end:
        (length,) = _CHILD.unpack_from(payload, at)
        at += _CHILD.size
        if not 0 < length <= MAX_FILE_BYTES:
            raise MalformedObject("malformed extent node: bad child")
        children.append(Child(b"", length, ObjectId(payload[at : at + ID_BYTES])))
        at += ID_BYTES
    return ExtentNode(level, [], children)


def read_extent_node(source: ObjectSource, oid: ExtentId) -> ExtentNode:
    """Read and decode one node."""
    return decode_extent_node(source.read(oid, Kind.EXTENT))


def read_extent_child(source: ObjectSource, child: Child, level: int) -> ExtentNode:
    """Read a child of a node of ``level`` and check that it is what its parent says."""
    node = read_extent_node(source, ExtentId(child.oid))
    if node.level != level - 1 or node.length != child.weight:
        raise MalformedObject("malformed extent node: child does not fit its parent")
    return node


def iter_extents(source: ObjectSource, root: ExtentId, start: int = 0) -> Iterator[tuple[int, Extent]]:
    """Yield (file offset, extent) in order, beginning with the extent that holds offset ``start``."""
    yield from _iter_node(source, read_extent_node(source, root), 0, start)


def _iter_node(
    source: ObjectSource, node: ExtentNode, offset: int, start: int
) -> Iterator[tuple[int, Extent]]:
    for extent in node.extents:
        if offset + extent.length > start:
            yield offset, extent
        offset += extent.length
    for child in node.children:
        if offset + child.weight > start:
            yield from _iter_node(source, read_extent_child(source, child, node.level), offset, start)
        offset += child.weight


def iter_leaves(
    source: ObjectSource,
    oid: ObjectId,
    node: ExtentNode,
    start: int,
    *,
    skip_without: ObjectId,
    offset: int = 0,
) -> Iterator[tuple[int, ExtentNode]]:
    """Yield (file offset, leaf) of the leaves below ``node`` that end after ``start`` and hold a hole or a certain chunk.

    The others are read but not decoded, since a caller that looks for rare pieces looks through all of a file.
    """
    if node.level == 0:
        yield offset, node
        return
    for child in node.children:
        end = offset + child.weight
        if end > start:
            payload = source.read(child.oid, Kind.EXTENT)
            if not (node.level == 1 and _is_plain_leaf(payload) and payload.find(skip_without) < 0):
                below = read_extent_child(source, child, node.level)
                yield from iter_leaves(
                    source, child.oid, below, start, skip_without=skip_without, offset=offset
                )
        offset = end


_ITEM = _LEAF.size + ID_BYTES


def _is_plain_leaf(payload: bytes) -> bool:
    """Whether a leaf holds nothing but chunks: then its items are of one size, and each begins with the tag of data."""
    return payload[:1] == b"\0" and (len(payload) - 1) % _ITEM == 0 and not any(payload[1::_ITEM])

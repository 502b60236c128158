"""Splicing: other bytes in a stored file, at the cost of the change.

Owns the one invariant that makes a local edit worth having: the reference is that of the whole new content put from
scratch. Cuts are made anew from a little before each edit until they meet old ones; nodes of the extent tree that no new
piece reaches are taken over by id. Where a cut may be trusted:

- Cutting may begin at the start of any old piece that lies ``MARGIN`` before the edit. A run of zero pages that reaches
  from there into the edit would have been a hole before, and then no piece would begin inside it.
- Old pieces hold again from the first cut behind the edit that is also an old one, as long as pages begin where they did:
  a piece is handed out only once it is known that no hole lies across its end.
- When bytes were inserted or taken out that are no whole number of pages, holes behind the edit lie elsewhere: they are
  made of whole pages, and lose or gain up to one at both ends; and a run of zeros just too short for a hole may become
  one. Such a run holds a whole chunk of zeros, and all of these have one id. So the leaves behind the edit are read –
  one for some 64 chunks, never the chunks – and each hole and chunk of zeros in them is treated as one more edit.

What an edit is, and files on disk of which only some ranges changed (``capture_ranges``), are the callers' affair.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from layerfs.errors import MalformedObject
from layerfs.ids import ChunkId, ExtentId, ObjectId
from layerfs.kernels import native
from layerfs.objects import chunking
from layerfs.objects.chunking import Block, split_content
from layerfs.objects.content import ContentRef, iter_range, put_stream, read_chunk
from layerfs.objects.entry import Entry
from layerfs.objects.extents import (
    RULE,
    Extent,
    ExtentNode,
    add_extent,
    iter_extents,
    iter_leaves,
    read_extent_child,
    read_extent_node,
)
from layerfs.objects.kinds import Kind, object_id
from layerfs.objects.nodes import NodeBuilder
from layerfs.objects.source import ObjectSink, ObjectSource

NODES_KEPT = 64


class Edit(NamedTuple):
    """``length`` bytes at ``offset`` give way to the blocks of ``data`` (an int: so many zeros); offsets are old ones."""

    offset: int
    length: int
    data: Iterable[Block]


def splice(
    source: ObjectSource, sink: ObjectSink, entry: Entry, offset: int, length: int, data: Iterable[Block]
) -> Entry:
    """Return a file's entry with ``length`` bytes at ``offset`` replaced by ``data``; only size and content differ."""
    ref, size = put_edits(source, sink, entry, [Edit(offset, length, data)])
    return entry._replace(ref=ref, size=size)


def put_edits(source: ObjectSource, sink: ObjectSink, entry: Entry, edits: Sequence[Edit]) -> ContentRef:
    """Put a file's content with all edits made and return its reference.

    Edits are in order, lie within the file and do not overlap; ValueError otherwise.
    """
    end = 0
    for edit in edits:
        if edit.length < 0 or edit.offset < end or edit.offset + edit.length > entry.size:
            raise ValueError("edits out of order or beyond the end")
        end = edit.offset + edit.length
    kept = entry.size - sum(edit.length for edit in edits)
    if kept < chunking.ONE_PIECE_LIMIT:
        return put_stream(sink, _edited(source, entry, edits))
    return _Splice(source, sink, entry, edits).run()


def _edited(source: ObjectSource, entry: Entry, edits: Sequence[Edit]) -> Iterator[Block]:
    at = 0
    for edit in edits:
        yield from iter_range(source, entry, at, edit.offset - at)
        yield from edit.data
        at = edit.offset + edit.length
    yield from iter_range(source, entry, at, entry.size - at)


@cache
def _zero_chunk(minimum: int, average: int, maximum: int) -> ObjectId:
    """Return the id of the chunk that a long run of zeros is cut into, wherever the cutting begins in it."""
    zeros = bytes(4 * maximum)
    return object_id(Kind.CHUNK, zeros[: native.cut_points(zeros, minimum, average, maximum, final=False)[0]])


class _Nodes:
    """A source that keeps the nodes read last: the paths to neighbouring pieces are the same but for their ends."""

    def __init__(self, source: ObjectSource) -> None:
        self._source = source
        self._kept: OrderedDict[ObjectId, bytes] = OrderedDict()

    def read(self, oid: ObjectId, kind: Kind) -> bytes:
        if kind is not Kind.EXTENT:
            return self._source.read(oid, kind)
        found = self._kept.get(oid)
        if found is None:
            found = self._kept[oid] = self._source.read(oid, kind)
            if len(self._kept) > NODES_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(oid)
        return found


class _Splice:
    """One pass over an old extent tree, from left to right, that feeds the builder of the new one.

    ``_shift`` is how much further what comes next lies in the new content; ``_cuts`` are the old cuts behind the last
    edit that were passed so far.
    """

    def __init__(self, source: ObjectSource, sink: ObjectSink, entry: Entry, edits: Sequence[Edit]) -> None:
        self._source = _Nodes(source)
        self._sink = sink
        self._oid = ExtentId(ObjectId(entry.ref))
        self._root = read_extent_node(self._source, self._oid)
        self._size = entry.size
        if self._root.length != entry.size:
            raise MalformedObject("malformed content: extents do not add up to the file's size")
        self._builder = NodeBuilder(sink, RULE)
        self._edits = list(reversed(edits))
        self._shift = 0
        self._cuts: set[int] = set()
        self._like: ChunkId | None = None
        self._doubtful: int | None = -1
        self._margin = chunking.HOLE_MIN + chunking.CHUNK_MAX + 2 * chunking.PAGE

    def run(self) -> ContentRef:
        at = 0
        while at < self._size:
            start = self._cut_before(self._next_doubt(at), at)
            self._keep(self._root, self._oid, 0, at, start, True)
            at = self._cut_anew(start) if start < self._size else start
        root = self._builder.finish()
        assert root is not None
        return ContentRef(root, self._size + self._shift)

    def _next_doubt(self, at: int) -> int | None:
        """Return the next old offset from ``at`` on where old pieces may not hold: an edit, or zeros that moved."""
        edit = self._edits[-1].offset if self._edits else None
        if not self._shift % chunking.PAGE:
            return edit
        if self._doubtful is not None and self._doubtful < at:
            self._doubtful = self._find_zeros(at)
        return min((place for place in (edit, self._doubtful) if place is not None), default=None)

    def _find_zeros(self, at: int) -> int | None:
        zeros = _zero_chunk(chunking.CHUNK_MIN, chunking.CHUNK_AVG, chunking.CHUNK_MAX)
        for offset, leaf in iter_leaves(self._source, self._oid, self._root, at, skip_without=zeros):
            for extent in leaf.extents:
                if offset >= at and extent.chunk in (None, zeros):
                    return offset
                offset += extent.length
        return None

    def _cut_before(self, doubt: int | None, at: int) -> int:
        """Return the old cut from which on to cut anew, not before ``at``; the end of the file if nothing is in doubt."""
        if doubt is None:
            return self._size
        if doubt - self._margin <= at:
            return at
        start, _ = next(iter_extents(self._source, self._oid, doubt - self._margin))
        return max(start, at)

    def _cut_anew(self, start: int) -> int:
        """Add new pieces from the old cut ``start`` on until they meet an old cut where old pieces hold; return that."""
        self._cuts.clear()
        for offset, length, data in split_content(self._pass(start), start + self._shift):
            add_extent(self._builder, Extent(length, None if data is None else self._put(data)))
            old = offset + length - self._shift
            if old in self._cuts:
                return old
        return self._size

    def _put(self, data: memoryview) -> ChunkId:
        return ChunkId(self._sink.put(Kind.CHUNK, bytes(data), like=self._like))

    def _pass(self, at: int) -> Iterator[Block]:
        """Yield the new content from the old cut ``at`` on, edits made as their turn comes."""
        while True:
            edit = self._edits[-1] if self._edits else None
            stop = self._size if edit is None else edit.offset
            yield from self._pass_old(at, stop)
            if edit is None:
                return
            self._edits.pop()
            self._cuts.clear()
            put = 0
            for block in edit.data:
                put += block if isinstance(block, int) else len(block)
                yield block
            self._shift += put - edit.length
            at = edit.offset + edit.length

    def _pass_old(self, at: int, stop: int) -> Iterator[Block]:
        if at == stop:
            return
        for offset, (length, chunk) in iter_extents(self._source, self._oid, at):
            low, high = max(at - offset, 0), min(stop - offset, length)
            if not low:
                self._cuts.add(offset)
            if high == length:
                self._cuts.add(offset + length)
            self._like = chunk or self._like
            if chunk is None:
                yield high - low
            else:
                yield memoryview(read_chunk(self._source, chunk, length))[low:high]
            if offset + high == stop:
                return

    def _keep(self, node: ExtentNode, oid: ObjectId, at: int, low: int, high: int, rightmost: bool) -> None:
        """Feed the old pieces from cut ``low`` to cut ``high`` to the builder, by whole nodes where it can take one."""
        if low == high:
            return
        self._builder.replaces(node.level, oid)
        for extent in node.extents:
            if low <= at < high:
                add_extent(self._builder, extent)
            at += extent.length
        final = len(node.children) - 1
        for number, child in enumerate(node.children):
            end = at + child.weight
            last = rightmost and number == final
            if end > low and at < high:
                whole = low <= at and end <= high
                if not whole or not self._builder.adopt(child, node.level - 1, last):
                    below = read_extent_child(self._source, child, node.level)
                    self._keep(below, child.oid, at, low, high, last)
            at = end

"""Chunking: content of 128 KiB and more as a sequence of pieces – chunks cut by content, and holes.

Owns the cut parameters of format 1 and the hole rule: a maximal run of whole zero pages (4 KiB, counted from the start
of the content) of at least 64 KiB is a hole; a partial last page is data; cutting starts afresh after a hole. The
invariant: the pieces depend on the bytes alone – not on how the content is handed over in blocks, nor on whether zeros
come as bytes or as a known hole. Naming pieces, extent trees and reading files (SEEK_HOLE included) are elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from layerfs.kernels import native

CHUNK_MIN = 8 * 1024
CHUNK_AVG = 16 * 1024
CHUNK_MAX = 32 * 1024
ONE_PIECE_LIMIT = 128 * 1024
HOLE_MIN = 64 * 1024
PAGE = 4096

Block = bytes | memoryview | int


class Piece(NamedTuple):
    """One extent of the content: a chunk with its bytes, or a hole (``data`` is None)."""

    offset: int
    length: int
    data: memoryview | None


def split_content(blocks: Iterable[Block], start: int = 0) -> Iterator[Piece]:
    """Yield the pieces of a content given as blocks, in order and without gaps.

    A block is bytes, or an int: so many zero bytes known without reading them. Most pieces point into the blocks, so
    bytes must not change after they were handed over. Nothing else is kept but less than two chunks, whatever the length.
    With ``start`` the blocks begin at that offset, where the caller knows a piece to begin, and no hole to lie across it.
    """
    splitter = _Splitter(start)
    for block in blocks:
        if isinstance(block, int):
            yield from splitter.add_zeros(block)
        else:
            yield from splitter.add_bytes(memoryview(block))
    yield from splitter.finish()


class _Splitter:
    """Three stages of what has come in but not gone out: the start of a chunk, then undecided zero pages, then part of a
    page. The start of a chunk is known to hold no cut. What is left of a page that begins before ``start`` is data."""

    def __init__(self, start: int) -> None:
        self._offset = start
        self._lead = -start % PAGE
        self._start = b""
        self._zeros = 0
        self._page = b""

    def add_bytes(self, view: memoryview) -> Iterator[Piece]:
        if self._lead:
            lead, view = view[: self._lead], view[self._lead :]
            self._lead -= len(lead)
            yield from self._cut(lead)
        if self._page:
            missing = PAGE - len(self._page)
            self._page += view[:missing]
            view = view[missing:]
            if len(self._page) < PAGE:
                return
            page, self._page = self._page, b""
            yield from self._add_pages(memoryview(page))
        whole = len(view) - len(view) % PAGE
        if whole:
            yield from self._add_pages(view[:whole])
        self._page += view[whole:]

    def add_zeros(self, count: int) -> Iterator[Piece]:
        if self._lead:
            missing = min(self._lead, count)
            yield from self.add_bytes(memoryview(bytes(missing)))
            count -= missing
        if self._page:
            missing = min(PAGE - len(self._page), count)
            yield from self.add_bytes(memoryview(bytes(missing)))
            count -= missing
        whole = count - count % PAGE
        self._zeros += whole
        self._page += bytes(count - whole)

    def finish(self) -> Iterator[Piece]:
        if self._page:
            yield from self._add_data(memoryview(self._page))
        yield from self._settle_zeros()
        yield from self._end_chunk()

    def _add_pages(self, pages: memoryview) -> Iterator[Piece]:
        """Take whole, aligned pages; zero pages wait until the run they belong to has ended."""
        at = 0
        for start, end in native.zero_runs(pages, PAGE):
            if start > at:
                yield from self._add_data(pages[at:start])
            self._zeros += end - start
            at = end
        if at < len(pages):
            yield from self._add_data(pages[at:])

    def _add_data(self, data: memoryview) -> Iterator[Piece]:
        yield from self._settle_zeros()
        yield from self._cut(data)

    def _settle_zeros(self) -> Iterator[Piece]:
        """The run of zero pages has ended: it is a hole, or data like any other."""
        zeros, self._zeros = self._zeros, 0
        if zeros >= HOLE_MIN:
            yield from self._end_chunk()
            yield self._piece(zeros, None)
        elif zeros:
            yield from self._cut(memoryview(bytes(zeros)))

    def _cut(self, data: memoryview) -> Iterator[Piece]:
        if self._start:
            # Only the chunk that began earlier is put together from two places; it ends within its largest size.
            begun = self._start + data[:CHUNK_MAX]
            ends = native.cut_points(begun, CHUNK_MIN, CHUNK_AVG, CHUNK_MAX, final=False)
            if not ends:
                self._start = begun
                return
            data = data[ends[0] - len(self._start) :]
            self._start = b""
            yield self._piece(ends[0], memoryview(begun)[: ends[0]])
        at = 0
        for end in native.cut_points(data, CHUNK_MIN, CHUNK_AVG, CHUNK_MAX, final=False):
            yield self._piece(end - at, data[at:end])
            at = end
        self._start = bytes(data[at:])

    def _end_chunk(self) -> Iterator[Piece]:
        if self._start:
            start, self._start = self._start, b""
            yield self._piece(len(start), memoryview(start))

    def _piece(self, length: int, data: memoryview | None) -> Piece:
        piece = Piece(self._offset, length, data)
        self._offset += length
        return piece

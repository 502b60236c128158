"""Chunking: content of 128 KiB and more as a sequence of pieces – chunks cut by content, and holes.

Owns the cut parameters of format 1 and the hole rule: a maximal run of whole zero pages (4 KiB, counted from the start
of the content) of at least 64 KiB is a hole; a partial last page is data; cutting starts afresh after a hole. The
invariant: the pieces depend on the bytes alone – not on how the content is handed over in blocks, nor on whether zeros
come as bytes or as a known hole. Naming pieces, extent trees and reading files (SEEK_HOLE included) are elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from layerfs import native

CHUNK_MIN = 8 * 1024
CHUNK_AVG = 16 * 1024
CHUNK_MAX = 32 * 1024
ONE_PIECE_LIMIT = 128 * 1024
HOLE_MIN = 64 * 1024
PAGE = 4096

_BATCH = 4 * 1024 * 1024

Block = bytes | memoryview | int


class Piece(NamedTuple):
    """One extent of the content: a chunk with its bytes, or a hole (``data`` is None)."""

    offset: int
    length: int
    data: memoryview | None


def split_content(blocks: Iterable[Block]) -> Iterator[Piece]:
    """Yield the pieces of a content given as blocks, in order and without gaps.

    A block is bytes, or an int: so many zero bytes known without reading them. Bytes must not change after they were
    handed over (pieces point into them). Memory stays within a few times 4 MiB plus one block, whatever the length.
    """
    splitter = _Splitter()
    for block in blocks:
        if isinstance(block, int):
            yield from splitter.add_zeros(block)
        else:
            view = memoryview(block)
            for start in range(0, len(view), _BATCH):
                yield from splitter.add_bytes(view[start : start + _BATCH])
    yield from splitter.finish()


class _Splitter:
    """Three stages of what has come in but not gone out: uncut data, then undecided zero pages, then part of a page."""

    def __init__(self) -> None:
        self._offset = 0
        self._data: list[bytes | memoryview] = []
        self._data_length = 0
        self._zeros = 0
        self._page = bytearray()

    def add_bytes(self, view: memoryview) -> Iterator[Piece]:
        if self._page:
            missing = PAGE - len(self._page)
            self._page += view[:missing]
            view = view[missing:]
            if len(self._page) < PAGE:
                return
            page, self._page = bytes(self._page), bytearray()
            yield from self._add_pages(memoryview(page))
        whole = len(view) - len(view) % PAGE
        if whole:
            yield from self._add_pages(view[:whole])
        self._page += view[whole:]

    def add_zeros(self, count: int) -> Iterator[Piece]:
        if self._page:
            missing = min(PAGE - len(self._page), count)
            yield from self.add_bytes(memoryview(bytes(missing)))
            count -= missing
        whole = count - count % PAGE
        self._zeros += whole
        self._page += bytes(count - whole)

    def finish(self) -> Iterator[Piece]:
        if self._page:
            yield from self._add_data(memoryview(bytes(self._page)))
        if self._zeros >= HOLE_MIN:
            yield from self._cut(final=True)
            yield self._take_hole()
        else:
            self._keep_zeros()
            yield from self._cut(final=True)

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
        if self._zeros >= HOLE_MIN:
            yield from self._cut(final=True)
            yield self._take_hole()
        else:
            self._keep_zeros()
        self._data.append(data)
        self._data_length += len(data)
        if self._data_length >= _BATCH:
            yield from self._cut(final=False)

    def _keep_zeros(self) -> None:
        if self._zeros:
            self._data.append(bytes(self._zeros))
            self._data_length += self._zeros
            self._zeros = 0

    def _take_hole(self) -> Piece:
        hole = Piece(self._offset, self._zeros, None)
        self._offset += self._zeros
        self._zeros = 0
        return hole

    def _cut(self, final: bool) -> Iterator[Piece]:
        if not self._data_length:
            return
        content = memoryview(self._data[0] if len(self._data) == 1 else b"".join(self._data))
        start = 0
        for end in native.cut_points(content, CHUNK_MIN, CHUNK_AVG, CHUNK_MAX, final):
            yield Piece(self._offset, end - start, content[start:end])
            self._offset += end - start
            start = end
        self._data = [content[start:]] if start < len(content) else []
        self._data_length = len(content) - start

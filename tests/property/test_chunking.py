"""Chunking: pieces depend on the content alone, and are what a plain reading of the rules gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from layerfs.kernels import native
from layerfs.kernels.native_reference import plain_cut_points
from layerfs.objects.chunking import CHUNK_AVG, CHUNK_MAX, CHUNK_MIN, HOLE_MIN, PAGE, split_content

Shape = list[tuple[int, bool]]

NOISE = random.Random(5).randbytes(700_000)

lengths = st.one_of(
    st.integers(1, 300_000),
    st.integers(1, 40).map(lambda pages: pages * PAGE),
    st.sampled_from([1, PAGE - 1, PAGE, HOLE_MIN - PAGE, HOLE_MIN - 1, HOLE_MIN, HOLE_MIN + 1, 2 * HOLE_MIN]),
)
shapes = st.lists(st.tuples(lengths, st.booleans()), max_size=7)


def content_of(shape: Shape) -> bytes:
    return b"".join(bytes(length) if zero else NOISE[:length] for length, zero in shape)


def plain_pieces(content: bytes) -> list[tuple[int, int, bool]]:
    """Apply the rules to the whole content, one page and one byte at a time: (offset, length, is a hole)."""
    pages = len(content) // PAGE
    zero = [not any(content[page * PAGE : (page + 1) * PAGE]) for page in range(pages)] + [False]
    holes: list[tuple[int, int]] = []
    start = 0
    for page, is_zero in enumerate(zero):
        if not is_zero:
            if (page - start) * PAGE >= HOLE_MIN:
                holes.append((start * PAGE, page * PAGE))
            start = page + 1
    pieces: list[tuple[int, int, bool]] = []
    at = 0
    for hole_start, hole_end in [*holes, (len(content), len(content))]:
        for end in plain_cut_points(content[at:hole_start], CHUNK_MIN, CHUNK_AVG, CHUNK_MAX, True):
            last = pieces[-1][0] + pieces[-1][1] if pieces else 0
            pieces.append((last, at + end - last, False))
        if hole_end > hole_start:
            pieces.append((hole_start, hole_end - hole_start, True))
        at = hole_end
    return pieces


def pieces_of(blocks: list[bytes | int], content: bytes) -> list[tuple[int, int, bool]]:
    result: list[tuple[int, int, bool]] = []
    for piece in split_content(blocks):
        if piece.data is not None:
            assert piece.data == content[piece.offset : piece.offset + piece.length]
            assert piece.length == len(piece.data)
        result.append((piece.offset, piece.length, piece.data is None))
    return result


def cut_at(content: bytes, places: list[int], tell_zeros: bool) -> Iterator[bytes | int]:
    """Cut the content into blocks; with ``tell_zeros`` those that are all zeros are given as their length."""
    bounds = sorted({place % (len(content) + 1) for place in places} | {0, len(content)})
    for start, end in pairwise(bounds):
        block = content[start:end]
        yield len(block) if tell_zeros and not any(block) else block


@settings(max_examples=60, deadline=None)
@given(shape=shapes, places=st.lists(st.integers(0, 1 << 21), max_size=12), tell_zeros=st.booleans())
def test_pieces_are_those_of_the_whole(shape: Shape, places: list[int], tell_zeros: bool) -> None:
    content = content_of(shape)
    assert pieces_of(list(cut_at(content, places, tell_zeros)), content) == plain_pieces(content)


@settings(max_examples=60, deadline=None)
@given(shape=shapes)
def test_known_zeros_and_read_zeros_are_the_same(shape: Shape) -> None:
    content = content_of(shape)
    known: list[bytes | int] = [length if zero else NOISE[:length] for length, zero in shape]
    assert pieces_of(known, content) == pieces_of([content], content)


@settings(max_examples=30, deadline=None)
@given(shape=shapes, places=st.lists(st.integers(0, 1 << 21), max_size=5))
def test_twin_splits_like_the_kernel(shape: Shape, places: list[int]) -> None:
    content = content_of(shape)
    blocks = list(cut_at(content, places, tell_zeros=True))
    before = native.available()
    expected = pieces_of(blocks, content)
    native.select(kernel=False)
    try:
        assert pieces_of(blocks, content) == expected
    finally:
        native.select(kernel=before)


def test_blocks_of_one_byte_around_a_hole() -> None:
    content = NOISE[:5000] + bytes(HOLE_MIN + 2 * PAGE) + NOISE[:3000]
    assert pieces_of([content[at : at + 1] for at in range(len(content))], content) == plain_pieces(content)


def test_a_huge_sparse_file_costs_nothing() -> None:
    hole = 200 << 30
    pieces = [(piece.offset, piece.length, piece.data is None) for piece in split_content([b"x" * PAGE, hole, b"y"])]
    assert pieces == [(0, PAGE, False), (PAGE, hole, True), (PAGE + hole, 1, False)]


def test_empty_content_has_no_pieces() -> None:
    assert list(split_content([])) == []
    assert list(split_content([b"", 0, b""])) == []


def test_only_zeros() -> None:
    assert [(p.offset, p.length, p.data) for p in split_content([HOLE_MIN])] == [(0, HOLE_MIN, None)]
    assert [(p.offset, p.length) for p in split_content([HOLE_MIN + 7])] == [(0, HOLE_MIN), (HOLE_MIN, 7)]
    assert [p.data is None for p in split_content([HOLE_MIN - 1])] == [False, False]

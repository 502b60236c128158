"""Splicing: whatever is edited, the content id is that of the new bytes put from scratch, and the cost is the edit's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from layerfs.objects import chunking, content, extents, splice
from layerfs.objects.content import iter_pieces, put_blocks, put_stream, read_range
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.kinds import Kind
from layerfs.objects.memory import MemoryObjects
from layerfs.objects.nodes import NodeRule
from layerfs.objects.source import ObjectSink
from layerfs.objects.splice import Edit, put_edits

NOISE = random.Random(19).randbytes(1 << 20)


class Scale(NamedTuple):
    """Parameters of cutting and of nodes: the real ones, or small ones that make tall trees of short files."""

    page: int
    chunk_min: int
    chunk_avg: int
    chunk_max: int
    hole_min: int
    one_piece: int
    rule: NodeRule


REAL = Scale(
    chunking.PAGE,
    chunking.CHUNK_MIN,
    chunking.CHUNK_AVG,
    chunking.CHUNK_MAX,
    chunking.HOLE_MIN,
    chunking.ONE_PIECE_LIMIT,
    extents.RULE,
)
SMALL = Scale(64, 64, 256, 1024, 2048, 4096, extents.RULE._replace(boundary_bits=2, min_items=2, max_items=6))


@contextmanager
def at_scale(scale: Scale) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunking, "PAGE", scale.page)
        patch.setattr(chunking, "CHUNK_MIN", scale.chunk_min)
        patch.setattr(chunking, "CHUNK_AVG", scale.chunk_avg)
        patch.setattr(chunking, "CHUNK_MAX", scale.chunk_max)
        patch.setattr(chunking, "HOLE_MIN", scale.hole_min)
        for module in (chunking, content):
            patch.setattr(module, "ONE_PIECE_LIMIT", scale.one_piece)
        for module in (extents, splice):
            patch.setattr(module, "RULE", scale.rule)
        yield


def file_of(sink: ObjectSink, data: bytes) -> Entry:
    ref, size = put_stream(sink, [data])
    return Entry(EntryKind.FILE, 0o644, 0, 0, 0, size, ref)


def check(scale: Scale, old: bytes, edits: list[tuple[int, int, bytes]]) -> None:
    """Make the edits (which may lie anywhere) one after the other, then those that are in order at once."""
    with at_scale(scale):
        store = MemoryObjects()
        entry, data = file_of(store, old), old
        for place, length, new in edits:
            offset = place % (len(data) + 1)
            length = min(length, len(data) - offset)
            data = data[:offset] + new + data[offset + length :]
            entry = splice.splice(
                store, store, entry, offset, length, [new] if new.strip(b"\0") else [len(new)]
            )
            assert (entry.ref, entry.size) == put_stream(store, [data])
        assert (
            b"".join(
                bytes(n) if part is None else part for n, part in iter_pieces(store, entry.ref, entry.size)
            )
            == data
        )
        several: list[Edit] = []
        data, at = b"", 0
        for place, length, new in sorted(
            (place % (len(old) + 1), length, new) for place, length, new in edits
        ):
            if place >= at:
                length = min(length, len(old) - place)
                several.append(Edit(place, length, [new]))
                data += old[at:place] + new
                at = place + length
        data += old[at:]
        assert put_edits(store, store, file_of(store, old), several) == put_stream(store, [data])


def shapes(scale: Scale, longest: int) -> st.SearchStrategy[bytes]:
    page, hole = scale.page, scale.hole_min
    sizes = st.one_of(
        st.integers(0, longest),
        st.integers(0, longest // page).map(lambda pages: pages * page),
        st.sampled_from([1, page - 1, page + 1]),
        st.sampled_from(
            [hole - page, hole - 1, hole, hole + 1, hole + page - 1, hole + page, hole + 2 * page - 1]
        ),
        st.sampled_from([scale.one_piece - 1, scale.one_piece]),
    )
    part = st.tuples(sizes, st.sampled_from([0, 0, 1, 7777])).map(
        lambda drawn: NOISE[drawn[1] : drawn[1] + drawn[0]] if drawn[1] else bytes(drawn[0])
    )
    return st.lists(part, max_size=7).map(b"".join)


def edits_of(scale: Scale, longest: int) -> st.SearchStrategy[list[tuple[int, int, bytes]]]:
    place = st.one_of(
        st.integers(0, 1 << 30), st.integers(0, 400).map(lambda pages: pages * scale.page), st.integers(-3, 3)
    )
    length = st.one_of(
        st.just(0), st.integers(0, 3), st.integers(0, longest), st.just(scale.hole_min), st.just(1 << 40)
    )
    return st.lists(st.tuples(place, length, shapes(scale, longest // 4)), min_size=1, max_size=4)


@settings(max_examples=400, deadline=None)
@given(old=shapes(SMALL, 30_000), edits=edits_of(SMALL, 8_000))
@example(
    old=NOISE[:9000] + bytes(4096) + NOISE[:70_000] + bytes(2048 + 63) + NOISE[:9000], edits=[(5, 0, b"x")]
)
@example(old=NOISE[:9000] + bytes(2047) + NOISE[:9000], edits=[(9000, 0, bytes(1)), (0, 1, b"")])
@example(old=bytes(100_000), edits=[(50_000, 1, b"x"), (50_000, 1, b"\0"), (50_000, 100_000, b"")])
def test_small_scale(old: bytes, edits: list[tuple[int, int, bytes]]) -> None:
    check(SMALL, old, edits)


@settings(max_examples=60, deadline=None)
@given(old=shapes(REAL, 400_000), edits=edits_of(REAL, 100_000))
def test_real_scale(old: bytes, edits: list[tuple[int, int, bytes]]) -> None:
    check(REAL, old, edits)


@pytest.mark.parametrize("shift", [1, 5, 20, 23, 40, 63])
@pytest.mark.parametrize("length", [2047, 2048, 2068, 2088, 2111, 2112])
def test_zeros_become_a_hole_or_cease_to_be_one_far_behind_the_edit(shift: int, length: int) -> None:
    old = NOISE[:25_001] + bytes(length) + NOISE[:25_000] + bytes(length) + NOISE[:9_000]
    check(SMALL, old, [(0, 0, NOISE[:shift])])
    check(SMALL, old, [(0, shift, b"")])


class Counting(MemoryObjects):
    """Objects that count what is read and what is new, by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.read_kinds: list[Kind] = []
        self.new_bytes = 0

    def put(self, kind: Kind, payload: bytes, *, like: object = None) -> object:  # type: ignore[override]
        known = len(self.objects)
        oid = super().put(kind, payload)
        self.new_bytes += len(payload) if len(self.objects) > known else 0
        return oid

    def read(self, oid, kind):  # type: ignore[no-untyped-def]
        self.read_kinds.append(kind)
        return super().read(oid, kind)

    def forget(self) -> None:
        self.read_kinds, self.new_bytes, self.puts = [], 0, 0


def long_file(store: Counting, megabytes: int) -> Entry:
    generator = random.Random(megabytes)
    ref, size = put_blocks(store, (generator.randbytes(1 << 20) for _ in range(megabytes)))
    return Entry(EntryKind.FILE, 0o644, 0, 0, 0, size, ref)


@pytest.mark.parametrize(
    ("place", "length", "data"),
    [
        (0.5, 1, b"x"),
        (0.5, 4096, NOISE[:4096]),
        (0.3, 0, NOISE[:4096]),
        (0.3, 8192, b""),
        (0.0, 1, b"x"),
        (1.0, 0, b"x"),
    ],
)
def test_cost_is_the_edit_not_the_file(place: float, length: int, data: bytes) -> None:
    costs = []
    for megabytes in (4, 64):
        store = Counting()
        entry = long_file(store, megabytes)
        store.forget()
        splice.splice(store, store, entry, int(entry.size * place), length, [data])
        chunks = store.read_kinds.count(Kind.CHUNK)
        nodes = store.read_kinds.count(Kind.EXTENT)
        assert chunks <= 30 and nodes <= 12 and store.puts <= 45 and store.new_bytes <= 200_000
        costs.append(chunks)
    assert abs(costs[0] - costs[1]) <= 25


def test_bytes_that_shift_pages_read_leaves_but_no_chunks_behind_them() -> None:
    store = Counting()
    entry = long_file(store, 64)
    store.forget()
    splice.splice(store, store, entry, 0, 0, [b"x"])
    assert store.read_kinds.count(Kind.CHUNK) <= 20
    assert store.new_bytes <= 200_000
    assert store.read_kinds.count(Kind.EXTENT) <= 64 * 64 // 16 + 20


@pytest.mark.parametrize("step", [-1, 0, 1])
def test_offsets_around_four_gigabytes(step: int) -> None:
    store = Counting()
    hole = (1 << 32) - 64 * 1024
    blocks: list[bytes | int] = [NOISE[:100_000], hole - 100_000, NOISE]
    ref, size = put_blocks(store, blocks)
    entry = Entry(EntryKind.FILE, 0o644, 0, 0, 0, size, ref)
    at = (1 << 32) + step
    inside = at - hole
    edited = splice.splice(store, store, entry, at, 1, [b"?!"])
    assert (edited.ref, edited.size) == put_blocks(
        store, [*blocks[:2], NOISE[:inside] + b"?!" + NOISE[inside + 1 :]]
    )
    assert (
        read_range(store, edited, at - 1, 4)
        == NOISE[inside - 1 : inside] + b"?!" + NOISE[inside + 1 : inside + 2]
    )
    in_hole = splice.splice(store, store, entry, (1 << 31) + step, 1, [b"x"])
    before, after = (1 << 31) + step - 100_000, hole - (1 << 31) - step - 1
    assert (in_hole.ref, in_hole.size) == put_blocks(store, [NOISE[:100_000], before, b"x", after, NOISE])


def test_edits_out_of_order_are_refused() -> None:
    store = MemoryObjects()
    entry = file_of(store, NOISE)
    for edits in ([Edit(5, 3, []), Edit(7, 1, [])], [Edit(len(NOISE), 1, [])], [Edit(0, -1, [])]):
        with pytest.raises(ValueError, match="out of order"):
            put_edits(store, store, entry, edits)

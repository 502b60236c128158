"""Capture of dirty ranges: the content of a whole capture, from the ranges alone."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerfs.capture.dirtyranges import Range, capture_ranges
from layerfs.objects.content import put_stream
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.memory import MemoryObjects

NOISE = random.Random(23).randbytes(600_000)


def entry_of(store: MemoryObjects, data: bytes) -> Entry:
    ref, size = put_stream(store, [data])
    return Entry(EntryKind.FILE, 0o644, 0, 0, 0, size, ref)


@settings(max_examples=60, deadline=None)
@given(
    old=st.integers(0, 600_000),
    new=st.integers(0, 600_000),
    changed=st.lists(st.tuples(st.integers(0, 700_000), st.integers(0, 120_000), st.booleans()), max_size=4),
)
def test_ranges_give_what_a_whole_capture_gives(
    tmp_path_factory: pytest.TempPathFactory, old: int, new: int, changed: list[tuple[int, int, bool]]
) -> None:
    store = MemoryObjects()
    before = entry_of(store, NOISE[:old])
    data = bytearray(NOISE[: min(old, new)].ljust(new, b"\0"))
    for offset, length, zero in changed:
        end = min(offset + length, new)
        if offset < end:
            data[offset:end] = bytes(end - offset) if zero else NOISE[::-1][: end - offset]
    path = tmp_path_factory.mktemp("ranges") / "f"
    path.write_bytes(data)
    with path.open("rb") as file:
        found = capture_ranges(
            store, store, before, file.fileno(), [Range(at, length) for at, length, _ in changed]
        )
    assert found.stable
    assert found.content == put_stream(store, [bytes(data)])


def test_nothing_outside_the_ranges_is_read(tmp_path: Path) -> None:
    store = MemoryObjects()
    before = entry_of(store, NOISE)
    path = tmp_path / "f"
    path.write_bytes(bytes(300_000) + b"x" + NOISE[300_001:])
    with path.open("rb") as file:
        found = capture_ranges(store, store, before, file.fileno(), [Range(300_000, 1)])
    assert found.content == put_stream(store, [NOISE[:300_000] + b"x" + NOISE[300_001:]])


def test_growth_by_a_hole_is_not_read(tmp_path: Path) -> None:
    store = MemoryObjects()
    before = entry_of(store, NOISE)
    path = tmp_path / "f"
    path.write_bytes(NOISE)
    os.truncate(path, 1 << 40)
    with path.open("rb") as file:
        found = capture_ranges(store, store, before, file.fileno(), [])
    assert found.content == put_stream(store, [NOISE, (1 << 40) - len(NOISE)])


def test_a_file_that_changes_meanwhile_is_not_stable(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(NOISE)

    class Touching(MemoryObjects):
        def read(self, oid, kind):  # type: ignore[no-untyped-def]
            os.truncate(path, 200_000)
            return super().read(oid, kind)

    store = Touching()
    before = entry_of(store, NOISE)
    with path.open("rb") as file:
        assert not capture_ranges(store, store, before, file.fileno(), [Range(500_000, 5)]).stable


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    store = MemoryObjects()
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="not a regular file"):
            capture_ranges(store, store, entry_of(store, NOISE), directory, [])
    finally:
        os.close(directory)

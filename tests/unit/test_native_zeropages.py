"""Zero pages: maximal runs of whole zero pages, nothing else."""

from __future__ import annotations

import pytest
from kernels import load, on_both

PAGE = 4096


@on_both
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (bytes(PAGE - 1), []),
        (bytes(PAGE), [(0, PAGE)]),
        (bytes(3 * PAGE + 5), [(0, 3 * PAGE)]),
        (b"x" + bytes(3 * PAGE - 1), [(PAGE, 3 * PAGE)]),
        (bytes(PAGE - 1) + b"x" + bytes(PAGE), [(PAGE, 2 * PAGE)]),
        (bytes(2 * PAGE) + b"\x01" * PAGE + bytes(PAGE), [(0, 2 * PAGE), (3 * PAGE, 4 * PAGE)]),
        (bytes(PAGE + 8) + b"\x80" + bytes(2 * PAGE), [(0, PAGE), (2 * PAGE, 3 * PAGE)]),
    ],
)
def test_runs(which: str, data: bytes, expected: list[tuple[int, int]]) -> None:
    assert load(which).zero_runs(data, PAGE) == expected


@on_both
def test_one_set_bit_anywhere_makes_a_page_data(which: str) -> None:
    zero_runs = load(which).zero_runs
    for at in range(0, PAGE, 61):
        page = bytearray(PAGE)
        page[at] = 1 << at % 8
        assert zero_runs(page, PAGE) == []


@on_both
def test_unaligned_memory_is_taken(which: str) -> None:
    assert load(which).zero_runs(memoryview(b"x" + bytes(2 * PAGE))[1:], PAGE) == [(0, 2 * PAGE)]


@on_both
@pytest.mark.parametrize("page", [0, -4096, 32, 100])
def test_page_sizes_that_make_no_sense(which: str, page: int) -> None:
    with pytest.raises(ValueError, match="page size"):
        load(which).zero_runs(b"", page)

"""Cut points: the kernel, the twin, the plain statement of the rule and the fastcdc package all agree."""

from __future__ import annotations

import hashlib

import pytest
from kernels import load, on_both

from layerfs.kernels.native_reference import plain_cut_points

LAYERFS = (8192, 16384, 32768)
SIZES = [
    LAYERFS,
    (64, 256, 1024),
    (64, 300, 1024),
    (100, 361, 1025),
    (64, 65536, 131072),
    (2048, 8192, 65536),
    (2048, 8193, 70001),
    (4096, 1024, 1024),
    (70000, 1024, 1024),
    (70000, 100000, 80000),
    (1000, 5792, 5000),
    (1000, 5793, 5000),
]


def random_bytes(seed: str, length: int) -> bytes:
    return hashlib.shake_128(seed.encode()).digest(length)


def contents() -> list[bytes]:
    noise = random_bytes("noise", 150_000)
    return [
        b"",
        b"x",
        noise[:63],
        noise[:8192],
        noise[:8193],
        noise,
        bytes(100_000),
        b"\xff" * 100_000,
        noise[:5000] * 20,
        b"".join(b"line %d of some text\n" % number for number in range(5_000)),
        noise[:30_000] + bytes(70_000) + noise[30_000:60_000],
    ]


def by_package(data: bytes, sizes: tuple[int, int, int]) -> list[int]:
    import fastcdc

    return [chunk.offset + chunk.length for chunk in fastcdc.fastcdc(data, *sizes)]


@on_both
@pytest.mark.parametrize("sizes", SIZES)
def test_cuts_are_those_of_the_package(which: str, sizes: tuple[int, int, int]) -> None:
    for data in contents():
        assert load(which).cut_points(data, *sizes, True) == by_package(data, sizes)


@pytest.mark.parametrize("sizes", SIZES)
def test_plain_statement_agrees_with_the_package(sizes: tuple[int, int, int]) -> None:
    for data in contents():
        assert plain_cut_points(data, *sizes, True) == by_package(data, sizes)


@on_both
@pytest.mark.parametrize("sizes", SIZES)
def test_undecided_last_piece_is_left_out(which: str, sizes: tuple[int, int, int]) -> None:
    for data in contents():
        assert load(which).cut_points(data, *sizes, False) == plain_cut_points(data, *sizes, False)


@on_both
def test_cut_at_the_very_end_is_decided_by_content(which: str) -> None:
    whole = random_bytes("end", 200_000)
    for end in load(which).cut_points(whole, *LAYERFS, True)[:-1]:
        assert load(which).cut_points(whole[:end], *LAYERFS, False)[-1] == end
        before = load(which).cut_points(whole[: end - 1], *LAYERFS, False)
        assert not before or before[-1] < end - 1


@on_both
@pytest.mark.parametrize("step", [1000, 40_000, 100_000])
def test_streaming_with_the_tail_carried_over_cuts_as_the_whole(which: str, step: int) -> None:
    whole = random_bytes("stream", 300_000) + bytes(100_000) + random_bytes("more", 50_000)
    ends: list[int] = []
    carried, offset = b"", 0
    for start in range(0, len(whole), step):
        buffer = carried + whole[start : start + step]
        final = start + step >= len(whole)
        cuts = load(which).cut_points(buffer, *LAYERFS, final)
        ends += [offset + cut for cut in cuts]
        used = cuts[-1] if cuts else 0
        carried, offset = buffer[used:], offset + used
    assert ends == load(which).cut_points(whole, *LAYERFS, True)


@on_both
@pytest.mark.parametrize(
    "sizes", [(63, 256, 1024), (64, 255, 1024), (64, 256, 1023), (1 << 27, 256, 1024), (64, 1 << 29, 1024)]
)
def test_sizes_the_package_refuses(which: str, sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="chunk size out of range"):
        load(which).cut_points(b"", *sizes, True)


@on_both
def test_any_contiguous_buffer_is_taken(which: str) -> None:
    data = random_bytes("buffer", 100_000)
    expected = load(which).cut_points(data, *LAYERFS, True)
    assert load(which).cut_points(bytearray(data), *LAYERFS, True) == expected
    assert load(which).cut_points(memoryview(b"x" + data)[1:], *LAYERFS, True) == expected

"""Line diffs: small cases by hand, git as the oracle for many, and a bound on the time of bad ones."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from kernels import load, on_both

Hunks = list[tuple[int, int, int, int]]

GIT_DIFF = ["git", "diff", "--no-index", "--no-color", "--no-ext-diff", "--text", "-U1", "--diff-algorithm=myers"]


@on_both
@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (b"", b"", []),
        (b"a\n", b"a\n", []),
        (b"", b"a\nb\n", [(0, 0, 0, 2)]),
        (b"a\nb\n", b"", [(0, 2, 0, 0)]),
        (b"a\n", b"a", [(0, 1, 0, 1)]),
        (b"a\rb\n", b"a\rc\n", [(0, 1, 0, 1)]),
        (b"a\x0bb\x0cc\xe2\x80\xa8d\n", b"a\x0bb\x0cc\xe2\x80\xa8d\n\n", [(1, 1, 1, 2)]),
        (b"1\n2\n3\n4\n5\n", b"1\n2\nx\n4\n5\n6\n", [(2, 3, 2, 3), (5, 5, 5, 6)]),
        (b"a\nb\na\nb\n", b"a\nb\na\nb\na\nb\n", [(4, 4, 4, 6)]),
        (b"x\n\nx\n\n", b"x\n\n", [(2, 4, 2, 2)]),
    ],
)
def test_hunks(which: str, a: bytes, b: bytes, expected: Hunks) -> None:
    assert load(which).diff_lines(a, b, False) == expected


@on_both
def test_indent_heuristic_moves_a_group_to_a_block_border(which: str) -> None:
    old = b"/*\n * c\n */\n"
    new = b"/*\n * b\n */\n/*\n * c\n */\n"
    assert load(which).diff_lines(old, new, False) == [(1, 1, 1, 4)]
    assert load(which).diff_lines(old, new, True) == [(0, 0, 0, 3)]


def split(text: bytes) -> list[bytes]:
    lines = text.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def apply_hunks(a: bytes, b: bytes, hunks: Hunks) -> bytes:
    """Rebuild ``b`` from ``a`` and the lines of ``b`` inside hunks only."""
    old, new = split(a), split(b)
    result: list[bytes] = []
    at = 0
    for a_start, a_end, b_start, b_end in hunks:
        result += old[at:a_start] + new[b_start:b_end]
        at = a_end
    return b"".join(result + old[at:])


def random_pair(choose: random.Random) -> tuple[bytes, bytes]:
    size = choose.choice([4, 20, 100, 400])
    pools = [
        [b"%d\n" % number for number in range(choose.choice([2, 3, 6, 20]))],
        [b"%d\n" % number for number in range(size)],
        [b"\n", b"}\n", b"    }\n", b"\tx\n", b"  y\n"]
        + [b" " * choose.choice([0, 4, 8]) + b"line %d\n" % number for number in range(size // 2)],
    ]
    pool = choose.choice(pools)
    a = [choose.choice(pool) for _ in range(size)]
    b = a[:] if choose.random() < 0.8 else [choose.choice(pool) for _ in range(size)]
    for _ in range(choose.choice([1, 2, 5, 20])):
        at, length = choose.randrange(len(b) + 1), choose.choice([1, 1, 2, 5, 20])
        match choose.randrange(4):
            case 0:
                del b[at : at + length]
            case 1:
                b[at:at] = [choose.choice(pool) for _ in range(length)]
            case 2:
                source = choose.randrange(len(b) + 1)
                b[at:at] = b[source : source + length]
            case _:
                b[at : at + length] = [choose.choice(pool) for _ in range(length)]
    whole_a, whole_b = b"".join(a), b"".join(b)
    if choose.random() < 0.2:
        whole_a = whole_a.removesuffix(b"\n")
    if choose.random() < 0.2:
        whole_b = whole_b.removesuffix(b"\n")
    return whole_a, whole_b


def shuffled_pair(choose: random.Random) -> tuple[bytes, bytes]:
    """Return texts large and different enough that the limits on cost decide."""
    size = 6000
    kinds = choose.choice([4, 60, size])
    a = [b"%d\n" % choose.randrange(kinds) for _ in range(size)]
    blocks = [a[start : start + 60] for start in range(0, size, 60)]
    choose.shuffle(blocks)
    b = [line for block in blocks for line in block]
    for _ in range(size // 10):
        b[choose.randrange(size)] = b"%d\n" % choose.randrange(kinds)
    return b"".join(a), b"".join(b)


def git_hunks(scratch: Path, a: bytes, b: bytes, indent_heuristic: bool) -> Hunks:
    """Read the hunks off ``git diff``, with one line of context: without context git cuts equal ends off first."""
    (scratch / "a").write_bytes(a)
    (scratch / "b").write_bytes(b)
    heuristic = "--indent-heuristic" if indent_heuristic else "--no-indent-heuristic"
    output = subprocess.run(
        [*GIT_DIFF, heuristic, "a", "b"],
        cwd=scratch,
        stdout=subprocess.PIPE,
        check=False,
        env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"},
    ).stdout
    hunks: list[list[int]] = []
    positions: list[int] | None = None
    open_hunk: list[int] | None = None
    for line in output.split(b"\n"):
        if line.startswith(b"@@"):
            positions = [first_line(part) for part in line.split(b" ")[1:3]]
            open_hunk = None
        elif positions is not None and line[:1] in (b" ", b"-", b"+"):
            old, new = line[:1] in b" -", line[:1] in b" +"
            if old and new:
                open_hunk = None
            elif open_hunk is None:
                open_hunk = [positions[0], positions[0], positions[1], positions[1]]
                hunks.append(open_hunk)
            positions[0] += old
            positions[1] += new
            if open_hunk is not None:
                open_hunk[1], open_hunk[3] = positions
    return [(h[0], h[1], h[2], h[3]) for h in hunks]


def first_line(part: bytes) -> int:
    start, _, count = part[1:].partition(b",")
    return int(start) - (count != b"0")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@on_both
@pytest.mark.parametrize("indent_heuristic", [False, True])
def test_hunks_are_those_of_git(which: str, indent_heuristic: bool, tmp_path: Path) -> None:
    kernels = load(which)
    pairs = [random_pair(random.Random(seed)) for seed in range(80)]
    pairs += [shuffled_pair(random.Random(seed)) for seed in range(3)]
    for number, (a, b) in enumerate(pairs):
        hunks = kernels.diff_lines(a, b, indent_heuristic)
        assert apply_hunks(a, b, hunks) == b
        assert hunks == git_hunks(tmp_path, a, b, indent_heuristic), f"pair {number}"


def test_twin_and_kernel_agree() -> None:
    kernel, twin = load("kernel"), load("twin")
    for seed in range(1000, 1200):
        a, b = random_pair(random.Random(seed))
        for heuristic in (False, True):
            assert kernel.diff_lines(a, b, heuristic) == twin.diff_lines(a, b, heuristic), f"seed {seed}"


@pytest.mark.parametrize("kinds", [2, 50, 50_000, 100_000_000])
def test_unlike_texts_do_not_take_quadratic_time(kinds: int) -> None:
    kernel = load("kernel")
    choose = random.Random(kinds)
    a, b = (b"".join(b"%d\n" % choose.randrange(kinds) for _ in range(100_000)) for _ in range(2))
    start = time.process_time()
    hunks = kernel.diff_lines(a, b, True)
    assert time.process_time() - start < 20
    assert apply_hunks(a, b, hunks) == b

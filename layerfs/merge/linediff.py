"""Line differences between two byte strings: where lines begin, and which ranges of lines changed.

Invariant: lines are split on ``\\n`` only and keep their terminator, so ``b"".join(split_lines(x)) == x`` for any bytes.
Hunks are ascending, never touch each other, and everything between them is equal line by line. One fixed algorithm
serves diff, merge and blame, because where equal lines repeat, the three must choose as each other and as git do.

Elsewhere: the algorithm itself (``native.diff_lines``, a C kernel with a plain twin); what a hunk means for a merge
(``textmerge``) or for authorship (``blame``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from layerfs.kernels import native


class Hunk(NamedTuple):
    """Lines ``a_start:a_end`` of the old text stand where ``b_start:b_end`` of the new text are; half open, from 0."""

    a_start: int
    a_end: int
    b_start: int
    b_end: int


Differ = Callable[[bytes, bytes], list[Hunk]]


def split_lines(data: bytes) -> list[bytes]:
    """Split on ``\\n`` only, keeping it; the last line may lack it, and empty data has no lines."""
    lines = data.split(b"\n")
    last = lines.pop()
    result = [line + b"\n" for line in lines]
    if last:
        result.append(last)
    return result


def count_lines(data: bytes) -> int:
    """Return ``len(split_lines(data))`` without splitting."""
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def diff(old: bytes, new: bytes) -> list[Hunk]:
    """Return the hunks that turn ``old`` into ``new``, placed as git places them in merges."""
    return [] if old == new else [Hunk(*hunk) for hunk in native.diff_lines(old, new)]


def diff_for_reading(old: bytes, new: bytes) -> list[Hunk]:
    """Return the hunks as git shows them in ``diff`` and ``blame``: slid to where a reader expects them."""
    return [] if old == new else [Hunk(*hunk) for hunk in native.diff_lines(old, new, True)]

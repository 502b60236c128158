"""Line differences between two byte strings: where lines begin, and which ranges of lines changed.

Invariant: lines are split on ``\\n`` only and keep their terminator, so ``b"".join(split_lines(x)) == x`` for any bytes.
Hunks are ascending, never touch each other, and everything between them is equal line by line. One fixed algorithm is
used by diff, merge and blame alike, because where equal lines repeat, the three must make the same choice as each other
and as git: Myers' O(ND) algorithm from both ends ("An O(ND) Difference Algorithm and Its Variations", 1986) over the
lines that occur on both sides, then each run of changed lines slid to its canonical place.

Elsewhere: the C kernel (``native``); what a hunk means for a merge (``textmerge``) or for authorship (``blame``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Past this many edits a split is taken where it looks best instead of where it is provably shortest.
_COST_FLOOR = 256
# A run of equal lines this long is good evidence of a right split.
_LONG_SNAKE = 20
_SNAKE_FACTOR = 4
# A line with more partners than this is noise, however large the files are.
_MOST_PARTNERS = 1024
_SCAN_WINDOW = 100
_NOISE_RATIO = 4
_UNREACHED = -1
_BEYOND = 1 << 60


class Hunk(NamedTuple):
    """Lines ``a_start:a_end`` of the old text stand where ``b_start:b_end`` of the new text are; half open, from 0."""

    a_start: int
    a_end: int
    b_start: int
    b_end: int


def split_lines(data: bytes) -> list[bytes]:
    """Split on ``\\n`` only, keeping it; the last line may lack it, and empty data has no lines."""
    lines = data.split(b"\n")
    last = lines.pop()
    result = [line + b"\n" for line in lines]
    if last:
        result.append(last)
    return result


def diff(old: bytes, new: bytes) -> list[Hunk]:
    """Return the hunks that turn ``old`` into ``new``."""
    if old == new:
        return []
    return diff_sequences(split_lines(old), split_lines(new))


def diff_sequences(old: Sequence[bytes], new: Sequence[bytes]) -> list[Hunk]:
    """Return the hunks between two lists of lines (the plain twin of the kernel)."""
    classes: dict[bytes, int] = {}
    a = [classes.setdefault(line, len(classes)) for line in old]
    b = [classes.setdefault(line, len(classes)) for line in new]
    changed_a = bytearray(len(a) + 1)  # one spare element: index -1 and index len are both "unchanged"
    changed_b = bytearray(len(b) + 1)
    _mark_changes(a, b, len(classes), changed_a, changed_b)
    _slide(a, changed_a, changed_b)
    _slide(b, changed_b, changed_a)
    return _collect(changed_a, changed_b)


def _mark_changes(a: list[int], b: list[int], classes: int, changed_a: bytearray, changed_b: bytearray) -> None:
    shorter = min(len(a), len(b))
    head = 0
    while head < shorter and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < shorter - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    counts_a = [0] * classes
    counts_b = [0] * classes
    for line in a:
        counts_a[line] += 1
    for line in b:
        counts_b[line] += 1
    kept_a = _keep_matchable(a, counts_b, head, len(a) - tail, changed_a)
    kept_b = _keep_matchable(b, counts_a, head, len(b) - tail, changed_b)
    search = _Search([a[i] for i in kept_a], [b[i] for i in kept_b])
    search.run()
    for index, line in enumerate(kept_a):
        changed_a[line] = search.changed_a[index]
    for index, line in enumerate(kept_b):
        changed_b[line] = search.changed_b[index]


def _power_root(value: int) -> int:
    """Return a power of two near the square root of ``value``; cheap, and what the thresholds were tuned with."""
    root = 1
    while value > 0:
        root <<= 1
        value >>= 2
    return root


def _keep_matchable(lines: list[int], partners: list[int], start: int, end: int, changed: bytearray) -> list[int]:
    """Return the indices in ``start:end`` worth searching; mark the others changed.

    A line without partner is certainly changed. A line with very many partners (a lone brace) counts as changed only
    inside a region that is mostly without partners, where matching it would be an accident.
    """
    limit = min(_power_root(len(lines)), _MOST_PARTNERS)
    verdicts = bytearray(len(lines))
    for index in range(start, end):
        count = partners[lines[index]]
        verdicts[index] = 0 if count == 0 else 2 if count >= limit else 1
    kept = []
    for index in range(start, end):
        verdict = verdicts[index]
        if verdict == 1 or (verdict == 2 and not _is_noise(verdicts, index, start, end - 1)):
            kept.append(index)
        else:
            changed[index] = 1
    return kept


def _is_noise(verdicts: bytearray, index: int, first: int, last: int) -> bool:
    first = max(first, index - _SCAN_WINDOW)
    last = min(last, index + _SCAN_WINDOW)
    lone, frequent = 0, 0
    for positions in (range(index - 1, first - 1, -1), range(index + 1, last + 1)):
        lone_here, frequent_here = 0, 1
        for position in positions:
            if verdicts[position] == 0:
                lone_here += 1
            elif verdicts[position] == 2:
                frequent_here += 1
            else:
                break
        if lone_here == 0:
            return False
        lone += lone_here
        frequent += frequent_here
    return frequent * _NOISE_RATIO < frequent + lone


class _Search:
    """The divide-and-conquer search over two lists of line classes."""

    def __init__(self, a: list[int], b: list[int]) -> None:
        self.a = a
        self.b = b
        self.changed_a = bytearray(len(a))
        self.changed_b = bytearray(len(b))
        diagonals = len(a) + len(b) + 3
        self.cost_limit = max(_power_root(diagonals), _COST_FLOOR)
        # furthest old index reached per diagonal (old index - new index), stored with an offset
        self.origin = len(b) + 1
        self.forward = [0] * (diagonals + 1)
        self.backward = [0] * (diagonals + 1)

    def run(self) -> None:
        """Mark every line that is not part of the common subsequence found."""
        a, b = self.a, self.b
        pending = [(0, len(a), 0, len(b), False)]
        while pending:
            a_low, a_high, b_low, b_high, shortest = pending.pop()
            while a_low < a_high and b_low < b_high and a[a_low] == b[b_low]:
                a_low += 1
                b_low += 1
            while a_low < a_high and b_low < b_high and a[a_high - 1] == b[b_high - 1]:
                a_high -= 1
                b_high -= 1
            if a_low == a_high:
                self.changed_b[b_low:b_high] = b"\x01" * (b_high - b_low)
            elif b_low == b_high:
                self.changed_a[a_low:a_high] = b"\x01" * (a_high - a_low)
            else:
                x, y, low_shortest, high_shortest = self._split(a_low, a_high, b_low, b_high, shortest)
                pending.append((x, a_high, y, b_high, high_shortest))
                pending.append((a_low, x, b_low, y, low_shortest))

    def _split(self, a_low: int, a_high: int, b_low: int, b_high: int, shortest: bool) -> tuple[int, int, bool, bool]:
        """Return a point on a shortest path (or a good one past the cost limit), and which halves must be exact."""
        a, b, origin = self.a, self.b, self.origin
        forward, backward = self.forward, self.backward
        lowest, highest = a_low - b_high, a_high - b_low
        front, back = a_low - b_low, a_high - b_high
        odd = (front - back) & 1
        front_min = front_max = front
        back_min = back_max = back
        forward[origin + front] = a_low
        backward[origin + back] = a_high
        cost = 0
        while True:
            cost += 1
            long_snake = False
            if front_min > lowest:
                front_min -= 1
                forward[origin + front_min - 1] = _UNREACHED
            else:
                front_min += 1
            if front_max < highest:
                front_max += 1
                forward[origin + front_max + 1] = _UNREACHED
            else:
                front_max -= 1
            for diagonal in range(front_max, front_min - 1, -2):
                below, above = forward[origin + diagonal - 1], forward[origin + diagonal + 1]
                x = below + 1 if below >= above else above
                begun = x
                y = x - diagonal
                while x < a_high and y < b_high and a[x] == b[y]:
                    x += 1
                    y += 1
                if x - begun > _LONG_SNAKE:
                    long_snake = True
                forward[origin + diagonal] = x
                if odd and back_min <= diagonal <= back_max and backward[origin + diagonal] <= x:
                    return x, y, True, True
            if back_min > lowest:
                back_min -= 1
                backward[origin + back_min - 1] = _BEYOND
            else:
                back_min += 1
            if back_max < highest:
                back_max += 1
                backward[origin + back_max + 1] = _BEYOND
            else:
                back_max -= 1
            for diagonal in range(back_max, back_min - 1, -2):
                below, above = backward[origin + diagonal - 1], backward[origin + diagonal + 1]
                x = below if below < above else above - 1
                begun = x
                y = x - diagonal
                while x > a_low and y > b_low and a[x - 1] == b[y - 1]:
                    x -= 1
                    y -= 1
                if begun - x > _LONG_SNAKE:
                    long_snake = True
                backward[origin + diagonal] = x
                if not odd and front_min <= diagonal <= front_max and x <= forward[origin + diagonal]:
                    return x, y, True, True
            if shortest:
                continue
            box = (a_low, a_high, b_low, b_high)
            if long_snake and cost > _COST_FLOOR:
                found = self._after_long_snake(box, cost, range(front_max, front_min - 1, -2), front)
                if found is not None:
                    return (*found, True, False)
                found = self._before_long_snake(box, cost, range(back_max, back_min - 1, -2), back)
                if found is not None:
                    return (*found, False, True)
            if cost >= self.cost_limit:
                return self._furthest(box, range(front_max, front_min - 1, -2), range(back_max, back_min - 1, -2))

    def _after_long_snake(
        self, box: tuple[int, int, int, int], cost: int, diagonals: range, middle: int
    ) -> tuple[int, int] | None:
        a_low, a_high, b_low, b_high = box
        best, found = 0, None
        for diagonal in diagonals:
            x = self.forward[self.origin + diagonal]
            y = x - diagonal
            gain = (x - a_low) + (y - b_low) - abs(diagonal - middle)
            if gain <= _SNAKE_FACTOR * cost or gain <= best:
                continue
            if not (a_low + _LONG_SNAKE <= x < a_high and b_low + _LONG_SNAKE <= y < b_high):
                continue
            if self.a[x - _LONG_SNAKE : x] == self.b[y - _LONG_SNAKE : y]:
                best, found = gain, (x, y)
        return found

    def _before_long_snake(
        self, box: tuple[int, int, int, int], cost: int, diagonals: range, middle: int
    ) -> tuple[int, int] | None:
        a_low, a_high, b_low, b_high = box
        best, found = 0, None
        for diagonal in diagonals:
            x = self.backward[self.origin + diagonal]
            y = x - diagonal
            gain = (a_high - x) + (b_high - y) - abs(diagonal - middle)
            if gain <= _SNAKE_FACTOR * cost or gain <= best:
                continue
            if not (a_low < x <= a_high - _LONG_SNAKE and b_low < y <= b_high - _LONG_SNAKE):
                continue
            if self.a[x : x + _LONG_SNAKE] == self.b[y : y + _LONG_SNAKE]:
                best, found = gain, (x, y)
        return found

    def _furthest(
        self, box: tuple[int, int, int, int], ahead: range, behind: range
    ) -> tuple[int, int, bool, bool]:
        a_low, a_high, b_low, b_high = box
        reach, reach_x = -1, -1
        for diagonal in ahead:
            x = min(self.forward[self.origin + diagonal], a_high)
            y = x - diagonal
            if y > b_high:
                x, y = b_high + diagonal, b_high
            if x + y > reach:
                reach, reach_x = x + y, x
        left, left_x = _BEYOND, _BEYOND
        for diagonal in behind:
            x = max(self.backward[self.origin + diagonal], a_low)
            y = x - diagonal
            if y < b_low:
                x, y = b_low + diagonal, b_low
            if x + y < left:
                left, left_x = x + y, x
        if (a_high + b_high) - left < reach - (a_low + b_low):
            return reach_x, reach - reach_x, True, False
        return left_x, left - left_x, False, True


class _Runs:
    """A cursor over the (possibly empty) runs of changed lines that lie between unchanged lines."""

    def __init__(self, changed: bytearray) -> None:
        self.changed = changed
        self.size = len(changed) - 1
        self.start = 0
        self.end = 0
        while changed[self.end]:
            self.end += 1

    def forward(self) -> bool:
        if self.end == self.size:
            return False
        self.start = self.end = self.end + 1
        while self.changed[self.end]:
            self.end += 1
        return True

    def back(self) -> None:
        self.start = self.end = self.start - 1
        while self.changed[self.start - 1]:
            self.start -= 1

    def slide_up(self, lines: list[int]) -> bool:
        if self.start == 0 or lines[self.start - 1] != lines[self.end - 1]:
            return False
        self.start -= 1
        self.end -= 1
        self.changed[self.start] = 1
        self.changed[self.end] = 0
        while self.changed[self.start - 1]:
            self.start -= 1
        return True

    def slide_down(self, lines: list[int]) -> bool:
        if self.end >= self.size or lines[self.start] != lines[self.end]:
            return False
        self.changed[self.start] = 0
        self.changed[self.end] = 1
        self.start += 1
        self.end += 1
        while self.changed[self.end]:
            self.end += 1
        return True


def _slide(lines: list[int], changed: bytearray, changed_other: bytearray) -> None:
    """Move every run as far down as equal lines allow, but prefer a place beside a run of the other side."""
    run, other = _Runs(changed), _Runs(changed_other)
    while True:
        if run.end > run.start:
            _slide_run(lines, run, other)
        if not run.forward():
            return
        other.forward()


def _slide_run(lines: list[int], run: _Runs, other: _Runs) -> None:
    size = -1
    highest = beside = run.end
    while size != run.end - run.start:  # again whenever the run has grown by meeting another one
        size = run.end - run.start
        beside = -1
        while run.slide_up(lines):
            other.back()
        highest = run.end
        if other.end > other.start:
            beside = run.end
        while run.slide_down(lines):
            other.forward()
            if other.end > other.start:
                beside = run.end
    if run.end != highest and beside != -1:
        while other.end == other.start:
            run.slide_up(lines)
            other.back()


def _collect(changed_a: bytearray, changed_b: bytearray) -> list[Hunk]:
    hunks = []
    x = y = 0
    end_a, end_b = len(changed_a) - 1, len(changed_b) - 1
    while x < end_a or y < end_b:
        if changed_a[x] or changed_b[y]:
            a_start, b_start = x, y
            while changed_a[x]:
                x += 1
            while changed_b[y]:
                y += 1
            hunks.append(Hunk(a_start, x, b_start, y))
        else:
            x += 1
            y += 1
    return hunks

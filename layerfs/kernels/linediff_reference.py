r"""Line diff in plain Python: the twin of csrc/linediff.c, and the readable statement of what git's default diff does.

Owns: lines → hunks. The invariant: applying the hunks to ``a`` gives ``b``, and they are the hunks git prints, so that
merges agree with git's about which lines a side touched. The steps, each a function:

1. lines become numbers, equal lines equal numbers;
2. lines that the other side does not have at all are changed, and set aside; so are lines it has very often, where they
   stand in a run of such lines (they would only pin a match by accident);
3. what is left is compared by Myers' linear-space divide and conquer (*An O(ND) Difference Algorithm*, 1986), with two
   ways out for expensive boxes: a long diagonal that is far ahead is taken on trust, and past a cost of about the square
   root of the box the furthest point reached splits it;
4. each group of changed lines is slid: up as far as it goes, joining groups it meets, then down as far as it goes, and
   back to the last place where the other side has changes too. With ``indent_heuristic`` a free group rests where the
   indentation says a block begins or ends.

Text or binary, three-way merging and rendering are elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

BytesLike = bytes | bytearray | memoryview
Hunk = tuple[int, int, int, int]

_FREQUENT_LIMIT = 1024
_NEIGHBOURHOOD = 100
_SNAKE = 20
_TRUST_COST = 256
_TRUST_FACTOR = 4
_LEAST_MAX_COST = 256
_MAX_SLIDE = 100
_MAX_INDENT = 200
_MAX_BLANKS = 20


def diff_lines(a: BytesLike, b: BytesLike, indent_heuristic: bool, /) -> list[Hunk]:
    """Return the hunks between two texts; see ``native.diff_lines``."""
    old_lines, new_lines = _split(bytes(a)), _split(bytes(b))
    numbers: dict[bytes, int] = {}
    old = _Side(old_lines, [numbers.setdefault(line, len(numbers)) for line in old_lines])
    new = _Side(new_lines, [numbers.setdefault(line, len(numbers)) for line in new_lines])
    _compare(old, new, len(numbers))
    _compact(old, new, indent_heuristic)
    _compact(new, old, indent_heuristic)
    return _hunks(old.changed, new.changed)


class _Side:
    """One text: its lines, their numbers, and one flag a line, with an always unset flag before the first and after."""

    def __init__(self, lines: list[bytes], numbers: list[int]) -> None:
        self.lines = lines
        self.numbers = numbers
        self.changed = bytearray(len(lines) + 1)


def _split(text: bytes) -> list[bytes]:
    lines = text.split(b"\n")
    last = lines.pop()
    lines = [line + b"\n" for line in lines]
    if last:
        lines.append(last)
    return lines


def _hunks(old: bytearray, new: bytearray) -> list[Hunk]:
    hunks: list[Hunk] = []
    i = j = 0
    while i < len(old) or j < len(new):
        start_i, start_j = i, j
        while i < len(old) and old[i]:
            i += 1
        while j < len(new) and new[j]:
            j += 1
        if i > start_i or j > start_j:
            hunks.append((start_i, i, start_j, j))
        i += 1
        j += 1
    return hunks


def _rough_root(value: int) -> int:
    """Return a power of two near the square root, never below it."""
    root = 1
    while value > 0:
        root <<= 1
        value >>= 2
    return root


def _compare(old: _Side, new: _Side, classes: int) -> None:
    """Mark the changed lines of both sides."""
    a, b = old.numbers, new.numbers
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    count_a, count_b = [0] * classes, [0] * classes
    for number in a:
        count_a[number] += 1
    for number in b:
        count_b[number] += 1
    kept_a = _set_aside(old, head, len(a) - tail, count_b)
    kept_b = _set_aside(new, head, len(b) - tail, count_a)
    _divide(old, kept_a, new, kept_b)


def _set_aside(side: _Side, start: int, end: int, other_count: list[int]) -> list[int]:
    """Mark the lines that cannot match, or match too often to mean anything; return the positions of the others."""
    often = min(_rough_root(len(side.numbers)), _FREQUENT_LIMIT)
    rank = bytearray(end - start)
    for at in range(start, end):
        count = other_count[side.numbers[at]]
        rank[at - start] = 0 if count == 0 else 2 if count >= often else 1
    kept: list[int] = []
    for at in range(end - start):
        if rank[at] == 1 or (rank[at] == 2 and not _is_noise(rank, at)):
            kept.append(start + at)
        else:
            side.changed[start + at] = 1
    return kept


def _is_noise(rank: bytearray, at: int) -> bool:
    """Return whether a frequent line stands, on both sides, in a run with enough lines that match nothing."""
    unmatched = frequent = 0
    for step in (-1, 1):
        here = 0
        frequent += 1
        where = at + step
        for _ in range(_NEIGHBOURHOOD):
            if not 0 <= where < len(rank) or rank[where] == 1:
                break
            if rank[where] == 0:
                here += 1
            else:
                frequent += 1
            where += step
        if here == 0:
            return False
        unmatched += here
    return frequent * 4 < frequent + unmatched


class _Split(NamedTuple):
    """A point the path goes through, and whether the box before and after it is to be searched without short cuts."""

    x: int
    y: int
    exact_before: bool
    exact_after: bool


def _divide(old: _Side, kept_a: list[int], new: _Side, kept_b: list[int]) -> None:
    a = [old.numbers[at] for at in kept_a]
    b = [new.numbers[at] for at in kept_b]
    max_cost = max(_rough_root(len(a) + len(b) + 3), _LEAST_MAX_COST)
    boxes = [(0, len(a), 0, len(b), False)]
    while boxes:
        left, right, top, bottom, exact = boxes.pop()
        while left < right and top < bottom and a[left] == b[top]:
            left += 1
            top += 1
        while left < right and top < bottom and a[right - 1] == b[bottom - 1]:
            right -= 1
            bottom -= 1
        if left == right:
            for y in range(top, bottom):
                new.changed[kept_b[y]] = 1
        elif top == bottom:
            for x in range(left, right):
                old.changed[kept_a[x]] = 1
        else:
            split = _middle(a, left, right, b, top, bottom, exact, max_cost)
            boxes.append((split.x, right, split.y, bottom, split.exact_after))
            boxes.append((left, split.x, top, split.y, split.exact_before))


def _middle(
    a: list[int], left: int, right: int, b: list[int], top: int, bottom: int, exact: bool, max_cost: int
) -> _Split:
    """Find where the shortest path through the box meets itself, searching from both corners at once."""
    low, high = left - bottom, right - top
    forward_start, backward_start = left - top, right - bottom
    odd = (forward_start - backward_start) & 1
    far = right + bottom + 1
    forward = {forward_start: left}
    backward = {backward_start: right}
    forward_low = forward_high = forward_start
    backward_low = backward_high = backward_start
    cost = 0
    while True:
        cost += 1
        long_snake = False
        forward_low, forward_high = _widen(forward, forward_low, forward_high, low, high, -1)
        for k in range(forward_high, forward_low - 1, -2):
            x = forward[k - 1] + 1 if forward[k - 1] >= forward[k + 1] else forward[k + 1]
            start = x
            while x < right and x - k < bottom and a[x] == b[x - k]:
                x += 1
            long_snake |= x - start > _SNAKE
            forward[k] = x
            if odd and backward_low <= k <= backward_high and backward[k] <= x:
                return _Split(x, x - k, True, True)
        backward_low, backward_high = _widen(backward, backward_low, backward_high, low, high, far)
        for k in range(backward_high, backward_low - 1, -2):
            x = backward[k - 1] if backward[k - 1] < backward[k + 1] else backward[k + 1] - 1
            start = x
            while x > left and x - k > top and a[x - 1] == b[x - k - 1]:
                x -= 1
            long_snake |= start - x > _SNAKE
            backward[k] = x
            if not odd and forward_low <= k <= forward_high and x <= forward[k]:
                return _Split(x, x - k, True, True)
        if exact:
            continue
        if long_snake and cost > _TRUST_COST:
            best = 0
            found = (0, 0)
            for k in range(forward_high, forward_low - 1, -2):
                x = forward[k]
                y = x - k
                gain = (x - left) + (y - top) - abs(k - forward_start)
                if (
                    gain > _TRUST_FACTOR * cost
                    and gain > best
                    and left + _SNAKE <= x < right
                    and top + _SNAKE <= y < bottom
                    and a[x - _SNAKE : x] == b[y - _SNAKE : y]
                ):
                    best, found = gain, (x, y)
            if best:
                return _Split(found[0], found[1], True, False)
            for k in range(backward_high, backward_low - 1, -2):
                x = backward[k]
                y = x - k
                gain = (right - x) + (bottom - y) - abs(k - backward_start)
                if (
                    gain > _TRUST_FACTOR * cost
                    and gain > best
                    and left < x <= right - _SNAKE
                    and top < y <= bottom - _SNAKE
                    and a[x : x + _SNAKE] == b[y : y + _SNAKE]
                ):
                    best, found = gain, (x, y)
            if best:
                return _Split(found[0], found[1], False, True)
        if cost >= max_cost:
            return _furthest(
                (forward, forward_low, forward_high), (backward, backward_low, backward_high),
                left, right, top, bottom,
            )  # fmt: skip


def _widen(
    reach: dict[int, int], first: int, last: int, low: int, high: int, outside: int
) -> tuple[int, int]:
    """Step the range of diagonals out by one at each end, or in where it has met the border of the box."""
    if first > low:
        first -= 1
        reach[first - 1] = outside
    else:
        first += 1
    if last < high:
        last += 1
        reach[last + 1] = outside
    else:
        last -= 1
    return first, last


def _furthest(
    forward: tuple[dict[int, int], int, int],
    backward: tuple[dict[int, int], int, int],
    left: int,
    right: int,
    top: int,
    bottom: int,
) -> _Split:
    """Give the search up and split where one of the two directions got furthest."""
    reach, first, last = forward
    best_forward, forward_x = -1, -1
    for k in range(last, first - 1, -2):
        x = min(reach[k], right)
        y = x - k
        if y > bottom:
            x, y = bottom + k, bottom
        if x + y > best_forward:
            best_forward, forward_x = x + y, x
    reach, first, last = backward
    best_backward, backward_x = right + bottom + 1, right
    for k in range(last, first - 1, -2):
        x = max(reach[k], left)
        y = x - k
        if y < top:
            x, y = top + k, top
        if x + y < best_backward:
            best_backward, backward_x = x + y, x
    if right + bottom - best_backward < best_forward - (left + top):
        return _Split(forward_x, best_forward - forward_x, True, False)
    return _Split(backward_x, best_backward - backward_x, False, True)


class _Group:
    """A run of changed lines [start, end) of one side – possibly empty, between two unchanged lines."""

    def __init__(self, side: _Side) -> None:
        self.numbers = side.numbers
        self.changed = side.changed
        self.start = self.end = 0
        self._stretch()

    def _stretch(self) -> None:
        while self.changed[self.end]:
            self.end += 1

    def next(self) -> bool:
        if self.end == len(self.numbers):
            return False
        self.start = self.end = self.end + 1
        self._stretch()
        return True

    def previous(self) -> None:
        self.start = self.end = self.start - 1
        while self.start > 0 and self.changed[self.start - 1]:
            self.start -= 1

    def slide_up(self) -> bool:
        if self.start == 0 or self.numbers[self.start - 1] != self.numbers[self.end - 1]:
            return False
        self.start -= 1
        self.end -= 1
        self.changed[self.start] = 1
        self.changed[self.end] = 0
        while self.start > 0 and self.changed[self.start - 1]:
            self.start -= 1
        return True

    def slide_down(self) -> bool:
        if self.end == len(self.numbers) or self.numbers[self.start] != self.numbers[self.end]:
            return False
        self.changed[self.start] = 0
        self.changed[self.end] = 1
        self.start += 1
        self.end += 1
        self._stretch()
        return True


def _compact(side: _Side, other: _Side, indent_heuristic: bool) -> None:
    """Slide each group of one side to its place; the two sides are walked in step, one unchanged line at a time."""
    group, opposite = _Group(side), _Group(other)
    while True:
        if group.end > group.start:
            _settle(side, group, opposite, indent_heuristic)
        if not group.next():
            return
        opposite.next()


def _settle(side: _Side, group: _Group, opposite: _Group, indent_heuristic: bool) -> None:
    while True:
        size = group.end - group.start
        while group.slide_up():
            opposite.previous()
        earliest_end = group.end
        aligned = opposite.end > opposite.start
        while group.slide_down():
            opposite.next()
            aligned = aligned or opposite.end > opposite.start
        if size == group.end - group.start:
            break
    if group.end == earliest_end:
        return
    if aligned:
        while opposite.end == opposite.start:
            group.slide_up()
            opposite.previous()
    elif indent_heuristic:
        best_end = _best_end(side, group, size, earliest_end)
        while group.end > best_end:
            group.slide_up()
            opposite.previous()


def _best_end(side: _Side, group: _Group, size: int, earliest_end: int) -> int:
    """Return the end whose two borders look most like block borders; the later one where two look alike."""
    best_end, best_indent, best_penalty = -1, 0, 0
    for end in range(max(earliest_end, group.end - size - 1, group.end - _MAX_SLIDE), group.end + 1):
        first_indent, first_penalty = _border(side.lines, end)
        second_indent, second_penalty = _border(side.lines, end - size)
        indent, penalty = first_indent + second_indent, first_penalty + second_penalty
        order = 60 * ((indent > best_indent) - (indent < best_indent)) + penalty - best_penalty
        if best_end < 0 or order <= 0:
            best_end, best_indent, best_penalty = end, indent, penalty
    return best_end


def _indent(line: bytes) -> int:
    """Return the column of the first thing on a line (tabs of 8), -1 if there is none."""
    column = 0
    for byte in line:
        if byte == 0x20:
            column += 1
        elif byte == 0x09:
            column += 8 - column % 8
        elif byte not in b"\n\r\v\f":
            return column
        if column >= _MAX_INDENT:
            return _MAX_INDENT
    return -1


def _border(lines: list[bytes], at: int) -> tuple[int, int]:
    """Weigh a border before line ``at``: the indentation there, and a penalty for looking unlike a block border."""
    penalty = 0
    here = -1
    if at >= len(lines):
        penalty += 21
    else:
        here = _indent(lines[at])
    before, blanks_before = -1, 0
    for line in reversed(lines[max(0, at - _MAX_BLANKS) : at]):
        before = _indent(line)
        if before != -1:
            break
        blanks_before += 1
        if blanks_before == _MAX_BLANKS:
            before = 0
    after, blanks_after = -1, 0
    for line in lines[at + 1 : at + 1 + _MAX_BLANKS]:
        after = _indent(line)
        if after != -1:
            break
        blanks_after += 1
        if blanks_after == _MAX_BLANKS:
            after = 0
    if before == -1 and blanks_before == 0:
        penalty += 1
    blanks_from_here = 1 + blanks_after if here == -1 else 0
    blanks = blanks_before + blanks_from_here
    penalty += -30 * blanks + 6 * blanks_from_here
    indent = here if here != -1 else after
    if indent == -1 or before == -1 or indent == before:
        return indent, penalty
    if indent > before:
        return indent, penalty + (10 if blanks else -4)
    if after != -1 and after > indent:
        return indent, penalty + (17 if blanks else 24)
    return indent, penalty + (17 if blanks else 23)

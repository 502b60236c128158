"""Three-way merge of text: diff3 on bytes, with ``git merge-file`` as the oracle.

Invariant: never clean where git conflicts. Two changes conflict as soon as no unchanged line lies between them, unless
both sides made the same change, or the two sides of a conflict turn out equal line by line. Cleanliness never depends on
the style in which a conflict would be shown, and swapping the sides swaps the terms of every hunk and nothing else.

A result is clean bytes or a list of hunks with line ranges in base, ours and theirs; markers exist only when
:func:`render` is asked for them. Elsewhere: which files count as text (``classes`` says which paths never do), what
happens to a conflict, and the differ itself (``linediff``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from layerfs.merge import linediff
from layerfs.merge.linediff import Differ, Hunk, split_lines

Style = Literal["merge", "diff3", "zdiff3"]

TEXT_PROBE = 8000
TEXT_MAX_BYTES = 4 << 20
TEXT_MAX_LINES = 100_000
MARKER_SIZE = 7
# Conflicts this close are shown as one: three lines of agreement between two marker blocks help nobody.
_TOO_CLOSE = 3


class Region(NamedTuple):
    """One stretch of the merge: lines of base, ours and theirs (half open, from 0) and who decides it."""

    base_start: int
    base_end: int
    ours_start: int
    ours_end: int
    theirs_start: int
    theirs_end: int
    take: Literal["ours", "theirs", "both", "conflict"]


class Labels(NamedTuple):
    """What is written behind the markers."""

    base: bytes = b""
    ours: bytes = b""
    theirs: bytes = b""


class TextMerge(NamedTuple):
    """The outcome of :func:`merge`: ``clean`` bytes, or the conflicting ``hunks`` (then ``clean`` is None)."""

    base: Sequence[bytes]
    ours: Sequence[bytes]
    theirs: Sequence[bytes]
    regions: tuple[Region, ...]
    clean: bytes | None

    @property
    def hunks(self) -> tuple[Region, ...]:
        """The conflicting regions, in order."""
        return tuple(region for region in self.regions if region.take == "conflict")


def is_text(data: bytes) -> bool:
    """Tell whether ``data`` is text: no NUL in the first 8000 bytes and below the size caps."""
    return (
        len(data) <= TEXT_MAX_BYTES and b"\0" not in data[:TEXT_PROBE] and data.count(b"\n") <= TEXT_MAX_LINES
    )


def merge(base: bytes, ours: bytes, theirs: bytes, differ: Differ = linediff.diff) -> TextMerge:
    """Merge three texts by lines; an absent base is ``b""``."""
    base_lines, our_lines, their_lines = split_lines(base), split_lines(ours), split_lines(theirs)
    our_changes = differ(base, ours)
    their_changes = differ(base, theirs)
    if not our_changes or not their_changes:
        return TextMerge(base_lines, our_lines, their_lines, (), ours if our_changes else theirs)
    combined = _combine(our_changes, their_changes, our_lines, their_lines, len(base_lines))
    regions = tuple(_settle(region, our_lines, their_lines) for region in combined)
    clean = None
    if all(region.take != "conflict" for region in regions):
        clean = b"".join(_clean_pieces(regions, our_lines, their_lines))
    return TextMerge(base_lines, our_lines, their_lines, regions, clean)


def _combine(
    ours: Sequence[Hunk],
    theirs: Sequence[Hunk],
    our_lines: Sequence[bytes],
    their_lines: Sequence[bytes],
    base_count: int,
) -> list[Region]:
    """Walk both lists of changes at once; changes that overlap or touch become one conflicting region."""
    regions: list[Region] = []
    i = j = 0
    our_shift = their_shift = 0  # side line minus base line, behind the last change passed
    while i < len(ours) or j < len(theirs):
        mine = ours[i] if i < len(ours) else None
        other = theirs[j] if j < len(theirs) else None
        if mine is not None and (other is None or mine.a_end < other.a_start):
            start, end = mine.a_start, mine.a_end
            span = (start, end, mine.b_start, mine.b_end, start + their_shift, end + their_shift)
            _append(regions, Region(*span, "ours"))
            our_shift = mine.b_end - mine.a_end
            i += 1
        elif other is not None and (mine is None or other.a_end < mine.a_start):
            start, end = other.a_start, other.a_end
            span = (start, end, start + our_shift, end + our_shift, other.b_start, other.b_end)
            _append(regions, Region(*span, "theirs"))
            their_shift = other.b_end - other.a_end
            j += 1
        else:
            assert mine is not None and other is not None
            if not _same_change(mine, other, our_lines, their_lines):
                start = min(mine.a_start, other.a_start)
                end = max(mine.a_end, other.a_end)
                span = (
                    start,
                    end,
                    mine.b_start - (mine.a_start - start),
                    mine.b_end + (end - mine.a_end),
                    other.b_start - (other.a_start - start),
                    other.b_end + (end - other.a_end),
                )
                _append(regions, Region(*span, "conflict"))
            if mine.a_end >= other.a_end:
                their_shift = other.b_end - other.a_end
                j += 1
            if other.a_end >= mine.a_end:
                our_shift = mine.b_end - mine.a_end
                i += 1
    return regions


def _same_change(mine: Hunk, other: Hunk, our_lines: Sequence[bytes], their_lines: Sequence[bytes]) -> bool:
    if (mine.a_start, mine.a_end) != (other.a_start, other.a_end):
        return False
    return list(our_lines[mine.b_start : mine.b_end]) == list(their_lines[other.b_start : other.b_end])


def _append(regions: list[Region], region: Region) -> None:
    last = regions[-1] if regions else None
    if last is None or (region.ours_start > last.ours_end and region.theirs_start > last.theirs_end):
        regions.append(region)
        return
    # no line between the two on one of the sides: they are one decision
    regions[-1] = Region(
        last.base_start,
        region.base_end,
        last.ours_start,
        region.ours_end,
        last.theirs_start,
        region.theirs_end,
        last.take if last.take == region.take else "conflict",
    )


def _settle(region: Region, our_lines: Sequence[bytes], their_lines: Sequence[bytes]) -> Region:
    """A conflict whose two sides are equal is none."""
    if region.take == "conflict":
        ours = our_lines[region.ours_start : region.ours_end]
        if list(ours) == list(their_lines[region.theirs_start : region.theirs_end]) and ours:
            return region._replace(take="both")
    return region


def _clean_pieces(
    regions: Sequence[Region], our_lines: Sequence[bytes], their_lines: Sequence[bytes]
) -> Iterator[bytes]:
    position = 0
    for region in regions:
        if region.take == "theirs":
            yield from our_lines[position : region.ours_start]
            yield from their_lines[region.theirs_start : region.theirs_end]
            position = region.ours_end
    yield from our_lines[position:]


def marker_size(*texts: bytes) -> int:
    """Return a marker length longer than every run of marker characters that begins a line of the texts."""
    longest = MARKER_SIZE - 1
    for text in texts:
        for character in (b"<", b"|", b"=", b">"):
            run = character * MARKER_SIZE
            if run not in text:
                continue
            for line in split_lines(text):
                if line.startswith(run):
                    longest = max(longest, len(line) - len(line.lstrip(character)))
    return longest + 1


def render(
    result: TextMerge,
    labels: Labels = Labels(),  # noqa: B008  (an immutable value)
    style: Style = "zdiff3",
    size: int = 0,
    differ: Differ = linediff.diff,
) -> bytes:
    """Return the merge as one text, with conflict markers around what conflicts.

    ``size`` is the length of the markers; 0 chooses 7, or more where an input already has lines that look like one.
    """
    if result.clean is not None:
        return result.clean
    if size <= 0:
        size = marker_size(*(b"".join(lines) for lines in (result.base, result.ours, result.theirs)))
    shown = list(result.regions)
    if style == "merge":
        shown = _join_close(list(_refine(shown, result, differ)), result.ours)
    elif style == "zdiff3":
        shown = [_trim(region, result) for region in shown]
    pieces: list[bytes] = []
    position = 0
    for region in shown:
        if region.take in ("ours", "both"):
            continue
        pieces += result.ours[position : region.ours_start]
        if region.take == "theirs":
            pieces += result.theirs[region.theirs_start : region.theirs_end]
        else:
            pieces += _marked(result, region, labels, style, size)
        position = region.ours_end
    pieces += result.ours[position:]
    return b"".join(pieces)


def _refine(regions: Sequence[Region], result: TextMerge, differ: Differ) -> Iterator[Region]:
    """Split conflicts where ours and theirs agree with each other, whatever the base said."""
    for region in regions:
        if (
            region.take != "conflict"
            or region.ours_start == region.ours_end
            or region.theirs_start == region.theirs_end
        ):
            yield region
            continue
        ours = b"".join(result.ours[region.ours_start : region.ours_end])
        theirs = b"".join(result.theirs[region.theirs_start : region.theirs_end])
        for hunk in differ(ours, theirs):
            yield region._replace(
                ours_start=region.ours_start + hunk.a_start,
                ours_end=region.ours_start + hunk.a_end,
                theirs_start=region.theirs_start + hunk.b_start,
                theirs_end=region.theirs_start + hunk.b_end,
            )


def _join_close(regions: list[Region], our_lines: Sequence[bytes]) -> list[Region]:
    joined: list[Region] = []
    for region in regions:
        last = joined[-1] if joined else None
        if last is None or last.take != "conflict" or region.take != "conflict":
            joined.append(region)
            continue
        between = our_lines[last.ours_end : region.ours_start]
        if len(between) > _TOO_CLOSE and any(_has_word(line) for line in between):
            joined.append(region)
        else:
            joined[-1] = last._replace(
                base_end=region.base_end, ours_end=region.ours_end, theirs_end=region.theirs_end
            )
    return joined


def _has_word(line: bytes) -> bool:
    return any(byte < 128 and chr(byte).isalnum() for byte in line)


def _trim(region: Region, result: TextMerge) -> Region:
    """Move the lines both sides begin or end with out of the conflict."""
    if region.take != "conflict":
        return region
    (_, _, ours_start, ours_end, theirs_start, theirs_end, _) = region
    ours, theirs = result.ours, result.theirs
    while ours_start < ours_end and theirs_start < theirs_end and ours[ours_start] == theirs[theirs_start]:
        ours_start += 1
        theirs_start += 1
    while (
        ours_start < ours_end and theirs_start < theirs_end and ours[ours_end - 1] == theirs[theirs_end - 1]
    ):
        ours_end -= 1
        theirs_end -= 1
    return region._replace(
        ours_start=ours_start, ours_end=ours_end, theirs_start=theirs_start, theirs_end=theirs_end
    )


def _marked(result: TextMerge, region: Region, labels: Labels, style: Style, size: int) -> Iterator[bytes]:
    eol = b"\r\n" if _uses_crlf(result, region) else b"\n"
    yield _marker(b"<", size, labels.ours, eol)
    yield from _terminated(result.ours[region.ours_start : region.ours_end], eol)
    if style != "merge":
        yield _marker(b"|", size, labels.base, eol)
        yield from _terminated(result.base[region.base_start : region.base_end], eol)
    yield _marker(b"=", size, b"", eol)
    yield from _terminated(result.theirs[region.theirs_start : region.theirs_end], eol)
    yield _marker(b">", size, labels.theirs, eol)


def _marker(character: bytes, size: int, label: bytes, eol: bytes) -> bytes:
    return character * size + (b" " + label if label else b"") + eol


def _terminated(lines: Sequence[bytes], eol: bytes) -> Iterator[bytes]:
    yield from lines
    if lines and not lines[-1].endswith(b"\n"):
        yield eol


def _uses_crlf(result: TextMerge, region: Region) -> bool:
    """Markers end as the lines around them do, if all three texts agree that this is CRLF."""
    if _ends_crlf(result.ours, max(region.ours_start - 1, 0)) is False:
        return False
    if _ends_crlf(result.theirs, max(region.theirs_start - 1, 0)) is False:
        return False
    return _ends_crlf(result.base, 0) is True


def _ends_crlf(lines: Sequence[bytes], index: int) -> bool | None:
    """Tell whether the line ends in CRLF; None where the text cannot tell."""
    if not lines:
        return None
    line = lines[index]
    if line.endswith(b"\n"):
        return line.endswith(b"\r\n")
    return lines[index - 1].endswith(b"\r\n") if index else None

"""Annotated files: blame joined with what is known of each commit.

Owns the way from a path and a revision to lines with their commits; whose line is whose is decided in ``merge/blame``.
"""

from __future__ import annotations

from typing import NamedTuple

from layerfs.errors import UsageError, quote
from layerfs.history.history import CommitReader
from layerfs.history.revision import resolve
from layerfs.ids import CommitId
from layerfs.merge.blame import BlameRange, blame
from layerfs.merge.linediff import split_lines
from layerfs.objects.commits import Commit
from layerfs.objects.content import read_content
from layerfs.objects.entry import Entry
from layerfs.objects.environment import lookup_path
from layerfs.store.refs import MAIN
from layerfs.store.store import Store

MOST_DIGITS = 18


class Bounds(NamedTuple):
    """The lines asked for, from 1; ``end`` None is the last."""

    start: int = 1
    end: int | None = None


class AnnotatedRange(NamedTuple):
    """Consecutive lines of one commit; no lines when the file is not text."""

    range: BlameRange
    commit: Commit
    lines: tuple[bytes, ...]


class Annotated(NamedTuple):
    """A file with whose lines are whose."""

    path: bytes
    commit: CommitId
    entry: Entry
    ranges: tuple[AnnotatedRange, ...]


def parse_lines(text: str | None) -> Bounds:
    """Parse ``A,B``, ``A,+N``, ``A`` or ``,B``; raise UsageError."""
    if text is None:
        return Bounds()
    first, comma, last = text.partition(",")
    relative = last.startswith("+")
    numbers = [word for word in (first, last.removeprefix("+")) if word]
    if not numbers or not all(map(_is_line_number, numbers)):
        raise UsageError(f"not a range of lines: {quote(text)}", "write A,B or A,+N, counting from 1")
    start = int(first) if first else 1
    if not comma or not last:
        return Bounds(start)
    end = start + int(last[1:]) - 1 if relative else int(last)
    if end < start:
        raise UsageError(f"range of lines ends before it begins: {quote(text)}")
    return Bounds(start, end)


def _is_line_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= MOST_DIGITS and int(word) > 0


def annotate(
    store: Store, word: str | None, path: bytes, at: CommitId | None, bounds: Bounds, first_parent: bool
) -> Annotated:
    """Return a file's lines with their commits, as of a revision (default ``@`` in a workspace, else main)."""
    word = word if word is not None else MAIN if at is None else "@"
    commit = resolve(store, word, at).commit
    reader = CommitReader(store.objects)
    found = blame(reader, commit, path, start=bounds.start, end=bounds.end, first_parent=first_parent)
    entry = lookup_path(store.objects, reader.root(commit), path)
    assert entry is not None
    is_lines = bool(found) and found[0].final_line > 0
    lines = split_lines(read_content(store.objects, entry)) if is_lines else []
    ranges = tuple(
        AnnotatedRange(
            one, reader.commit(one.commit), tuple(lines[one.final_line - 1 : one.final_line - 1 + one.lines])
        )
        for one in found
    )
    return Annotated(path, commit, entry, ranges)

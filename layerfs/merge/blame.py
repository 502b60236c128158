"""Blame: which commit each line of a file came from.

Git's algorithm (blame.c, described on design page 4, section 3): all lines start as suspects of the newest commit; the
newest suspect is asked first; a parent that has the identical content takes the whole list unread; otherwise the lines a
parent has too are handed to it, parents in order, and what no parent has is the commit's own. Invariant: every line is
attributed exactly once, and to a commit in whose file it stands at the origin line given.

A file follows renames its commits recorded, then exact moves. A file that is not text is one record: the last commit
that changed it. Elsewhere: reading commits (``history``), provenance and rendering (the command).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple, Protocol

from layerfs.errors import NotFound, UsageError, quote
from layerfs.ids import CommitId, TreeId, short
from layerfs.merge.linediff import count_lines, diff_for_reading
from layerfs.merge.renames import Renames, find_exact_renames
from layerfs.merge.textmerge import is_text
from layerfs.objects.commits import Commit
from layerfs.objects.content import read_content
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.source import ObjectSource
from layerfs.objects.trees import find_entry

_CONTENTS_KEPT = 64


class History(Protocol):
    """What blame needs to know of commits; ``history.CommitReader`` is one."""

    source: ObjectSource

    def commit(self, oid: CommitId, /) -> Commit:
        """Return a commit."""

    def root(self, oid: CommitId, /) -> Entry:
        """Return the root entry of a commit's state."""


class BlameRange(NamedTuple):
    """``lines`` lines from ``final_line`` stood at ``origin_line`` of ``path`` in ``commit``; lines count from 1.

    A file that is not text has one range with ``final_line`` 0.
    """

    commit: CommitId
    path: bytes
    origin_line: int
    final_line: int
    lines: int


class _Lines(NamedTuple):
    """Lines still under suspicion: ``number`` from ``at`` in the suspect's file, from ``final`` in the final file."""

    at: int
    final: int
    number: int


def blame(
    history: History,
    commit: CommitId,
    path: bytes,
    *,
    start: int = 1,
    end: int | None = None,
    first_parent: bool = False,
) -> tuple[BlameRange, ...]:
    """Return who wrote each line of ``path`` as of ``commit``, in file order; ``start`` to ``end`` limits the lines.

    Raises NotFound if the commit has no such file, UsageError if the lines do not exist.
    """
    blamer = _Blamer(history, first_parent)
    entry = blamer.entry(commit, path)
    if entry is None or entry.kind not in (EntryKind.FILE, EntryKind.SYMLINK):
        raise NotFound(f"no file {quote(path)} in commit {short(commit)}")
    if not blamer.is_lines(entry):
        return blamer.run(commit, path, entry, [_Lines(0, -1, 1)])
    total = count_lines(blamer.content(entry))
    last = total if end is None else min(end, total)
    if not total and start == 1:
        return ()
    if start < 1 or start > last:
        raise UsageError(f"no such lines in {quote(path)}: it has {total}")
    return blamer.run(commit, path, entry, [_Lines(start - 1, start - 1, last - start + 1)])


class _Blamer:
    def __init__(self, history: History, first_parent: bool) -> None:
        self.history = history
        self.source = history.source
        self.first_parent = first_parent
        self.roots: dict[CommitId, Entry] = {}
        self.names: dict[tuple[bytes, bytes], Entry | None] = {}
        self.contents: dict[bytes, bytes] = {}
        self.found: list[BlameRange] = []

    def run(
        self, commit: CommitId, path: bytes, entry: Entry, lines: Sequence[_Lines]
    ) -> tuple[BlameRange, ...]:
        suspects: dict[CommitId, dict[bytes, list[_Lines]]] = {commit: {path: list(lines)}}
        order = count()
        queue = [(-self.history.commit(commit).time_ns, next(order), commit)]
        while queue:
            _, _, suspect = heapq.heappop(queue)
            for name, under in suspects.pop(suspect, {}).items():
                for parent, origin, handed in self._examine(suspect, name, sorted(under)):
                    if parent not in suspects:
                        suspects[parent] = {}
                        heapq.heappush(queue, (-self.history.commit(parent).time_ns, next(order), parent))
                    suspects[parent].setdefault(origin, []).extend(handed)
        return _joined(self.found)

    def _examine(
        self, commit: CommitId, path: bytes, lines: list[_Lines]
    ) -> list[tuple[CommitId, bytes, list[_Lines]]]:
        """Hand lines to parents; what none of them has is recorded as the commit's own."""
        mine = self.entry(commit, path)
        assert mine is not None
        origins: list[tuple[CommitId, bytes, Entry]] = []
        for find_origin in (self._same_path, self._renamed_path):
            for parent, origin in find_origin(commit, path, mine):
                entry = self.entry(parent, origin)
                if entry is None or entry.kind is not mine.kind:
                    continue
                if entry.ref == mine.ref:
                    return [(parent, origin, lines)]
                if all(entry.ref != other.ref for _, _, other in origins):
                    origins.append((parent, origin, entry))
        passed: list[tuple[CommitId, bytes, list[_Lines]]] = []
        if self.is_lines(mine):
            for parent, origin, entry in origins:
                handed, lines = self._split(self.content(entry), self.content(mine), lines)
                if handed:
                    passed.append((parent, origin, handed))
                if not lines:
                    break
        for at, final, number in lines:
            self.found.append(BlameRange(commit, path, at + 1, final + 1, number))
        return passed

    def _parents(self, commit: CommitId) -> tuple[CommitId, ...]:
        parents = self.history.commit(commit).parents
        return parents[:1] if self.first_parent else parents

    def _has(self, commit: CommitId, path: bytes) -> bool:
        entry = self.entry(commit, path)
        return entry is not None and entry.kind is not EntryKind.DIR

    def _same_path(self, commit: CommitId, path: bytes, mine: Entry) -> Iterator[tuple[CommitId, bytes]]:
        return ((parent, path) for parent in self._parents(commit) if self._has(parent, path))

    def _renamed_path(self, commit: CommitId, path: bytes, mine: Entry) -> Iterator[tuple[CommitId, bytes]]:
        """Where the path came from in parents that lack it: a recorded rename, else an exact move."""
        backwards = [(new, old) for old, new in self.history.commit(commit).renames]
        for parent in self._parents(commit):
            if self._has(parent, path):
                continue
            root = self.root(parent)
            old = Renames(self.source, None, root, backwards).recorded_target(path)
            if old is not None and self._has(parent, old):
                yield parent, old
            elif mine.kind is EntryKind.FILE:
                moves = find_exact_renames(self.source, root, self.root(commit))
                yield from ((parent, old) for old, new in moves.items() if new == path)

    def _split(self, old: bytes, new: bytes, lines: list[_Lines]) -> tuple[list[_Lines], list[_Lines]]:
        """Split sorted lines of ``new`` into those ``old`` has as well (in its numbering) and the rest."""
        hunks = diff_for_reading(old, new)
        handed: list[_Lines] = []
        rest: list[_Lines] = []
        index = 0
        for at, final, number in lines:
            end = at + number
            while index and hunks[index - 1].b_end > at:
                index -= 1
            while at < end:
                while index < len(hunks) and hunks[index].b_end <= at:
                    index += 1
                shift = hunks[index - 1].a_end - hunks[index - 1].b_end if index else 0
                if index < len(hunks) and hunks[index].b_start <= at:
                    stop = min(end, hunks[index].b_end)
                    rest.append(_Lines(at, final, stop - at))
                else:
                    stop = min(end, hunks[index].b_start) if index < len(hunks) else end
                    handed.append(_Lines(at + shift, final, stop - at))
                final += stop - at
                at = stop
        return handed, rest

    def is_lines(self, entry: Entry) -> bool:
        """Whether the entry is a text, blamed by lines."""
        return entry.kind is EntryKind.FILE and is_text(self.content(entry))

    def content(self, entry: Entry) -> bytes:
        """Return a file's content; the last few are kept, since each version is compared with its neighbours."""
        found = self.contents.get(entry.ref)
        if found is None:
            found = read_content(self.source, entry)
            if len(self.contents) >= _CONTENTS_KEPT:
                self.contents.pop(next(iter(self.contents)))
            self.contents[entry.ref] = found
        return found

    def root(self, commit: CommitId) -> Entry:
        """Return the root entry of a commit, read once."""
        found = self.roots.get(commit)
        if found is None:
            found = self.roots[commit] = self.history.root(commit)
        return found

    def entry(self, commit: CommitId, path: bytes) -> Entry | None:
        """Return the entry at ``path``; directories shared by many commits are read once."""
        entry: Entry | None = self.root(commit)
        for name in path.split(b"/"):
            if entry is None or entry.kind is not EntryKind.DIR:
                return None
            key = (entry.ref, name)
            if key not in self.names:
                self.names[key] = find_entry(self.source, TreeId(entry.ref), name)  # type: ignore[arg-type]
            entry = self.names[key]
        return entry


def _joined(found: list[BlameRange]) -> tuple[BlameRange, ...]:
    joined: list[BlameRange] = []
    for one in sorted(found, key=lambda found_range: found_range.final_line):
        last = joined[-1] if joined else None
        if (
            last is not None
            and (last.commit, last.path) == (one.commit, one.path)
            and last.final_line + last.lines == one.final_line
            and last.origin_line + last.lines == one.origin_line
        ):
            joined[-1] = last._replace(lines=last.lines + one.lines)
        else:
            joined.append(one)
    return tuple(joined)

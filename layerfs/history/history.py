"""History: walking commits in the order people expect.

Newest first, never a parent before its child, whatever clocks said; folding and path filters are choices of the caller.
Everything comes from ``read_commit``, so the same walk serves a store and memory. Merge bases are in ``merge/mergebase``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from layerfs.ids import CommitId
from layerfs.objects.commits import Commit, decode_commit, read_commit
from layerfs.objects.entry import Entry
from layerfs.objects.environment import lookup_path, read_root
from layerfs.objects.kinds import Kind
from layerfs.objects.source import ObjectSource

_Decoded = Callable[[CommitId, Kind, Callable[[bytes], Commit]], Commit]
"""A source that keeps what it decoded, as a store does, saves every later walk the reading."""


class LoggedCommit(NamedTuple):
    """A commit met on a walk."""

    oid: CommitId
    commit: Commit


class CommitReader:
    """Reads each commit once; the functions that merge and blame want hang off it."""

    def __init__(self, source: ObjectSource) -> None:
        self.source = source
        self._known: dict[CommitId, Commit] = {}
        self._decoded: _Decoded | None = getattr(source, "decoded", None)

    def commit(self, oid: CommitId) -> Commit:
        """Return one commit."""
        found = self._known.get(oid)
        if found is None:
            if self._decoded is None:
                found = read_commit(self.source, oid)
            else:
                found = self._decoded(oid, Kind.COMMIT, decode_commit)
            self._known[oid] = found
        return found

    def parents(self, oid: CommitId) -> tuple[CommitId, ...]:
        """Return a commit's parents."""
        return self.commit(oid).parents

    def time(self, oid: CommitId) -> int:
        """Return a commit's time in nanoseconds."""
        return self.commit(oid).time_ns

    def root(self, oid: CommitId) -> Entry:
        """Return the root entry of a commit's state."""
        return read_root(self.source, self.commit(oid).root)


def walk_commits(
    reader: CommitReader,
    starts: Iterable[CommitId],
    *,
    excluded: Iterable[CommitId] = (),
    first_parent: bool = False,
    topological: bool = False,
) -> Iterator[LoggedCommit]:
    """Yield the commits reachable from ``starts`` and not from ``excluded``, newest first.

    With honest clocks a child comes before its parents in any case and commits stream out; ``topological`` reads all of
    history first and makes that certain.
    """
    hidden = set(_reachable(reader, excluded)) if excluded else set()
    if topological:
        yield from _topological(reader, starts, hidden, first_parent)
        return
    seen = set(hidden)
    queue: list[tuple[int, int, CommitId]] = []
    serial = 0
    for oid in starts:
        if oid not in seen:
            seen.add(oid)
            heapq.heappush(queue, (-reader.time(oid), serial, oid))
            serial += 1
    while queue:
        _, _, oid = heapq.heappop(queue)
        commit = reader.commit(oid)
        yield LoggedCommit(oid, commit)
        for parent in commit.parents[:1] if first_parent else commit.parents:
            if parent not in seen:
                seen.add(parent)
                serial += 1
                heapq.heappush(queue, (-reader.time(parent), serial, parent))


def _reachable(reader: CommitReader, starts: Iterable[CommitId]) -> Iterator[CommitId]:
    seen: set[CommitId] = set()
    stack = list(starts)
    while stack:
        oid = stack.pop()
        if oid not in seen:
            seen.add(oid)
            yield oid
            stack.extend(reader.parents(oid))


def _topological(
    reader: CommitReader, starts: Iterable[CommitId], hidden: set[CommitId], first_parent: bool
) -> Iterator[LoggedCommit]:
    """Kahn's algorithm over the reachable part, newest ready commit first."""
    children: dict[CommitId, int] = {}
    stack = [oid for oid in starts if oid not in hidden]
    roots = list(dict.fromkeys(stack))
    seen: set[CommitId] = set()
    while stack:
        oid = stack.pop()
        if oid in seen:
            continue
        seen.add(oid)
        for parent in _followed(reader, oid, first_parent):
            if parent not in hidden:
                children[parent] = children.get(parent, 0) + 1
                stack.append(parent)
    ready = [(-reader.time(oid), number, oid) for number, oid in enumerate(roots) if not children.get(oid)]
    heapq.heapify(ready)
    serial = len(roots)
    while ready:
        _, _, oid = heapq.heappop(ready)
        yield LoggedCommit(oid, reader.commit(oid))
        for parent in _followed(reader, oid, first_parent):
            if parent in hidden:
                continue
            children[parent] -= 1
            if not children[parent]:
                serial += 1
                heapq.heappush(ready, (-reader.time(parent), serial, parent))


def _followed(reader: CommitReader, oid: CommitId, first_parent: bool) -> tuple[CommitId, ...]:
    parents = reader.parents(oid)
    return parents[:1] if first_parent else parents


def touching(
    reader: CommitReader, walk: Iterable[LoggedCommit], paths: Iterable[bytes]
) -> Iterator[LoggedCommit]:
    """Keep the commits that changed any of ``paths`` compared with every parent (so a clean merge is left out)."""
    wanted = list(paths)
    for logged in walk:
        mine = _entries_at(reader, logged.oid, wanted)
        parents = logged.commit.parents
        if not parents:
            if any(entry is not None for entry in mine):
                yield logged
        elif all(_entries_at(reader, parent, wanted) != mine for parent in parents):
            yield logged


def _entries_at(reader: CommitReader, oid: CommitId, paths: Iterable[bytes]) -> list[Entry | None]:
    root = reader.root(oid)
    return [lookup_path(reader.source, root, path) for path in paths]


def without_joins(walk: Iterable[LoggedCommit]) -> Iterator[LoggedCommit]:
    """Leave out the commits that only join concurrent commits of one branch."""
    return (logged for logged in walk if not logged.commit.is_join)

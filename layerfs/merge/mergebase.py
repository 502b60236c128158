"""Merge bases: the lowest common ancestors of commits, and one virtual base where there are several.

Invariant: the answer is exact whatever the clocks said. Times only decide the order in which commits are visited, which
keeps a walk over a long history short; a commit seen from both sides is a base unless another base descends from it.
History comes in as functions, so the same code runs on a store, on memory and on nested virtual commits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from layerfs.ids import CommitId, ObjectId
from layerfs.objects.entry import Entry

Parents = Callable[[CommitId], Sequence[CommitId]]
Time = Callable[[CommitId], int]
MergeRoots = Callable[[Entry | None, Entry, Entry, int], Entry]
"""(base, ours, theirs, depth) → the merged root of a virtual commit; never fails, conflicts are settled inside."""

_OURS = 1
_THEIRS = 2
_STALE = 4
_SIDES = _OURS | _THEIRS


def merge_bases(
    a: CommitId, b: CommitId, parents: Parents, time: Time, *, newborn: bool = False
) -> list[CommitId]:
    """Return all lowest common ancestors, newest first (ties by id); empty when the histories are unrelated.

    With ``newborn`` the caller knows that nothing descends from ``b`` yet. If ``b`` has one parent and that is in the
    history of ``a``, it is the base, and the walk ends there: what others did since the lines parted is not gone through.
    """
    if a == b:
        return [a]
    if newborn and len(parents(b)) == 1 and is_ancestor(parents(b)[0], a, parents, time):
        return list(parents(b))
    found = _common(a, (b,), parents, time)
    if len(found) > 1:
        found = _lowest(found, parents, time)
    return sorted(found, key=lambda commit: (-time(commit), commit))


def is_ancestor(ancestor: CommitId, descendant: CommitId, parents: Parents, time: Time) -> bool:
    """Whether ``ancestor`` is ``descendant`` or reachable from it."""
    return ancestor == descendant or ancestor in _common(
        ancestor, (descendant,), parents, time, until=ancestor
    )


def _common(
    one: CommitId,
    others: Iterable[CommitId],
    parents: Parents,
    time: Time,
    until: CommitId | None = None,
) -> list[CommitId]:
    """Return commits reachable from both sides, lowest first found; may hold ancestors of each other if clocks lie.

    As soon as ``until`` turns out to be reachable from both sides it is all that is returned.

    Each commit carries which sides reach it. One that both reach is a candidate and makes everything below it stale; the
    walk ends when only stale commits are left to visit. A commit is visited again when more sides turn out to reach it.
    """
    flags: dict[CommitId, int] = {one: _OURS}
    for other in others:
        flags[other] = flags.get(other, 0) | _THEIRS
    order = count()
    queue = [(-time(commit), next(order), commit) for commit in flags]
    heapq.heapify(queue)
    fresh = len(queue)  # queued visits that were not stale when they were queued or since
    waiting = dict.fromkeys(flags, 1)
    candidates: list[CommitId] = []
    seen_as_candidate: set[CommitId] = set()
    while queue and fresh > 0:
        _, _, commit = heapq.heappop(queue)
        mine = flags[commit]
        waiting[commit] -= 1
        if not mine & _STALE:
            fresh -= 1
        if mine & _SIDES == _SIDES and not mine & _STALE:
            if commit not in seen_as_candidate:
                seen_as_candidate.add(commit)
                candidates.append(commit)
            mine |= _STALE  # for what lies below; the commit itself stays a candidate
        for parent in parents(commit):
            known = flags.get(parent, 0)
            if known | mine == known:
                continue
            flags[parent] = known | mine
            if parent == until and flags[parent] & _SIDES == _SIDES:
                return [parent]
            if not known & _STALE and mine & _STALE:
                fresh -= waiting.get(parent, 0)  # its queued visits have become stale
            heapq.heappush(queue, (-time(parent), next(order), parent))
            waiting[parent] = waiting.get(parent, 0) + 1
            if not flags[parent] & _STALE:
                fresh += 1
    return [commit for commit in candidates if not flags[commit] & _STALE]


def _lowest(candidates: list[CommitId], parents: Parents, time: Time) -> list[CommitId]:
    """Drop candidates that another candidate descends from."""
    return [
        commit
        for commit in candidates
        if not any(other != commit and is_ancestor(commit, other, parents, time) for other in candidates)
    ]


def virtual_base(
    ours: CommitId,
    theirs: CommitId,
    parents: Parents,
    time: Time,
    root: Callable[[CommitId], Entry],
    merge_roots: MergeRoots,
) -> Entry | None:
    """Return the root to merge over: that of the one base, a merge of all bases oldest first, or None without any.

    Two histories that crossed have several bases, and picking one would undo what the other brought. So the bases are
    merged with each other first, over *their* bases, as virtual commits that exist only for the length of this call.
    """
    invented: dict[CommitId, tuple[tuple[CommitId, CommitId], int, Entry]] = {}

    def parents_of(commit: CommitId) -> Sequence[CommitId]:
        return invented[commit][0] if commit in invented else parents(commit)

    def time_of(commit: CommitId) -> int:
        return invented[commit][1] if commit in invented else time(commit)

    def root_of(commit: CommitId) -> Entry:
        return invented[commit][2] if commit in invented else root(commit)

    def base_of(a: CommitId, b: CommitId, depth: int) -> Entry | None:
        bases = merge_bases(a, b, parents_of, time_of)
        if not bases:
            return None
        bases.reverse()
        merged = bases[0]
        for following in bases[1:]:
            below = base_of(merged, following, depth + 1)
            joined = merge_roots(below, root_of(merged), root_of(following), depth + 1)
            # longer than any real id, so it can never be one
            name = CommitId(ObjectId(b"virtual" + merged + following))
            invented[name] = ((merged, following), max(time_of(merged), time_of(following)), joined)
            merged = name
        return root_of(merged)

    return base_of(ours, theirs, 0)

"""Merging two commits of a store: the merge base, the three-way merge, and the commit that records it.

Joins, ``merge``, ``publish`` and ``update`` all go through :func:`merge_commits`, so there is one answer to what happens
when two lines of work meet. The rules are in ``merge``; moving pointers is the caller's.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from layerfs.errors import Refused
from layerfs.history.authorship import Author
from layerfs.history.history import CommitReader
from layerfs.ids import CommitId
from layerfs.merge.conflicts import Conflict, Note
from layerfs.merge.mergebase import merge_bases, virtual_base
from layerfs.merge.textmerge import Labels
from layerfs.merge.treemerge import merge_time, merge_trees, merge_virtual
from layerfs.objects.commits import Commit, put_commit, sorted_provenance
from layerfs.objects.entry import Entry
from layerfs.objects.environment import put_root
from layerfs.objects.source import ObjectStore


class Outcome(Enum):
    """How two commits relate once merged."""

    UP_TO_DATE = "up-to-date"
    FAST_FORWARD = "fast-forward"
    MERGED = "merged"
    CONFLICT = "conflict"


class Merged(NamedTuple):
    """A merge that is not recorded yet: the resulting root (None on conflict), and what was decided."""

    outcome: Outcome
    ours: CommitId
    theirs: CommitId
    root: Entry | None
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[Note, ...] = ()


class MergeNames(NamedTuple):
    """What conflict markers call the two sides."""

    ours: str
    theirs: str


def merge_commits(
    store: ObjectStore,
    ours: CommitId,
    theirs: CommitId,
    now_ns: int,
    names: MergeNames,
    *,
    allow_unrelated: bool = False,
    newborn: bool = False,
) -> Merged:
    """Merge ``theirs`` into ``ours``; pure but for objects put. Unrelated histories are refused unless allowed.

    ``newborn`` says that ``theirs`` was made just now, so that nothing descends from it (see ``mergebase``).
    """
    reader = CommitReader(store)
    bases = merge_bases(ours, theirs, reader.parents, reader.time, newborn=newborn)
    if theirs in bases:
        return Merged(Outcome.UP_TO_DATE, ours, theirs, reader.root(ours))
    if ours in bases:
        return Merged(Outcome.FAST_FORWARD, ours, theirs, reader.root(theirs))
    if not bases and not allow_unrelated:
        raise Refused(
            "the two histories have nothing in common", "--allow-unrelated merges them all the same"
        )
    if len(bases) == 1:
        base: Entry | None = reader.root(bases[0])
    else:
        base = virtual_base(
            ours,
            theirs,
            reader.parents,
            reader.time,
            reader.root,
            lambda below, one, two, depth: merge_virtual(store, store, below, one, two, depth),
        )
    result = merge_trees(
        store,
        store,
        base,
        reader.root(ours),
        reader.root(theirs),
        merge_time_ns=merge_time(now_ns, reader.time(ours), reader.time(theirs)),
        labels=Labels(b"base", names.ours.encode(), names.theirs.encode()),
        our_renames=_renames_since(reader, ours, bases),
        their_renames=_renames_since(reader, theirs, bases),
    )
    outcome = Outcome.MERGED if result.is_clean else Outcome.CONFLICT
    return Merged(outcome, ours, theirs, result.root, result.conflicts, result.notes)


def _renames_since(
    reader: CommitReader, commit: CommitId, bases: list[CommitId]
) -> tuple[tuple[bytes, bytes], ...]:
    """Return the renames recorded on the first-parent line from ``commit`` down to a merge base, oldest first."""
    found: list[tuple[bytes, bytes]] = []
    stop = set(bases)
    at: CommitId | None = commit
    while at is not None and at not in stop:
        one = reader.commit(at)
        found[:0] = one.renames
        at = one.parents[0] if one.parents else None
    return tuple(found)


def put_merge(
    store: ObjectStore,
    merged: Merged,
    author: Author,
    message: str,
    provenance: dict[str, str],
) -> CommitId:
    """Put the commit of a clean merge: two parents, ours first, and a note for every decision."""
    assert merged.root is not None
    commit = Commit(
        put_root(store, merged.root),
        (merged.ours, merged.theirs),
        author.time_ns,
        author.tz_minutes,
        author.name,
        message,
        sorted_provenance(provenance),
        notes=tuple((note.path, f"{note.kind}: {note.text}") for note in merged.notes),
    )
    return put_commit(store, commit)

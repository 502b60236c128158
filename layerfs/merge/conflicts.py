"""Conflicts and notes: what a merge could not decide, and what it decided that somebody may want to know.

Invariant: a conflict carries every side as a term, so nothing a side had is lost with it; kind names are stable text
that scripts rely on (layerfs-merge(7)). A *conflict* is hard: nothing is created while one is open. A *note* is soft: the
merge went on, and the note says what it overrode, dropped or combined. Both are values, not exceptions.

Elsewhere: when one arises (``treemerge``), how it is shown (``present``), and open conflicts of a workspace.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from layerfs.merge.textmerge import Region
from layerfs.objects.entry import Entry


class ConflictKind(StrEnum):
    """Why a path conflicts; the values are part of the scripting interface."""

    BOTH_MODIFIED = "both-modified"
    BOTH_ADDED = "both-added"
    DELETED_BY_US = "deleted-by-us"
    DELETED_BY_THEM = "deleted-by-them"
    TYPE = "type"
    FILE_DIR = "file-dir"
    BINARY = "binary"
    SYMLINK = "symlink"
    XATTR = "xattr"
    RENAME_RENAME = "rename-rename"
    RENAME_COLLISION = "rename-collision"
    UNIT = "unit"
    GIT_REF = "git-ref"
    GIT_INDEX = "git-index"


class NoteKind(StrEnum):
    """What a merge decided by a rule; the values are part of the scripting interface."""

    MODE = "mode"
    OWNER = "owner"
    XATTR = "xattr"
    MODE_DELETE = "mode-delete"
    LINK = "link"
    DERIVED_DROPPED = "derived-dropped"
    OVERRIDDEN = "overridden"
    DIR_RENAME = "dir-rename"
    ADDED_IN_DELETED = "added-in-deleted"
    CASE_COLLISION = "case-collision"


_MIRRORED = {
    ConflictKind.DELETED_BY_US: ConflictKind.DELETED_BY_THEM,
    ConflictKind.DELETED_BY_THEM: ConflictKind.DELETED_BY_US,
}


class Conflict(NamedTuple):
    """One path both sides changed incompatibly; ``hunks`` are the conflicting line ranges of a text."""

    path: bytes
    kind: ConflictKind
    base: Entry | None
    ours: Entry | None
    theirs: Entry | None
    hunks: tuple[Region, ...] = ()
    detail: str = ""

    def swapped(self) -> Conflict:
        """Return the same conflict seen from the other side."""
        hunks = tuple(
            hunk._replace(
                ours_start=hunk.theirs_start,
                ours_end=hunk.theirs_end,
                theirs_start=hunk.ours_start,
                theirs_end=hunk.ours_end,
            )
            for hunk in self.hunks
        )
        kind = _MIRRORED.get(self.kind, self.kind)
        return self._replace(kind=kind, ours=self.theirs, theirs=self.ours, hunks=hunks)


class Note(NamedTuple):
    """One decision of the merge at one path; ``ours`` and ``theirs`` are the sides it was made about, where kept."""

    path: bytes
    kind: NoteKind
    text: str
    ours: Entry | None = None
    theirs: Entry | None = None


def sort_conflicts(found: Iterable[Conflict]) -> tuple[Conflict, ...]:
    """Return conflicts in path order, name by name."""
    return tuple(sorted(found, key=lambda one: (one.path.split(b"/"), one.kind)))


def sort_notes(found: Iterable[Note]) -> tuple[Note, ...]:
    """Return notes in path order, name by name."""
    return tuple(sorted(found, key=lambda one: (one.path.split(b"/"), one.kind, one.text)))

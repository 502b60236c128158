"""Conflicts and notes: what a merge could not decide, and what it decided that somebody may want to know.

Invariant: a conflict carries every side as a term, so nothing a side had is lost with it; kind names are stable text
that scripts rely on (layerfs-merge(7)). A *conflict* is hard: nothing is created while one is open. A *note* is soft: the
merge went on, and the note says what it overrode, dropped or combined. Both are values, not exceptions.

Elsewhere: when one arises (``treemerge``), how it is shown (``present``), and open conflicts of a workspace.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from layerfs.merge.textmerge import Region
from layerfs.objects.entry import Entry, EntryKind


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

    @property
    def severity(self) -> str:
        """Conflicts block: nothing is created while one is open."""
        return "hard"

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

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form; line numbers count from 1, ``count`` 0 marks an insertion before ``start``."""
        data = _path_fields(self.path) | {
            "kind": str(self.kind),
            "severity": self.severity,
            "base": entry_dict(self.base),
            "ours": entry_dict(self.ours),
            "theirs": entry_dict(self.theirs),
        }
        if self.hunks:
            data["hunks"] = [_hunk_dict(hunk) for hunk in self.hunks]
        if self.detail:
            data["detail"] = self.detail
        return data


class Note(NamedTuple):
    """One decision of the merge at one path; ``ours`` and ``theirs`` are the sides it was made about, where kept."""

    path: bytes
    kind: NoteKind
    text: str
    ours: Entry | None = None
    theirs: Entry | None = None

    @property
    def severity(self) -> str:
        """Notes inform: the merge went on."""
        return "soft"

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return _path_fields(self.path) | {
            "kind": str(self.kind),
            "severity": self.severity,
            "text": self.text,
            "ours": entry_dict(self.ours),
            "theirs": entry_dict(self.theirs),
        }


def sort_conflicts(found: Iterable[Conflict]) -> tuple[Conflict, ...]:
    """Return conflicts in path order, name by name."""
    return tuple(sorted(found, key=lambda one: (one.path.split(b"/"), one.kind)))


def sort_notes(found: Iterable[Note]) -> tuple[Note, ...]:
    """Return notes in path order, name by name."""
    return tuple(sorted(found, key=lambda one: (one.path.split(b"/"), one.kind, one.text)))


def entry_dict(entry: Entry | None) -> dict[str, object] | None:
    """Return the JSON form of one term; ``id`` is the hex content or tree id, ``target`` a symlink's text."""
    if entry is None:
        return None
    data: dict[str, object] = {"type": entry.kind.name.lower(), "mode": f"{entry.mode:04o}"}
    if entry.kind is EntryKind.SYMLINK:
        data["target"] = entry.ref.decode("utf-8", "backslashreplace")
    elif entry.ref:
        data["id"] = entry.ref.hex()
    if entry.kind is EntryKind.FILE:
        data["size"] = entry.size
    return data


def _path_fields(path: bytes) -> dict[str, object]:
    try:
        return {"path": path.decode("utf-8")}
    except UnicodeDecodeError:
        lossless = base64.b64encode(path).decode("ascii")
        return {"path": path.decode("utf-8", "replace"), "path_b64": lossless}


def _hunk_dict(hunk: Region) -> dict[str, object]:
    return {
        "base": {"start": hunk.base_start + 1, "count": hunk.base_end - hunk.base_start},
        "ours": {"start": hunk.ours_start + 1, "count": hunk.ours_end - hunk.ours_start},
        "theirs": {"start": hunk.theirs_start + 1, "count": hunk.theirs_end - hunk.theirs_start},
    }

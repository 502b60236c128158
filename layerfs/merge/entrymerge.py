"""The decision for one path that is not a directory on either side: design table 2.2, one entry at a time.

Invariant: the result is one of the three entries, a merge of them, or nothing – and whenever something a side had is not
in the result, a conflict or a note holds it. What a path's class asks for (caches, packages, git) is decided here too;
directories and renames are ``treemerge``'s business, the values inside a git directory ``gitdir``'s.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from layerfs.merge import gitdir, gitrefs, textmerge
from layerfs.merge.classes import DERIVED, PathClass
from layerfs.merge.conflicts import Conflict, ConflictKind, Note, NoteKind
from layerfs.merge.gitdir import Role
from layerfs.merge.gitstate import GitState
from layerfs.merge.textmerge import Labels, Region
from layerfs.merge.threeway import (
    CLASH,
    merge_attributes,
    merge_times,
    merge_value,
    same,
    same_content,
)
from layerfs.objects.content import put_content, read_content
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import split
from layerfs.objects.source import ObjectStore

Explain = Callable[[bytes, Entry, Entry, bool], bool]
"""(path, base, the edited entry, whether ours deleted it) → whether a rename explains the deletion."""


class Findings:
    """Everything a merge has to say, collected as it goes."""

    def __init__(self) -> None:
        self.conflicts: list[Conflict] = []
        self.notes: list[Note] = []
        self.dropped: Counter[bytes] = Counter()

    def mark(self) -> tuple[int, int]:
        """Return a point :meth:`rewind` can go back to."""
        return len(self.conflicts), len(self.notes)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Forget what was found since ``mark``."""
        del self.conflicts[mark[0] :]
        del self.notes[mark[1] :]

    def drop(self, path: bytes) -> None:
        """Count a derived file left out of the result; reported per directory, as there may be thousands."""
        self.dropped[split(path)[0]] += 1

    def all_notes(self) -> list[Note]:
        """Return the notes, dropped files included."""
        return self.notes + [
            Note(path, NoteKind.DERIVED_DROPPED, f"{number} derived file(s) both sides changed were left out")
            for path, number in self.dropped.items()
        ]


class Path(NamedTuple):
    """A path with the class its names give it."""

    name: bytes
    cls: PathClass


class EntryMerger:
    """Merges entries; ``depth`` above 0 means inside a virtual base, where a conflict falls back instead of counting."""

    def __init__(
        self,
        store: ObjectStore,
        findings: Findings,
        merge_time_ns: int,
        labels: Labels,
        depth: int,
        explain: Explain,
        git: GitState,
    ) -> None:
        self.store = store
        self.findings = findings
        self.merge_time_ns = merge_time_ns
        self.labels = labels
        self.depth = depth
        self.explain = explain
        self.git = git

    def merge(self, path: Path, base: Entry | None, ours: Entry | None, theirs: Entry | None) -> Entry | None:
        """Return the merged entry, None for absent; nothing here is a directory (a base that was one counts as None)."""
        if same(ours, base) or same(ours, theirs):
            return self._take(path, base, theirs, ours)
        if same(theirs, base):
            return self._take(path, base, ours, theirs)
        if ours is None or theirs is None:
            assert base is not None
            return self._changed_and_deleted(path, base, ours, theirs)
        return self._both_changed(path, base, ours, theirs)

    def conflict(
        self,
        kind: ConflictKind,
        path: bytes,
        base: Entry | None,
        ours: Entry | None,
        theirs: Entry | None,
        hunks: tuple[Region, ...] = (),
        detail: str = "",
    ) -> Entry | None:
        """Record a conflict; return what stands in for it (inside a virtual base: the base, and nothing is recorded)."""
        if self.depth:
            return base
        self.findings.conflicts.append(Conflict(path, kind, base, ours, theirs, hunks, detail))
        return ours if ours is not None else theirs

    def note(self, path: bytes, kind: NoteKind, text: str, ours: Entry | None, theirs: Entry | None) -> None:
        """Record a soft note."""
        if not self.depth:
            self.findings.notes.append(Note(path, kind, text, ours, theirs))

    def side(self, is_ours: bool) -> str:
        """Return what to call a side in a note."""
        label = self.labels.ours if is_ours else self.labels.theirs
        return label.decode("utf-8", "backslashreplace") or ("ours" if is_ours else "theirs")

    def stamped(self, path: Path, base: Entry | None, entry: Entry) -> Entry:
        """Give a source file that changed since the base the time of the merge, so that builds see it as new.

        Tools compare times: an older but different source under a newer output would pass as up to date. Caches and
        packages keep the times of their side, since their files refer to each other's.
        """
        if path.cls is PathClass.PLAIN and entry.kind is EntryKind.FILE and not same_content(base, entry):
            return entry._replace(mtime_ns=self.merge_time_ns)
        return entry

    def _take(self, path: Path, base: Entry | None, new: Entry | None, other: Entry | None) -> Entry | None:
        """Only one side changed the entry, or both made the same change."""
        if new is None:
            if base is not None and path.cls is PathClass.GIT and self._only_grows(path):
                return base
            return None
        if other is not None:
            new = new._replace(mtime_ns=merge_times(base, new, other))
        return self.stamped(path, base, new)

    def _only_grows(self, path: Path) -> bool:
        return gitdir.role_of(gitdir.inside(path.name)[1]) in (Role.OBJECT, Role.PACK)

    def _is_derived(self, path: Path) -> bool:
        return path.cls is PathClass.CACHE or (
            path.cls is PathClass.OUTPUT and not self.git.is_tracked(path.name)
        )

    def _left_out(self, path: Path, base: Entry | None) -> Entry | None:
        if self.depth:
            return base
        self.findings.drop(path.name)
        return None

    def _changed_and_deleted(
        self, path: Path, base: Entry, ours: Entry | None, theirs: Entry | None
    ) -> Entry | None:
        kept = ours if ours is not None else theirs
        assert kept is not None
        if path.cls in DERIVED and self._is_derived(path):
            return self._left_out(path, base)
        if path.cls is PathClass.GIT:
            role = gitdir.role_of(gitdir.inside(path.name)[1])
            if role in (Role.OBJECT, Role.PACK, Role.LOG, Role.SCRATCH):
                return kept
            if role in (Role.DERIVED, Role.LOCK):
                return self._left_out(path, base)
            if role is Role.INDEX and self._same_index(base, kept):
                return None
            if role is Role.REF:
                return self._packed_by_one(path, base, ours, theirs)
        if same_content(base, kept):
            text = "deleted by one side; the other changed only its attributes"
            self.note(path.name, NoteKind.MODE_DELETE, text, ours, theirs)
            return None
        if not self.depth and self.explain(path.name, base, kept, ours is None):
            return None
        kind = ConflictKind.DELETED_BY_US if ours is None else ConflictKind.DELETED_BY_THEM
        return self.conflict(kind, path.name, base, ours, theirs)

    def _both_changed(self, path: Path, base: Entry | None, ours: Entry, theirs: Entry) -> Entry | None:
        if ours.kind is not theirs.kind:
            if path.cls in DERIVED and self._is_derived(path):
                return self._left_out(path, base)
            return self.conflict(ConflictKind.TYPE, path.name, base, ours, theirs)
        before = base if base is not None and base.kind is ours.kind else None
        content: Entry | None = ours
        if before is not None or ours.ref != theirs.ref:
            chosen = merge_value(None if before is None else before.ref, ours.ref, theirs.ref)
            if chosen is CLASH:
                mark = len(self.findings.conflicts)
                content = self._content(path, base, before, ours, theirs)
                if content is None or content is base or len(self.findings.conflicts) > mark:
                    return content
            elif chosen != ours.ref:
                content = theirs
        assert content is not None
        attributes = merge_attributes(before, ours, theirs)
        if attributes.xattr_clashes:
            names = ", ".join(name.decode("utf-8", "backslashreplace") for name in attributes.xattr_clashes)
            return self.conflict(ConflictKind.XATTR, path.name, base, ours, theirs, detail=names)
        if attributes.mode_combined:
            text = f"permissions combined: {attributes.mode:04o}"
            self.note(path.name, NoteKind.MODE, text, ours, theirs)
        if attributes.owner_kept:
            text = f"both sides changed the owner; kept that of {self.side(True)}"
            self.note(path.name, NoteKind.OWNER, text, ours, theirs)
        if attributes.unlinked:
            self.note(path.name, NoteKind.LINK, "both sides changed its hard links; unlinked", ours, theirs)
        return self.stamped(path, base, attributes.onto(content, merge_times(before, ours, theirs)))

    def _content(
        self, path: Path, base: Entry | None, before: Entry | None, ours: Entry, theirs: Entry
    ) -> Entry | None:
        """Both sides changed the content, differently; ``before`` is the base if it is of the same kind."""
        if path.cls in DERIVED and self._is_derived(path):
            return self._left_out(path, base)
        if ours.kind is EntryKind.SYMLINK:
            if _normal_target(ours.ref) == _normal_target(theirs.ref):
                return min(ours, theirs, key=lambda entry: (len(entry.ref), entry.ref))
            return self.conflict(ConflictKind.SYMLINK, path.name, base, ours, theirs)
        if ours.kind is not EntryKind.FILE:
            return self.conflict(ConflictKind.TYPE, path.name, base, ours, theirs, detail="device number")
        if path.cls is PathClass.GIT:
            return self._git_file(path, base, before, ours, theirs)
        if path.cls is PathClass.UNIT:
            return self.conflict(ConflictKind.UNIT, path.name, base, ours, theirs)
        return self._text(path, base, before, ours, theirs)

    def _text(
        self, path: Path, base: Entry | None, before: Entry | None, ours: Entry, theirs: Entry
    ) -> Entry | None:
        terms = [entry for entry in (before, ours, theirs) if entry is not None]
        texts: list[bytes] = []
        if all(entry.size <= textmerge.TEXT_MAX_BYTES for entry in terms):
            texts = [read_content(self.store, entry) for entry in terms]
        if not texts or not all(map(textmerge.is_text, texts)):
            return self.conflict(ConflictKind.BINARY, path.name, base, ours, theirs)
        merged = textmerge.merge(texts[0] if before is not None else b"", texts[-2], texts[-1])
        clean = merged.clean
        if clean is None:
            if not self.depth:
                kind = ConflictKind.BOTH_ADDED if before is None else ConflictKind.BOTH_MODIFIED
                return self.conflict(kind, path.name, base, ours, theirs, merged.hunks)
            # longer markers per level, so that a conflict over this base cannot be mistaken for its own
            size = textmerge.marker_size(*texts) + 2 * self.depth
            clean = textmerge.render(merged, self.labels, "merge", size)
        return self._with_content(ours, clean)

    def _with_content(self, entry: Entry, content: bytes) -> Entry:
        stored = put_content(self.store, content, entry)
        return entry._replace(ref=stored.ref, size=stored.size)

    def _git_file(
        self, path: Path, base: Entry | None, before: Entry | None, ours: Entry, theirs: Entry
    ) -> Entry | None:
        role = gitdir.role_of(gitdir.inside(path.name)[1])
        if role is Role.OBJECT:
            return min(ours, theirs, key=lambda entry: (entry.size, entry.ref))
        if role in (Role.DERIVED, Role.LOCK):
            return self._left_out(path, base)
        if role is Role.SCRATCH:
            text = f"both sides changed it; kept that of {self.side(True)}"
            self.note(path.name, NoteKind.OVERRIDDEN, text, ours, theirs)
            return ours
        if role is Role.LOG:
            logs = (
                b"" if entry is None else read_content(self.store, entry) for entry in (before, ours, theirs)
            )
            return self._with_content(ours, gitdir.merge_logs(*logs))
        if role is Role.INDEX:
            return self._index(path, base, before, ours, theirs)
        if role is Role.REF:
            values = [read_content(self.store, entry).strip() for entry in (ours, theirs)]
            if values[0] == values[1]:
                return min(ours, theirs, key=lambda entry: (entry.size, entry.ref))
            return self._packed_by_both(path, base, ours, theirs)
        if role is Role.TEXT:
            return self._text(path, base, before, ours, theirs)
        return self.conflict(ConflictKind.UNIT, path.name, base, ours, theirs)

    def _packed_by_one(
        self, path: Path, base: Entry, ours: Entry | None, theirs: Entry | None
    ) -> Entry | None:
        """One side deleted a loose ref, the other changed it: if it is only packed there, it has not moved."""
        kept = ours if ours is not None else theirs
        assert kept is not None
        split = gitrefs.split_ref(path.name)
        if split is not None and base.kind is kept.kind is EntryKind.FILE:
            packed = self.git.refs[2 if ours is not None else 1].packed(split[0])
            found = packed.get(split[1]) if packed is not None else None
            values = [read_content(self.store, entry).strip() for entry in (base, kept)]
            if found is not None:
                merged = merge_value(values[0], found.value, values[1])
                if merged is not CLASH:
                    return kept if merged == values[1] else None
        return self.conflict(ConflictKind.GIT_REF, path.name, base, ours, theirs)

    def _packed_by_both(self, path: Path, base: Entry | None, ours: Entry, theirs: Entry) -> Entry | None:
        directory, _, name = path.name.rpartition(b"/")
        if name == b"packed-refs":
            before = self.git.refs[0].values(directory)
            mine, other = (
                gitrefs.read_packed_refs(read_content(self.store, entry)) for entry in (ours, theirs)
            )
            if before is not None and mine is not None and other is not None:
                merged = gitrefs.merge_packed_refs(before, mine, other)
                if merged is not None:
                    return self._with_content(ours, merged)
        return self.conflict(ConflictKind.GIT_REF, path.name, base, ours, theirs)

    def _index(
        self, path: Path, base: Entry | None, before: Entry | None, ours: Entry, theirs: Entry
    ) -> Entry | None:
        if self._same_index(ours, theirs):
            return max(ours, theirs, key=lambda entry: (entry.mtime_ns, entry.ref))
        if before is not None and self._same_index(before, ours):
            return theirs
        if before is not None and self._same_index(before, theirs):
            return ours
        return self.conflict(ConflictKind.GIT_INDEX, path.name, base, ours, theirs)

    def _same_index(self, a: Entry, b: Entry) -> bool:
        if a.kind is not EntryKind.FILE or b.kind is not EntryKind.FILE:
            return False
        if a.ref == b.ref:
            return True
        first, second = (gitdir.read_index(read_content(self.store, entry)) for entry in (a, b))
        return first is not None and first == second


def _normal_target(target: bytes) -> bytes:
    """Return a symlink target without ``//`` and ``/./``; ``..`` is left alone, it may cross another symlink."""
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    return (b"/" if posixpath.isabs(target) else b"") + b"/".join(parts)

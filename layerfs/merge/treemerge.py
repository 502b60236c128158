"""Three-way merge of whole environments: which paths differ, and how directories come together.

Invariant: a merge is a function of its arguments – three states, recorded renames, a time – and its cost follows the
change, not the tree: what neither side touched is never read. Merging with the sides swapped gives the same clean result
and the mirrored conflicts. Nothing is put into the sink for a merge that conflicts, except objects nobody refers to.

Elsewhere: single entries (``entrymerge``), texts (``textmerge``), which base to use (``mergebase``), what is done with
the result. Rules: design page 4; decisions in layerfs-merge(7).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from layerfs.ids import ObjectId
from layerfs.merge import gitdir
from layerfs.merge.classes import (
    DERIVED,
    PathClass,
    class_below,
    class_of,
)
from layerfs.merge.conflicts import Conflict, ConflictKind, Note, NoteKind, sort_conflicts, sort_notes
from layerfs.merge.entrymerge import EntryMerger, Findings, Path
from layerfs.merge.gitdir import Role
from layerfs.merge.gitstate import GitState
from layerfs.merge.linkmerge import relink
from layerfs.merge.renames import RenameList, Renames
from layerfs.merge.textmerge import Labels
from layerfs.merge.threeway import merge_attributes, same
from layerfs.merge.units import Names, clashing_distributions, mixed_databases
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import diff_names, diff_trees, edit_paths, join, lookup_path, split, tree_of
from layerfs.objects.kinds import Kind
from layerfs.objects.source import ObjectSink, ObjectSource
from layerfs.objects.trees import build_tree, edit_tree, find_entry, read_node, read_tree

NO_LABELS = Labels()
SECOND = 1_000_000_000
_SMALL_KEPT = 8


class MergeResult(NamedTuple):
    """``root`` is the merged environment, None while anything conflicts; both lists are sorted by path."""

    root: Entry | None
    conflicts: tuple[Conflict, ...]
    notes: tuple[Note, ...]

    @property
    def is_clean(self) -> bool:
        """Whether the merge went through."""
        return self.root is not None


def merge_time(now_ns: int, *commit_times_ns: int) -> int:
    """Return the time a merge stamps on changed sources: not before anything involved, on a whole second."""
    return -(-max((now_ns, *commit_times_ns)) // SECOND) * SECOND


def merge_trees(
    source: ObjectSource,
    sink: ObjectSink,
    base: Entry | None,
    ours: Entry,
    theirs: Entry,
    *,
    merge_time_ns: int,
    labels: Labels = NO_LABELS,
    our_renames: RenameList = (),
    their_renames: RenameList = (),
) -> MergeResult:
    """Merge two environments over their base (None: unrelated histories).

    The three entries are root directories. When only one side changed anything the result is that side as it is, times
    included. Renames are (old path, new path) pairs recorded since the base, oldest first. ``labels`` name the sides in
    notes.
    """
    merger = _TreeMerger(
        source, sink, (base, ours, theirs), merge_time_ns, labels, (our_renames, their_renames)
    )
    return merger.run()


def merge_virtual(
    source: ObjectSource, sink: ObjectSink, base: Entry | None, ours: Entry, theirs: Entry, depth: int
) -> Entry:
    """Merge two merge bases into a virtual one; conflicts become long markers in texts, and else the base's version."""
    root = _TreeMerger(source, sink, (base, ours, theirs), 0, NO_LABELS, ((), ()), depth).run().root
    return ours if root is None else root


def changed_paths(source: ObjectSource, before: Entry, after: Entry) -> Iterator[bytes]:
    """Yield the paths that differ in more than times, in path order: what a merge brought into ``before``."""
    return (
        path
        for path, old, new in diff_trees(source, before, after)
        if not (same(old, new) or (_is_dir(old) and _is_dir(new) and same(_bare(old), _bare(new))))
    )


class _Both:
    """Reads from one place, puts into another, and can read back what it has put."""

    def __init__(self, source: ObjectSource, sink: ObjectSink) -> None:
        self._source = source
        self._sink = sink
        self._fresh: dict[ObjectId, tuple[Kind, bytes]] = {}

    def read(self, oid: ObjectId, kind: Kind) -> bytes:
        fresh = self._fresh.get(oid)
        return fresh[1] if fresh is not None and fresh[0] is kind else self._source.read(oid, kind)

    def put(self, kind: Kind, payload: bytes, *, like: ObjectId | None = None) -> ObjectId:
        oid = self._sink.put(kind, payload, like=like)
        self._fresh[oid] = (kind, payload)
        return oid


class _TreeMerger:
    def __init__(
        self,
        source: ObjectSource,
        sink: ObjectSink,
        roots: tuple[Entry | None, Entry, Entry],
        merge_time_ns: int,
        labels: Labels,
        renames: tuple[RenameList, RenameList],
        depth: int = 0,
    ) -> None:
        self.store = _Both(source, sink)
        self.base, self.ours, self.theirs = roots
        self.depth = depth
        self.findings = Findings()
        self.our_renames = Renames(source, self.base, self.ours, renames[0])
        self.their_renames = Renames(source, self.base, self.theirs, renames[1])
        self.git = GitState(self.store, *roots)
        self.entries = EntryMerger(
            self.store, self.findings, merge_time_ns, labels, depth, self._explain, self.git
        )
        self.small: dict[bytes, dict[bytes, Entry] | None] = {}
        self.moved: dict[bytes, Entry] = {}
        self.linked: dict[int, dict[bytes, tuple[Entry | None, Entry]]] = {}

    def run(self) -> MergeResult:
        base, ours, theirs = self.base, self.ours, self.theirs
        if ours == theirs or theirs == base:
            return MergeResult(ours, (), ())
        if ours == base:
            return MergeResult(theirs, (), ())
        self._check_diverging_renames()
        root = self._directories(Path(b"", PathClass.PLAIN), base, ours, theirs)
        if not self.findings.conflicts:
            edits = self.moved | self._relink()
            root = edit_paths(self.store, root, edits) if edits else root
            self._report_refs(self.git.misplaced_refs(root))
        conflicts = sort_conflicts(self.findings.conflicts)
        return MergeResult(None if conflicts else root, conflicts, sort_notes(self.findings.all_notes()))

    # -- one name ------------------------------------------------------------------------------------------------------

    def _name(self, path: Path, base: Entry | None, ours: Entry | None, theirs: Entry | None) -> Entry | None:
        if ours == theirs and (ours is None or ours == base):
            return ours
        if _is_dir(ours) and _is_dir(theirs):
            assert ours is not None and theirs is not None
            return self._directories(path, base if _is_dir(base) else None, ours, theirs)
        if _is_dir(ours):
            assert ours is not None
            return self._directory_against(path, base, ours, theirs, True)
        if _is_dir(theirs):
            assert theirs is not None
            return self._directory_against(path, base, theirs, ours, False)
        return self._leaf(path, None if _is_dir(base) else base, ours, theirs)

    def _leaf(self, path: Path, base: Entry | None, ours: Entry | None, theirs: Entry | None) -> Entry | None:
        merged = self.entries.merge(path, base, ours, theirs)
        if merged is not None and merged.link_group:
            self.linked.setdefault(merged.link_group, {})[path.name] = (base, merged)
        return merged

    # -- directories on both sides -------------------------------------------------------------------------------------

    def _directories(self, path: Path, base: Entry | None, ours: Entry, theirs: Entry) -> Entry:
        attributes = merge_attributes(base, ours, theirs)
        if attributes.mode_combined:
            text = f"permissions combined: {attributes.mode:04o}"
            self.entries.note(path.name, NoteKind.MODE, text, ours, theirs)
        if attributes.owner_kept:
            self.entries.note(
                path.name, NoteKind.OWNER, "both sides changed the owner; ours kept", ours, theirs
            )
        if attributes.xattr_clashes:
            text = f"both sides changed an extended attribute; kept that of {self.entries.side(True)}"
            self.entries.note(path.name, NoteKind.XATTR, text, ours, theirs)
        ref = self._untouched(path, base, ours, theirs)
        if ref is None:
            ref = self._merge_names(path, base, ours, theirs)
        merged = ours._replace(ref=ref)
        return attributes.onto(merged, max(ours.mtime_ns, theirs.mtime_ns))

    def _untouched(self, path: Path, base: Entry | None, ours: Entry, theirs: Entry) -> bytes | None:
        """Return the content to take unread: where no times are to be stamped and one side changed nothing below."""
        if path.cls is PathClass.PLAIN:
            return None
        if path.cls is PathClass.GIT:
            inside = gitdir.inside(path.name)[1]
            if inside and gitdir.role_of(inside) in (Role.OBJECT, Role.PACK):
                return None
        if ours.ref == theirs.ref or (base is not None and theirs.ref == base.ref):
            return ours.ref
        return theirs.ref if base is not None and ours.ref == base.ref else None

    def _merge_names(self, path: Path, base: Entry | None, ours: Entry, theirs: Entry) -> bytes:
        names = self._differing(base, ours, theirs)
        settled = self._settle_units(path, names, ours)
        edits: dict[bytes, Entry | None] = {}
        for name in sorted(names):
            if name in settled:
                continue
            b, o, t = names[name]
            merged = self._name(self._below(path, name), b, o, t)
            if merged != o:
                edits[name] = merged
        self._note_collisions(path, names)
        if path.cls is PathClass.GIT and b"packed-refs" in names and not self.depth:
            self._report_refs(self.git.compare_refs(path.name))
        if self.findings.conflicts:
            return ours.ref
        return edit_tree(self.store, tree_of(ours), edits)

    def _below(self, path: Path, name: bytes) -> Path:
        return Path(join(path.name, name), class_below(path.cls, name))

    def _differing(self, base: Entry | None, ours: Entry, theirs: Entry) -> Names:
        """Return the names where the three directories are not all equal."""
        mine = self._changes(base, ours)
        others = self._changes(base, theirs)
        names: Names = {}
        for name, (before, after) in mine.items():
            names[name] = (before, after, others[name][1] if name in others else before)
        for name, (before, after) in others.items():
            if name not in names:
                names[name] = (before, before, after)
        return names

    def _changes(self, base: Entry | None, side: Entry) -> dict[bytes, tuple[Entry | None, Entry | None]]:
        if base is not None and base.ref == side.ref:
            return {}
        after = self._small(side)
        if base is None:
            items = read_tree(self.store, tree_of(side)) if after is None else after.items()
            return {name: (None, entry) for name, entry in items}
        before = None if after is None else self._small(base)
        if before is None or after is None:
            found = diff_names(self.store, tree_of(base), tree_of(side))
            return {name: (old, new) for name, old, new in found}
        changes: dict[bytes, tuple[Entry | None, Entry | None]] = {}
        for name, entry in after.items():
            old = before.get(name)
            if old != entry:
                changes[name] = (old, entry)
        for name, entry in before.items():
            if name not in after:
                changes[name] = (entry, None)
        return changes

    def _small(self, directory: Entry) -> dict[bytes, Entry] | None:
        """Return a directory that fits in one node, decoded once for both comparisons; None for larger ones."""
        if directory.ref not in self.small:
            if len(self.small) >= _SMALL_KEPT:
                self.small.clear()
            node = read_node(self.store, tree_of(directory))
            self.small[directory.ref] = dict(node.entries) if node.level == 0 else None
        return self.small[directory.ref]

    # -- a directory on one side only ----------------------------------------------------------------------------------

    def _directory_against(
        self, path: Path, base: Entry | None, directory: Entry, other: Entry | None, is_ours: bool
    ) -> Entry | None:
        """``other`` is absent or not a directory; ``is_ours`` says whose the directory is."""
        if not _is_dir(base):
            if other is None or same(other, base):
                return self._added(path, directory, is_ours)
            return self._file_against_directory(path, base, directory, other, is_ours)
        assert base is not None
        if other is None and self._only_grows(path):
            return directory
        if same(base, directory):
            return None if other is None else self._leaf(path, None, *_sides(None, other, is_ours))
        if other is None:
            return self._remains(path, base, directory, is_ours)
        mark = self.findings.mark()
        if self._remains(path, base, directory, is_ours) is None and self.findings.mark()[0] == mark[0]:
            return self._leaf(path, None, *_sides(None, other, is_ours))
        self.findings.rewind(mark)
        return self._file_against_directory(path, base, directory, other, is_ours)

    def _file_against_directory(
        self, path: Path, base: Entry | None, directory: Entry, other: Entry, is_ours: bool
    ) -> Entry | None:
        if path.cls is PathClass.CACHE and not self.depth:
            self.findings.drop(path.name)
            return None
        ours, theirs = _sides(directory, other, is_ours)
        return self.entries.conflict(ConflictKind.FILE_DIR, path.name, base, ours, theirs)

    def _only_grows(self, path: Path) -> bool:
        if path.cls is not PathClass.GIT:
            return False
        return gitdir.role_of(gitdir.inside(path.name)[1]) in (Role.OBJECT, Role.PACK)

    def _added(self, path: Path, directory: Entry, is_ours: bool) -> Entry:
        """One side added a directory: taken as it is, sources below it stamped."""
        if path.cls is not PathClass.PLAIN:
            return directory
        edits: dict[bytes, Entry | None] = {}
        for name, entry in read_tree(self.store, tree_of(directory)):
            merged = self._name(self._below(path, name), None, *_sides(entry, None, is_ours))
            if merged != entry:
                edits[name] = merged
        if not edits or self.findings.conflicts:
            return directory
        return directory._replace(ref=edit_tree(self.store, tree_of(directory), edits))

    def _remains(self, path: Path, base: Entry, directory: Entry, is_ours: bool) -> Entry | None:
        """The other side deleted the directory: what this side added or changed below it decides."""
        kept: list[tuple[bytes, Entry]] = []
        for name, before, after in diff_names(self.store, tree_of(base), tree_of(directory)):
            if after is None:
                continue
            below = self._below(path, name)
            if before is None:
                merged = self._added_in_deleted(below, after, is_ours)
            else:
                merged = self._name(below, before, *_sides(after, None, is_ours))
            if merged is not None:
                kept.append((name, merged))
        if not kept:
            return None
        if self.findings.conflicts:
            return directory
        return directory._replace(ref=build_tree(self.store, kept))

    def _added_in_deleted(self, path: Path, entry: Entry, is_ours: bool) -> Entry | None:
        ours, theirs = _sides(entry, None, is_ours)
        if path.cls in DERIVED and not self.depth:
            self.findings.drop(path.name)
            return None
        if path.cls is PathClass.UNIT:
            detail = "added to a package that the other side removed"
            return self.entries.conflict(ConflictKind.UNIT, path.name, None, ours, theirs, detail=detail)
        if path.cls is PathClass.PLAIN and not self.depth:
            if self._follow_directory(path, entry, ours, theirs, is_ours):
                return None
            deleter = self.entries.side(not is_ours)
            text = f"added to a directory that {deleter} deleted"
            self.entries.note(path.name, NoteKind.ADDED_IN_DELETED, text, ours, theirs)
        return self._name(path, None, ours, theirs)

    # -- renames -------------------------------------------------------------------------------------------------------

    def _explain(self, path: bytes, base: Entry, edited: Entry, deleted_by_ours: bool) -> bool:
        """The edit follows the file to where the side that deleted it has moved it."""
        renames = self.our_renames if deleted_by_ours else self.their_renames
        mover, editor = (self.ours, self.theirs) if deleted_by_ours else (self.theirs, self.ours)
        target = renames.target(path)
        if target is None:
            return False
        moved = lookup_path(self.store, mover, target)
        if moved is None or moved.kind is EntryKind.DIR:
            return False
        ours, theirs = _sides(moved, edited, deleted_by_ours)
        if lookup_path(self.store, editor, target) is not None:
            detail = "renamed onto a path that the other side has as well"
            self.entries.conflict(ConflictKind.RENAME_COLLISION, target, base, ours, theirs, detail=detail)
            return True
        merged = self._leaf(Path(target, class_of(target)), base, ours, theirs)
        if merged is not None:
            self.moved[target] = merged
        return True

    def _follow_directory(
        self, path: Path, entry: Entry, ours: Entry | None, theirs: Entry | None, added_by_ours: bool
    ) -> bool:
        """Move what was added to a directory into the place the other side recorded having moved the directory to."""
        renames = self.their_renames if added_by_ours else self.our_renames
        mover = self.theirs if added_by_ours else self.ours
        target = renames.recorded_target(path.name)
        if target is None or lookup_path(self.store, mover, target) is not None:
            return False
        parent = lookup_path(self.store, mover, split(target)[0])
        if parent is None or parent.kind is not EntryKind.DIR:
            return False
        merged = self._name(Path(target, class_of(target)), None, ours, theirs)
        if merged is not None:
            self.moved[target] = merged
        text = "moved along with its directory"
        self.entries.note(target, NoteKind.DIR_RENAME, text, ours, theirs)
        return True

    def _check_diverging_renames(self) -> None:
        other = self.their_renames.recorded
        for old, new in self.our_renames.recorded.items():
            if self.base is None or other.get(old, new) == new:
                continue
            base = lookup_path(self.store, self.base, old)
            ours = lookup_path(self.store, self.ours, new)
            theirs = lookup_path(self.store, self.theirs, other[old])
            if base is not None and ours is not None and theirs is not None:
                names = sorted((new, other[old]))
                detail = " and ".join(name.decode("utf-8", "backslashreplace") for name in names)
                self.entries.conflict(
                    ConflictKind.RENAME_RENAME, old, base, ours, theirs, detail=f"renamed to {detail}"
                )

    # -- the whole result -----------------------------------------------------------------------------------------------

    def _settle_units(self, path: Path, names: Names, ours: Entry) -> set[bytes]:
        """Report units both sides changed; return the names that are decided by that."""
        found = clashing_distributions(names) if path.cls is PathClass.UNIT else []
        if path.cls not in DERIVED and path.cls is not PathClass.GIT:
            found += mixed_databases(names, lambda name: find_entry(self.store, tree_of(ours), name))
        for name, terms, detail, _ in found:
            self.entries.conflict(ConflictKind.UNIT, join(path.name, name), *terms, detail=detail)
        return {member for unit in found for member in unit.members}

    def _report_refs(self, paths: Iterable[bytes]) -> None:
        for path in paths:
            if all(conflict.path != path for conflict in self.findings.conflicts):
                terms = self.git.terms(path)
                self.entries.conflict(
                    ConflictKind.GIT_REF, path, *terms, detail="loose and packed refs differ"
                )

    def _note_collisions(self, path: Path, names: Names) -> None:
        """Note names one side added that differ only in case or Unicode form from names the other side added."""
        if self.depth or path.cls is PathClass.GIT:
            return
        mine = {_folded(name): name for name, (b, o, t) in names.items() if b is None and t is None}
        if not mine:
            return
        for name, (b, o, _) in names.items():
            if b is None and o is None and _folded(name) in mine:
                pair = sorted((name, mine[_folded(name)]))
                shown = " and ".join(one.decode("utf-8", "backslashreplace") for one in pair)
                text = f"{shown} are one name where case or Unicode form does not count"
                self.entries.note(join(path.name, pair[0]), NoteKind.CASE_COLLISION, text, None, None)

    def _relink(self) -> dict[bytes, Entry | None]:
        """Make the names of each hard-link group agree again, or unlink them with a note."""
        edits: dict[bytes, Entry | None] = {}
        for members in self.linked.values():
            merged = {path: (base, self.moved.get(path, entry)) for path, (base, entry) in members.items()}
            changed = relink(merged)
            edits |= changed
            for path, entry in changed.items():
                if not entry.link_group:
                    text = "its hard-linked names were changed differently; unlinked"
                    self.entries.note(path, NoteKind.LINK, text, None, None)
        return edits


def _sides(mine: Entry | None, other: Entry | None, is_ours: bool) -> Sequence[Entry | None]:
    return (mine, other) if is_ours else (other, mine)


def _is_dir(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is EntryKind.DIR


def _bare(entry: Entry | None) -> Entry | None:
    """Return a directory's own attributes, without what it holds."""
    return None if entry is None else entry._replace(ref=b"")


def _folded(name: bytes) -> str:
    return unicodedata.normalize("NFC", name.decode("utf-8", "surrogateescape")).casefold()

"""Open merges: a conflicted update written into a workspace, decided there, and concluded by a commit.

``update --mark`` puts the marked merge (``merge/markup``) into the files and the list of undecided paths into the
workspace's record (after the files have changed, so that a merge that was cut short is never taken for a decided
one). Each is decided by editing the file until no markers are left, or by ``resolve``. ``commit`` concludes the
merge with both parents and refuses while anything is undecided; ``update --abort`` goes back to the last commit.
"""

from __future__ import annotations

from layerfs.errors import Conflicted, Dirty, NotFound, Refused, UsageError, quote
from layerfs.history.authorship import Author
from layerfs.history.history import CommitReader
from layerfs.history.merging import MergeNames, Outcome, merge_commits
from layerfs.ids import CommitId
from layerfs.merge.conflicts import ConflictKind
from layerfs.merge.markup import has_markers, mark_conflicts
from layerfs.merge.mergebase import merge_bases
from layerfs.merge.textmerge import Labels
from layerfs.merge.treemerge import merge_time
from layerfs.objects.content import read_content
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import Change, diff_trees, edit_paths, lookup_path
from layerfs.objects.moves import WorkspacePut
from layerfs.objects.source import ObjectSource
from layerfs.store.store import Store
from layerfs.store.workspacerecords import OpenConflict, WorkspaceRecord, encode_record
from layerfs.workspace.advance import Advanced, apply_to_workspace, update_workspace
from layerfs.workspace.snapshot import has_changes, take_snapshot

SIDES = ("ours", "theirs", "base", "delete")
_TEXTS = (ConflictKind.BOTH_MODIFIED.value, ConflictKind.BOTH_ADDED.value)


def update_marked(
    store: Store, record: WorkspaceRecord, target: CommitId, target_name: str, author: Author
) -> Advanced:
    """Update a workspace; what conflicts is written into the files, and the merge stays open until a commit.

    Raises Dirty for a workspace with uncommitted changes: with the merge in its files they could not be told apart.
    """
    with store.batch() as batch:
        reader = CommitReader(batch)
        snapshot = take_snapshot(store, batch, record)
        last = reader.root(record.last)
        names = MergeNames(record.name, target_name)
        merged = merge_commits(batch, record.last, target, author.time_ns, names)
        if merged.outcome is not Outcome.CONFLICT or record.merging is not None:
            return update_workspace(store, record, target, target_name, author)
        if has_changes(batch, last, snapshot.root, record.stamps):
            raise Dirty(
                f"workspace {quote(record.name)} has uncommitted changes, and the merge conflicts",
                "commit them first, then 'layerfs update --mark' again",
            )
        bases = merge_bases(record.last, target, reader.parents, reader.time)
        marked = mark_conflicts(
            batch,
            reader.root(bases[0]) if bases else None,
            snapshot.root,
            reader.root(target),
            merged.conflicts,
            Labels(b"base", record.name.encode(), target_name.encode()),
            merge_time(author.time_ns, reader.time(target)),
        )
        if marked is None:
            raise Refused(
                "these conflicts cannot be written out as files",
                "'layerfs restore REV PATH' takes single paths over from the other side",
            )
        changes = tuple(diff_trees(batch, snapshot.root, marked.root))
        batch.prepare()
        undecided = tuple(
            OpenConflict(one.path, one.kind.value, marked.beside.get(one.path, b""))
            for one in merged.conflicts
        )
        restored = apply_to_workspace(store, batch, record, changes, marked.root)
        opened = record._replace(merging=target, conflicts=undecided)
        with store.lane() as lane:
            lane.apply(batch, [WorkspacePut(record.name, encode_record(opened))], author.name, author.time_ns)
    shown = tuple(change for change in changes if not change.is_only_time())
    return Advanced(
        record.name,
        record.last,
        record.last,
        shown,
        merged.conflicts,
        merged.notes,
        tuple(restored.problems),
        True,
    )


def abort_merge(store: Store, record: WorkspaceRecord, author: Author) -> Advanced:
    """Give an open merge up: the files go back to the last commit, which they were equal to when it began."""
    if record.merging is None:
        raise NotFound(f"workspace {quote(record.name)} is in no merge")
    with store.batch() as batch:
        snapshot = take_snapshot(store, batch, record, allow_torn=True)
        last = CommitReader(batch).root(record.last)
        changes = tuple(diff_trees(batch, snapshot.root, last))
        batch.prepare()
        restored = apply_to_workspace(store, batch, record, changes, last)
    _put(store, record._replace(merging=None, conflicts=()), author)
    shown = tuple(change for change in changes if not change.is_only_time())
    return Advanced(record.name, record.last, record.last, shown, problems=tuple(restored.problems))


def undecided(record: WorkspaceRecord, source: ObjectSource, root: Entry) -> tuple[OpenConflict, ...]:
    """Return the conflicts that a state of the workspace leaves open: listed, and not edited until free of markers."""
    return tuple(conflict for conflict in record.conflicts if not _is_decided(source, conflict, root))


def _is_decided(source: ObjectSource, conflict: OpenConflict, root: Entry) -> bool:
    if conflict.kind not in _TEXTS or conflict.beside:
        return False
    entry = lookup_path(source, root, conflict.path)
    if entry is None or entry.kind is not EntryKind.FILE:
        return True
    return not has_markers(read_content(source, entry))


def list_undecided(store: Store, record: WorkspaceRecord) -> tuple[OpenConflict, ...]:
    """Return what the workspace, as it is now, leaves undecided."""
    if record.merging is None:
        return ()
    with store.batch() as batch:
        return undecided(record, batch, take_snapshot(store, batch, record, allow_torn=True).root)


def resolve_conflict(
    store: Store, record: WorkspaceRecord, path: bytes, side: str | None, author: Author
) -> WorkspaceRecord:
    """Decide one path: take a side, delete it, or (``side`` None) say that the file is right as it is now.

    What was put beside the path is removed again. Raises NotFound for a path that is not undecided, and Refused for a
    file that still has markers.
    """
    conflict = next((one for one in record.conflicts if one.path == path), None)
    if conflict is None or record.merging is None:
        raise NotFound(f"no undecided conflict at {quote(path)}", "'layerfs conflicts' lists them")
    if side is not None and side not in SIDES:
        raise UsageError(f"no such side: {quote(side)}")
    with store.batch() as batch:
        reader = CommitReader(batch)
        now = take_snapshot(store, batch, record, allow_torn=True).root
        present = lookup_path(batch, now, path)
        if side is None:
            if (
                present is not None
                and present.kind is EntryKind.FILE
                and has_markers(read_content(batch, present))
            ):
                raise Refused(f"{quote(path)} still has conflict markers", "edit it, or take a side")
            new = present
        else:
            new = _side(reader, record, path, side)
        changes = [Change(path, present, new)] if new != present else []
        other = lookup_path(batch, now, conflict.beside) if conflict.beside else None
        if other is not None:
            changes.append(Change(conflict.beside, other, None))
        result = edit_paths(batch, now, {change.path: change.new for change in changes})
        batch.prepare()
        apply_to_workspace(store, batch, record, _whole(batch, changes), result)
    rest = tuple(one for one in record.conflicts if one.path != path)
    resolved = record._replace(conflicts=rest)
    _put(store, resolved, author)
    return resolved


def _whole(source: ObjectSource, changes: list[Change]) -> tuple[Change, ...]:
    """Return changes with everything below directories that come or go."""
    found: list[Change] = []
    for change in changes:
        found += diff_trees(source, change.old, change.new, change.path)
    return tuple(found)


def _side(reader: CommitReader, record: WorkspaceRecord, path: bytes, side: str) -> Entry | None:
    assert record.merging is not None
    if side == "delete":
        return None
    if side == "ours":
        return lookup_path(reader.source, reader.root(record.last), path)
    if side == "theirs":
        return lookup_path(reader.source, reader.root(record.merging), path)
    bases = merge_bases(record.last, record.merging, reader.parents, reader.time)
    return lookup_path(reader.source, reader.root(bases[0]), path) if bases else None


def refuse_undecided(record: WorkspaceRecord, source: ObjectSource, root: Entry) -> None:
    """Raise Conflicted while an open merge has anything undecided."""
    left = undecided(record, source, root)
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise Conflicted(
            f"the merge is not decided yet: {quote(left[0].path)}{more}",
            "edit the files, or 'layerfs resolve PATH' with a side",
        )


def _put(store: Store, record: WorkspaceRecord, author: Author) -> None:
    with store.lane() as lane:
        lane.apply(None, [WorkspacePut(record.name, encode_record(record))], author.name, author.time_ns)

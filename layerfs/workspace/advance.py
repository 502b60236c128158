"""Advance: bring another state into a workspace, through the path where it is attached.

``update`` merges newer work with whatever the workspace holds and applies the difference; ``restore`` makes paths equal
to another state. Both look at the real state first and change only what differs, so programs that run in the
workspace see files replaced one by one. On conflict, and when uncommitted work would be lost, nothing is touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from layerfs.capture.captured import Problem
from layerfs.checkout.restored import Restored
from layerfs.checkout.transition import apply_changes
from layerfs.errors import Dirty, NotFound, Refused, quote
from layerfs.history.authorship import Author
from layerfs.history.history import CommitReader
from layerfs.history.merging import Merged, MergeNames, Outcome, merge_commits, put_merge
from layerfs.ids import CommitId
from layerfs.merge.conflicts import Conflict, Note
from layerfs.merge.textmerge import Labels
from layerfs.merge.treemerge import MergeResult, merge_time, merge_trees
from layerfs.objects.batch import Batch
from layerfs.objects.entry import Entry
from layerfs.objects.environment import Change, diff_trees, lookup_path, walk
from layerfs.objects.moves import Op, RefSet, WorkspacePut
from layerfs.objects.source import ObjectSource
from layerfs.store.refs import branch_ref
from layerfs.store.store import Store
from layerfs.store.workspacerecords import WorkspaceRecord, attached_path, encode_record
from layerfs.workspace.applying import applying
from layerfs.workspace.snapshot import has_changes, is_work, take_snapshot


class Advanced(NamedTuple):
    """What an update or restore did: the workspace's new base, the changed paths, and what stood in the way."""

    workspace: str
    before: CommitId
    after: CommitId
    changes: tuple[Change, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[Note, ...] = ()
    problems: tuple[Problem, ...] = ()
    marked: bool = False
    """Whether the conflicts were written into the files, for the merge to be decided there."""


def update_workspace(
    store: Store, record: WorkspaceRecord, target: CommitId, target_name: str, author: Author
) -> Advanced:
    """Merge ``target`` into a workspace, its uncommitted changes included.

    The committed work is merged first: if the target has all of it the workspace simply moves there, else a merge commit
    joins both on the workspace's branch. Uncommitted changes are then carried over on top; what came in beside them gets
    the time of the update, so that builds see it as newer than whatever they made here, and the record notes that time.
    """
    if record.merging is not None:
        raise Refused(
            f"workspace {quote(record.name)} is in the middle of a merge",
            "decide and commit, or 'layerfs update --abort'",
        )
    names = MergeNames(record.name, target_name)
    with store.batch() as batch:
        reader = CommitReader(batch)
        snapshot = take_snapshot(store, batch, record)
        merged = merge_commits(batch, record.last, target, author.time_ns, names)
        if merged.outcome is Outcome.UP_TO_DATE:
            return Advanced(record.name, record.last, record.last)
        if merged.root is None:
            return Advanced(
                record.name, record.last, record.last, conflicts=merged.conflicts, notes=merged.notes
            )
        if merged.outcome is Outcome.MERGED and not record.branch:
            raise Refused(
                f"workspace {quote(record.name)} is on no branch, and its work has to be merged",
                "'layerfs commit --as NAME' first",
            )
        after = (
            target
            if merged.outcome is Outcome.FAST_FORWARD
            else put_merge(batch, merged, author, f"merge {target_name} into {record.name}", {})
        )
        stamp = merge_time(author.time_ns, reader.time(record.last), reader.time(target))
        beside_work = has_changes(batch, reader.root(record.last), snapshot.root, record.stamps)
        wanted = MergeResult(merged.root, (), ())
        if beside_work:
            labels = Labels(b"base", record.name.encode(), target_name.encode())
            wanted = merge_trees(
                batch,
                batch,
                reader.root(record.last),
                snapshot.root,
                merged.root,
                merge_time_ns=stamp,
                labels=labels,
            )
        if wanted.root is None:
            return Advanced(
                record.name, record.last, record.last, conflicts=wanted.conflicts, notes=wanted.notes
            )
        changes = tuple(diff_trees(batch, snapshot.root, wanted.root))
        batch.prepare()
        restored = apply_to_workspace(store, batch, record, changes, wanted.root)
        moved = record._replace(last=after, stamps=(*record.stamps, stamp) if beside_work else ())
        _record_update(store, batch, record, merged, moved, author)
    shown = tuple(change for change in changes if not change.is_only_time())
    return Advanced(
        record.name, record.last, after, shown, (), (*merged.notes, *wanted.notes), tuple(restored.problems)
    )


def _record_update(
    store: Store,
    batch: Batch,
    record: WorkspaceRecord,
    merged: Merged,
    moved: WorkspaceRecord,
    author: Author,
) -> None:
    """Make ``moved`` the workspace's record, and move its branch too when a merge commit was made on it.

    This is written after the files have changed: if the machine stops in between, what came in shows as changes of this
    workspace, equal to those of the target, and the next update or commit meets them without a conflict. The other way
    round what did not arrive would show as taken back here, and the next commit would cover the target's work.
    """
    with store.lane() as lane:
        ops: list[Op] = [WorkspacePut(record.name, encode_record(moved))]
        head = lane.refs.head(record.branch) if record.branch else None
        if merged.outcome is Outcome.MERGED and head == record.last:
            ops.insert(0, RefSet(branch_ref(record.branch), head, moved.last, "update: merge"))
        lane.apply(batch, ops, author.name, author.time_ns)


def restore_workspace(
    store: Store,
    record: WorkspaceRecord,
    target: CommitId,
    paths: Iterable[bytes] = (),
    *,
    discard: bool = False,
) -> Advanced:
    """Make the workspace, or the given paths in it, equal to another state: byte for byte, later files removed.

    Raises Dirty when that would lose uncommitted changes, unless ``discard``; NotFound for a path in neither state.
    """
    wanted_paths = tuple(paths)
    with store.batch() as batch:
        reader = CommitReader(batch)
        snapshot = take_snapshot(store, batch, record)
        goal = reader.root(target)
        last = reader.root(record.last)
        for path in wanted_paths:
            if lookup_path(batch, goal, path) is None and lookup_path(batch, snapshot.root, path) is None:
                raise NotFound(f"no path {quote(path)} in the workspace or in the state to restore")
        changes = tuple(
            change for change in diff_trees(batch, snapshot.root, goal) if _is_wanted(change, wanted_paths)
        )
        if not discard:
            _refuse_loss(batch, last, snapshot.root, changes, record.stamps)
        batch.prepare()
        root = goal if not wanted_paths else snapshot.root
        restored = apply_to_workspace(store, batch, record, changes, root)
    shown = tuple(change for change in changes if not change.is_only_time())
    return Advanced(record.name, record.last, record.last, shown, problems=tuple(restored.problems))


def _is_wanted(change: Change, wanted: tuple[bytes, ...]) -> bool:
    """Whether a change lies at or below a wanted path, or makes a directory that a wanted path needs."""
    path = change.path
    if not wanted or any(path == one or not one or path.startswith(one + b"/") for one in wanted):
        return True
    made = change.new is not None and (change.old is None or change.old.kind is not change.new.kind)
    return made and any(one.startswith(path + b"/") for one in wanted)


def _refuse_loss(
    source: ObjectSource, last: Entry, now: Entry, changes: tuple[Change, ...], stamps: tuple[int, ...]
) -> None:
    if not has_changes(source, last, now, stamps):
        return
    touched = {change.path for change in changes}
    lost = [
        change.path
        for change in diff_trees(source, last, now)
        if change.path in touched and change.new is not None and is_work(source, change, stamps)
    ]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise Dirty(
            f"uncommitted changes would be lost: {quote(lost[0])}{more}",
            "commit them first, or pass --discard to lose them",
        )


def apply_to_workspace(
    store: Store, source: ObjectSource, record: WorkspaceRecord, changes: tuple[Change, ...], root: Entry
) -> Restored:
    """Make changes in a workspace's files, through the path where they are seen; ``root`` is what they lead to."""
    if not changes:
        return Restored()
    directory = os.open(
        attached_path(store.format.source, record), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    )
    try:
        with applying(store, record):
            return apply_changes(
                source,
                directory,
                changes,
                root,
                owners=os.geteuid() == 0 and not record.userxattr,
                members=_standing_members(source, root, changes),
            )
    finally:
        os.close(directory)


def _standing_members(
    source: ObjectSource, root: Entry, changes: tuple[Change, ...]
) -> list[tuple[int, bytes]]:
    """Return the members of touched link groups that stay as they are; reads the tree only if there are such groups."""
    groups = {change.new.link_group for change in changes if change.new is not None and change.new.link_group}
    if not groups:
        return []
    touched = {change.path for change in changes}
    return [
        (entry.link_group, path)
        for path, entry in walk(source, root)
        if entry.link_group in groups and path not in touched
    ]

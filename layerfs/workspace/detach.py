"""Detach: a workspace goes away without losing anything.

A workspace with uncommitted work is refused; then the mount goes (never lazily), then the upper is looked at once more,
and only if it still holds nothing new do the mount point, the record and the directories in the store go, in this order.
``--discard`` and ``--commit`` are the user's explicit other choices. ``--force`` ends the processes that keep it busy and
keeps what they left uncommitted: hiding a mount that somebody still writes to would lose work later and quietly.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from layerfs.checkout.transition import apply_changes
from layerfs.errors import Dirty, NotFound, Refused, quote
from layerfs.history.authorship import Author
from layerfs.history.history import CommitReader
from layerfs.objects.environment import diff_trees
from layerfs.objects.scratch import ScratchObjects
from layerfs.objects.trees import build_tree
from layerfs.progress import SILENT, Progress
from layerfs.store.layout import POINTER
from layerfs.store.places import default_mount_point, remove_empty
from layerfs.store.store import Store
from layerfs.store.workspacerecords import Engine, WorkspaceRecord, find_workspace, read_workspace
from layerfs.workspace import overlay
from layerfs.workspace.attach import drop_record, mount_name, put_record
from layerfs.workspace.busy import Holder, MountBusy, end_processes, find_holders, find_users
from layerfs.workspace.claims import hold, refuse_running
from layerfs.workspace.commit import commit_workspace
from layerfs.workspace.layercache import promote_upper
from layerfs.workspace.recording import CommitRequest, Committed
from layerfs.workspace.snapshot import changes_between, has_changes, live_content, take_snapshot


class DetachRequest(NamedTuple):
    """How to detach: uncommitted work is refused, dropped (``discard``), or committed first (``commit``).

    ``force`` ends the processes that use it; uncommitted work of an overlay is then kept, not refused.
    """

    author: Author
    discard: bool = False
    commit: CommitRequest | None = None
    force: bool = False


class Detached(NamedTuple):
    """A workspace that is gone, or that is only no longer attached because there was still work in it."""

    name: str
    path: bytes
    committed: Committed | None = None
    kept: bool = False
    left: bool = False
    """Whether files that no capture includes stay in the directory of a copy."""
    ended: tuple[Holder, ...] = ()
    """The processes that were ended."""
    uncommitted: int = 0
    """How many paths of uncommitted work were kept because of ``force``."""


def detach(
    store: Store, record: WorkspaceRecord, request: DetachRequest, progress: Progress = SILENT
) -> Detached:
    """Detach a workspace. Raises Dirty for uncommitted work, Busy (with the processes) when it is in use."""
    if record.engine is Engine.SOURCE:
        raise Refused("the captured directory itself cannot be unmounted", "it is your own directory")
    refuse_running(store, record)
    ended = end_processes(record.path, _holders(store, record)) if request.force else ()
    committed: Committed | None = None
    if request.commit is not None:
        committed = commit_workspace(store, record, request.commit, progress)
        if committed.conflicts:
            return Detached(record.name, record.path, committed, kept=True, ended=ended)
        record = find_workspace(store.refs, record.name) or record
    if not request.discard and not (request.force and record.engine is Engine.OVERLAY):
        refuse_dirty(store, record, progress)
    if record.engine is Engine.OVERLAY:
        with hold(store, record.name):
            record = read_workspace(store.refs, record.name)
            done = _detach_overlay(store, record, request, committed, progress)
        if done.kept and request.force:
            done = done._replace(uncommitted=uncommitted(store, record, progress)[0])
        return done._replace(ended=ended)
    left = _is_there(record) and _remove_copy(store, record, request.discard)
    drop_record(store, record, request.author)
    return Detached(record.name, record.path, committed, left=left, ended=ended)


def _is_there(record: WorkspaceRecord) -> bool:
    """Whether a copy's directory is at its place, and not a link that somebody put there."""
    return os.path.isdir(record.path) and not os.path.islink(record.path)


def _holders(store: Store, record: WorkspaceRecord) -> tuple[Holder, ...]:
    """Return who uses a workspace: anything at all of a mount, open files of a plain directory."""
    if record.engine is not Engine.OVERLAY:
        return tuple(user for user in find_users(record.path) if {"open", "exe"} & set(user.how))
    mount = overlay.find_mount(record.path, mount_name(store, record)) if record.path else None
    return () if mount is None else find_holders(record.path, mount.device)


def refuse_dirty(store: Store, record: WorkspaceRecord, progress: Progress = SILENT) -> None:
    """Raise Dirty if the workspace holds anything its last commit does not."""
    count, first = uncommitted(store, record, progress)
    if count:
        more = f" and {count - 1} more" if count > 1 else ""
        raise Dirty(
            f"workspace {quote(record.name)} has uncommitted changes: {quote(first)}{more}",
            "--commit keeps them, --discard drops them",
        )


def uncommitted(store: Store, record: WorkspaceRecord, progress: Progress = SILENT) -> tuple[int, bytes]:
    """Return how many paths differ from the last commit, and the first of them."""
    scratch = ScratchObjects(store.objects)
    try:
        snapshot = take_snapshot(store, scratch, record, allow_torn=True, progress=progress)
        last = CommitReader(store.objects).root(record.last)
        changes = changes_between(scratch, last, snapshot.root, record.stamps, live_content(store, record))
    except NotFound:
        return 0, b""
    return (len(changes), changes[0].path) if changes else (0, b"")


def _detach_overlay(
    store: Store,
    record: WorkspaceRecord,
    request: DetachRequest,
    committed: Committed | None,
    progress: Progress,
) -> Detached:
    if record.path and overlay.is_mounted(record.path, mount_name(store, record)):
        overlay.unmount(record.path, mount_name(store, record))
    if not request.discard and not settle_upper(store, record, request.author, progress):
        put_record(store, record._replace(attached=False), request.author)
        return Detached(record.name, record.path, committed, kept=True)
    # The mount point goes before the record: once the name is free, the directory may be that of another mount.
    left = record.path == default_mount_point(store, record.name) and not remove_empty(record.path)
    drop_record(store, record, request.author)
    return Detached(record.name, record.path, committed, left=left)


def settle_upper(store: Store, record: WorkspaceRecord, author: Author, progress: Progress = SILENT) -> bool:
    """Look once more at an upper that nobody can write to any more; return whether all of it is committed.

    If it is exactly the last commit's difference it becomes a cached layer, and whoever goes on from there pays nothing.
    """
    scratch = ScratchObjects(store.objects)
    try:
        snapshot = take_snapshot(store, scratch, record, allow_torn=True, progress=progress)
        last = CommitReader(store.objects).root(record.last)
        if has_changes(scratch, last, snapshot.root, record.stamps, live_content(store, record)):
            return False
    except NotFound:
        return True
    if snapshot.root == last:
        promote_upper(store, record, author.time_ns)
    return True


def _remove_copy(store: Store, record: WorkspaceRecord, discard: bool) -> bool:
    """Remove a copy's files; return whether anything is left, which no capture includes and so is not ours to remove.

    Only what the last look at it saw is removed, and without ``discard`` that look has to be at a committed state.
    """
    users = _holders(store, record)
    if users:
        raise MountBusy(record.path, users)
    with store.batch() as batch:
        now = take_snapshot(store, batch, record, allow_torn=True).root
        if not discard and has_changes(
            batch, CommitReader(store.objects).root(record.last), now, record.stamps
        ):
            raise Dirty(
                f"workspace {quote(record.name)} was written to at the last moment",
                "look at it and try again",
            )
        nothing = now._replace(ref=build_tree(batch, ()))
        directory = os.open(record.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            changes = [change for change in diff_trees(batch, now, nothing) if change.path]
            apply_changes(batch, directory, changes, nothing, owners=False)
            with suppress(FileNotFoundError):
                os.unlink(POINTER, dir_fd=directory)
        finally:
            os.close(directory)
    return not remove_empty(record.path)

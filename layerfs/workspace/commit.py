"""Commit: the state of a workspace, or of any directory, becomes part of history.

Takes the snapshot, outside the lane, and hands it to ``recording``; a workspace's record moves in the same step as its
branch. A commit that conflicts with what others committed leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from layerfs.errors import NotFound, Refused, UsageError, quote
from layerfs.ids import CommitId
from layerfs.objects.batch import Batch
from layerfs.objects.entry import Entry
from layerfs.objects.moves import Op, WorkspacePut
from layerfs.progress import SILENT, Progress
from layerfs.store.refs import branch_ref
from layerfs.store.store import Store
from layerfs.store.workspacerecords import WorkspaceRecord, attached_path, encode_record
from layerfs.workspace.freeze import frozen
from layerfs.workspace.openmerge import refuse_undecided
from layerfs.workspace.recording import CommitRequest, Committed, Line, record_state
from layerfs.workspace.snapshot import Snapshot, snapshot_directory, take_snapshot


def commit_workspace(
    store: Store, record: WorkspaceRecord, request: CommitRequest, progress: Progress = SILENT
) -> Committed:
    """Commit the present state of a workspace; see ``recording`` for what happens when others commit as well."""
    branch = request.new_branch or record.branch
    check_branch(store, record, request.new_branch)
    with store.batch() as batch:
        with _held_still(store, record, request):
            snapshot = take_snapshot(store, batch, record, allow_torn=request.allow_torn, progress=progress)
        result = commit_state(store, batch, record, branch, snapshot.root, request)
        if result.commit is not None:
            snapshot.keep()
        return _with_costs(result, snapshot, batch)


def commit_state(
    store: Store, batch: Batch, record: WorkspaceRecord, branch: str, root: Entry, request: CommitRequest
) -> Committed:
    """Record a state as the workspace's next commit; its open merge, if any, must be decided and is concluded."""
    refuse_undecided(record, batch, root)

    def along(own: CommitId) -> Sequence[Op]:
        stamps = record.stamps if own == record.last else ()
        moved = record._replace(last=own, branch=branch, merging=None, conflicts=(), stamps=stamps)
        return (WorkspacePut(record.name, encode_record(moved)),)

    line = Line(record.last, record.merging, record.name, record.stamps)
    return record_state(store, batch, line, branch, root, request, along)


def commit_directory(
    store: Store, directory: bytes, branch: str, request: CommitRequest, progress: Progress = SILENT
) -> Committed:
    """Record a directory that is no workspace as the next commit of a branch (``commit --from``).

    The branch must exist, unless ``request.new_branch`` names it; then the commit follows the newest layer.
    """
    if request.new_branch is not None:
        _check_new(store, request.new_branch)
        top = store.refs.main_layer()
        if top is None:
            raise Refused(
                "the store has no state to go on from", "capture a directory with 'layerfs init' first"
            )
        last = top.commit
    else:
        last = store.refs.need_head(branch)
    with store.batch() as batch:
        snapshot = snapshot_directory(
            store, batch, directory, last, allow_torn=request.allow_torn, progress=progress
        )
        result = record_state(store, batch, Line(last), branch, snapshot.root, request)
        return _with_costs(result, snapshot, batch)


def _with_costs(result: Committed, snapshot: Snapshot, batch: Batch) -> Committed:
    return result._replace(
        problems=tuple(snapshot.problems),
        mounts=tuple(snapshot.mounts),
        read_files=snapshot.read_files,
        stored_bytes=batch.stats.stored_bytes if result.commit is not None else 0,
    )


@contextmanager
def _held_still(store: Store, record: WorkspaceRecord, request: CommitRequest) -> Iterator[None]:
    if not request.freeze:
        yield
        return
    path = attached_path(store.format.source, record)
    with frozen(path):
        yield


def _check_new(store: Store, name: str) -> None:
    branch_ref(name)
    if store.refs.head(name) is not None:
        raise Refused(f"branch {quote(name)} exists already", "choose another name, or merge into it later")


def check_branch(store: Store, record: WorkspaceRecord, new: str | None) -> None:
    """Refuse a commit that has no branch to go to."""
    if new is not None:
        _check_new(store, new)
    elif not record.branch:
        raise Refused(
            f"workspace {quote(record.name)} is on no branch",
            "'layerfs commit --as NAME' makes a branch for its work",
        )
    elif store.refs.head(record.branch) is None:
        raise NotFound(
            f"branch {quote(record.branch)} is gone",
            "'layerfs commit --as NAME' saves the work to a new branch",
        )


def named_branch(record: WorkspaceRecord | None) -> str:
    """Return the branch of the workspace the caller stands in; raise UsageError when there is none."""
    if record is None or not record.branch:
        raise UsageError("commit to which branch?", "name it with --branch NAME, or make one with --as NAME")
    return record.branch


def check_message(message: str | None) -> str:
    """Return a commit message in its stored form; refuse one that holds a NUL."""
    text = (message or "").strip("\n")
    if "\0" in text:
        raise UsageError("a message cannot hold a NUL byte")
    return text

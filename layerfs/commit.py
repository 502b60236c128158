"""Commit: the state a workspace has becomes part of history.

A workspace's commits form its own line: each has the workspace's last commit as parent and records the state it really
had. If the branch's head is that last commit, the branch moves to the new one. If somebody else moved it meanwhile, a
*join* – a merge whose parents are the head and the workspace's commit – becomes the new head; if that conflicts, nothing
moves and the workspace keeps everything. Reading, hashing and merging happen before the lane is entered; inside it the
head is compared, and only when it keeps moving is the merge done with the lane held, so every writer gets in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic_ns
from typing import NamedTuple

from layerfs.authorship import Author
from layerfs.capture import Problem
from layerfs.errors import ExpectationFailed, NotFound, Refused, UsageError, quote
from layerfs.history import CommitReader
from layerfs.ids import CommitId, short
from layerfs.merge.conflicts import Conflict, Note
from layerfs.merging import Merged, MergeNames, Outcome, merge_commits, put_merge
from layerfs.objects.batch import Batch
from layerfs.objects.commits import Commit, Read, put_commit, sorted_provenance
from layerfs.objects.entry import Entry
from layerfs.objects.environment import put_root
from layerfs.objects.moves import Op, RefSet, WorkspacePut
from layerfs.progress import SILENT, Progress
from layerfs.refs import branch_ref
from layerfs.store import Lane, Store
from layerfs.workspace.freeze import frozen
from layerfs.workspace.openmerge import refuse_undecided
from layerfs.workspace.records import Engine, WorkspaceRecord, attached_path, encode_record
from layerfs.workspace.snapshot import Snapshot, has_changes, take_snapshot

OUTSIDE_TRIES = 3
QUICK_JOIN_NS = 100_000_000
"""A join that took less than this outside the lane is made inside it when the head has moved meanwhile: with many writers
on one branch it would only be outdated again and again."""


class CommitRequest(NamedTuple):
    """What a commit should say, and under which conditions it may happen."""

    author: Author
    message: str = ""
    provenance: dict[str, str] = {}  # noqa: RUF012  (a NamedTuple's default is never changed)
    reads: tuple[Read, ...] = ()
    new_branch: str | None = None
    expect: CommitId | None = None
    allow_empty: bool = False
    allow_torn: bool = False
    freeze: bool = False
    """Stop the processes that use the workspace while it is read."""


class Committed(NamedTuple):
    """What became of a commit.

    ``commit`` is the workspace's own commit, None when there was nothing to commit or it conflicts; ``head`` the branch's
    head afterwards, another commit when the two were joined.
    """

    workspace: str
    branch: str
    before: CommitId
    commit: CommitId | None
    head: CommitId | None
    joined: bool = False
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[Note, ...] = ()
    problems: tuple[Problem, ...] = ()
    read_files: int = 0
    stored_bytes: int = 0


def commit_workspace(
    store: Store, record: WorkspaceRecord, request: CommitRequest, progress: Progress = SILENT
) -> Committed:
    """Commit the present state of a workspace; see the module for what happens when others commit as well."""
    branch = target_branch(store, record, request)
    with store.batch() as batch:
        with _held_still(store, record, request):
            snapshot = take_snapshot(store, batch, record, allow_torn=request.allow_torn, progress=progress)
        result = commit_state(store, batch, record, branch, snapshot, request)
        if result.commit is not None:
            snapshot.keep()
        return result._replace(
            problems=tuple(snapshot.problems),
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


def commit_directory(
    store: Store, directory: bytes, branch: str, request: CommitRequest, progress: Progress = SILENT
) -> Committed:
    """Record a directory that is no workspace as the next commit of a branch (``commit --from``).

    The branch must exist, unless ``request.new_branch`` names it; then the commit follows the newest layer.
    """
    new = request.new_branch is not None
    head = None if new else store.refs.need_head(branch)
    top = store.refs.main_layer()
    last = head if head is not None else None if top is None else top.commit
    if last is None:
        raise Refused("the store has no state to go on from", "capture a directory with 'layerfs init' first")
    record = WorkspaceRecord("", branch, Engine.SOURCE, directory, last, last, request.author.time_ns)
    if new:
        target_branch(store, record, request)
    with store.batch() as batch:
        snapshot = take_snapshot(store, batch, record, allow_torn=request.allow_torn, progress=progress)
        result = commit_state(store, batch, record, branch, snapshot, request)
        return result._replace(
            problems=tuple(snapshot.problems),
            read_files=snapshot.read_files,
            stored_bytes=batch.stats.stored_bytes if result.commit is not None else 0,
        )


def target_branch(store: Store, record: WorkspaceRecord, request: CommitRequest) -> str:
    """Return the branch that a commit of a workspace goes to; refuse one that cannot be made."""
    if request.new_branch is not None:
        branch_ref(request.new_branch)
        if store.refs.head(request.new_branch) is not None:
            raise Refused(
                f"branch {quote(request.new_branch)} exists already",
                "choose another name, or merge into it later",
            )
        return request.new_branch
    if not record.branch:
        raise Refused(
            f"workspace {quote(record.name)} is on no branch",
            "'layerfs commit --as NAME' makes a branch for its work",
        )
    if store.refs.head(record.branch) is None:
        raise NotFound(
            f"branch {quote(record.branch)} is gone",
            "'layerfs commit --as NAME' saves the work to a new branch",
        )
    return record.branch


def commit_state(
    store: Store,
    batch: Batch,
    record: WorkspaceRecord,
    branch: str,
    snapshot: Snapshot,
    request: CommitRequest,
) -> Committed:
    """Record a snapshot as the workspace's next commit and move its branch there, or to a join of both."""
    reader = CommitReader(store.objects)
    previous = reader.root(record.last)
    fresh = request.new_branch is not None
    refuse_undecided(record, batch, snapshot.root)
    unchanged = record.merging is None and not has_changes(batch, previous, snapshot.root)
    if unchanged and not request.allow_empty and not fresh:
        _check_expectation(request, store.refs.head(branch), branch)
        return Committed(record.name, branch, record.last, None, store.refs.head(branch))
    own = record.last if unchanged and fresh else _put_own(batch, record, snapshot.root, request)
    record = record._replace(last=own, branch=branch, merging=None, conflicts=())
    batch.prepare()
    for _ in range(OUTSIDE_TRIES):
        started = monotonic_ns()
        head = None if fresh else store.refs.need_head(branch)
        _check_expectation(request, head, branch)
        merged = _join(batch, head, own, record, request)
        if merged is not None and merged.outcome is Outcome.CONFLICT:
            return _conflicted(record, branch, merged)
        batch.prepare()
        quick = monotonic_ns() - started < QUICK_JOIN_NS
        with store.lane() as lane:
            if lane.refs.head(branch) == head:
                return _land(lane, batch, record, branch, head, own, merged, request)
            if quick:
                return _join_inside(lane, batch, record, branch, own, request)
    with store.lane() as lane:
        return _join_inside(lane, batch, record, branch, own, request)


def _join_inside(
    lane: Lane, batch: Batch, record: WorkspaceRecord, branch: str, own: CommitId, request: CommitRequest
) -> Committed:
    """Join with the head as it is now that nobody else can move it."""
    head = lane.refs.need_head(branch)
    _check_expectation(request, head, branch)
    merged = _join(batch, head, own, record, request)
    if merged is not None and merged.outcome is Outcome.CONFLICT:
        return _conflicted(record, branch, merged)
    return _land(lane, batch, record, branch, head, own, merged, request)


def _put_own(batch: Batch, record: WorkspaceRecord, root: Entry, request: CommitRequest) -> CommitId:
    commit = Commit(
        put_root(batch, root),
        (record.last,) if record.merging is None else (record.last, record.merging),
        request.author.time_ns,
        request.author.tz_minutes,
        request.author.name,
        request.message,
        sorted_provenance({**request.provenance, **({"workspace": record.name} if record.name else {})}),
        request.reads,
    )
    return put_commit(batch, commit)


def _check_expectation(request: CommitRequest, head: CommitId | None, branch: str) -> None:
    if request.expect is not None and head != request.expect:
        found = "absent" if head is None else short(head)
        raise ExpectationFailed(
            f"branch {quote(branch)} is at {found}, not at {short(request.expect)} as expected",
            "nothing was committed",
        )


def _join(
    batch: Batch, head: CommitId | None, own: CommitId, record: WorkspaceRecord, request: CommitRequest
) -> Merged | None:
    """Merge the workspace's commit with the branch's head; None when there is nothing to merge with."""
    if head is None:
        return None
    names = MergeNames(record.branch, record.name or "the directory")
    merged = merge_commits(batch, head, own, request.author.time_ns, names)
    return None if merged.outcome is Outcome.FAST_FORWARD else merged


def _conflicted(record: WorkspaceRecord, branch: str, merged: Merged) -> Committed:
    return Committed(
        record.name, branch, record.last, None, merged.ours, conflicts=merged.conflicts, notes=merged.notes
    )


def _land(
    lane: Lane,
    batch: Batch,
    record: WorkspaceRecord,
    branch: str,
    head: CommitId | None,
    own: CommitId,
    merged: Merged | None,
    request: CommitRequest,
) -> Committed:
    before = head if head is not None else own
    new_head = own
    notes: tuple[Note, ...] = ()
    if merged is not None and merged.outcome is Outcome.MERGED:
        new_head = put_merge(
            batch,
            merged,
            request.author,
            f"join of {record.name or 'a directory'} into {branch}",
            {"join": record.name or "-"},
        )
        notes = merged.notes
    elif merged is not None:
        new_head = merged.ours
    why = f"commit: {request.message.splitlines()[0] if request.message else '(no message)'}"
    ops: list[Op] = [] if new_head == head else [RefSet(branch_ref(branch), head, new_head, why)]
    if record.name:
        ops.append(WorkspacePut(record.name, encode_record(record)))
    lane.apply(batch, ops, request.author.name, request.author.time_ns)
    return Committed(record.name, branch, before, own, new_head, new_head != own, notes=notes)


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

"""Recording: a captured state becomes the next commit of a line of work, and its branch moves there.

Whoever records has a *line*: its last own commit is the parent of the next one, whatever others did to the branch. If
the branch's head is that last commit, the branch moves to the new one. If somebody else moved it meanwhile, a *join* – a
merge whose parents are the head and the line's commit – becomes the new head; if that conflicts, nothing moves. How it
gets in beside other writers is ``landing``; where the state comes from is ``commit``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from layerfs.capture.captured import Problem
from layerfs.errors import ExpectationFailed, quote
from layerfs.history.authorship import Author
from layerfs.history.history import CommitReader
from layerfs.history.merging import Merged, MergeNames, Outcome, merge_commits, put_merge
from layerfs.ids import CommitId, short
from layerfs.merge.conflicts import Conflict, Note
from layerfs.objects.batch import Batch
from layerfs.objects.commits import Commit, Read, put_commit, sorted_provenance
from layerfs.objects.entry import Entry
from layerfs.objects.environment import put_root
from layerfs.objects.moves import Op, RefSet
from layerfs.store.landing import land
from layerfs.store.refs import branch_ref
from layerfs.store.store import Lane, Store
from layerfs.workspace.snapshot import has_changes


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
    mounts: tuple[bytes, ...] = ()
    """What is mounted in the tree, and so is no part of the commit."""
    read_files: int = 0
    stored_bytes: int = 0


class Line(NamedTuple):
    """A line of work: the last own commit, the commit an open merge brings in, and the workspace's name, if it is one."""

    last: CommitId
    merging: CommitId | None = None
    workspace: str = ""
    stamps: tuple[int, ...] = ()
    """Times that are no change by themselves (see ``WorkspaceRecord``)."""

    @property
    def label(self) -> str:
        """What messages and merge markers call it."""
        return self.workspace or "the directory"


def _no_more(_: CommitId) -> Sequence[Op]:
    return ()


class _Plan(NamedTuple):
    """What would be done if the branch's head is ``head``; ``merged`` is None when there is nothing to join with."""

    head: CommitId | None
    merged: Merged | None


def record_state(
    store: Store,
    batch: Batch,
    line: Line,
    branch: str,
    root: Entry,
    request: CommitRequest,
    along: Callable[[CommitId], Sequence[Op]] = _no_more,
) -> Committed:
    """Record ``root`` as the line's next commit and move ``branch`` there, or to a join of both.

    ``along`` gives the operations that become true in the same move, from the line's commit: a workspace's new record.
    """
    fresh = request.new_branch is not None
    previous = CommitReader(store.objects).root(line.last)
    unchanged = line.merging is None and not has_changes(batch, previous, root, line.stamps)
    if unchanged and not request.allow_empty and not fresh:
        head = store.refs.head(branch)
        _check_expectation(request, head, branch)
        return Committed(line.workspace, branch, line.last, None, head)
    own = line.last if unchanged and fresh else _put_own(batch, line, root, request)
    newborn = not store.objects.contains(own)
    batch.prepare()

    def plan(head: CommitId | None) -> _Plan:
        _check_expectation(request, head, branch)
        return _Plan(head, _join(batch, head, own, branch, line, request, newborn))

    return land(
        store,
        batch,
        lambda refs: None if fresh else refs.need_head(branch),
        plan,
        lambda plan: _conflicted(line, branch, plan),
        lambda lane, plan: _land(lane, batch, line, branch, own, plan, request, along(own)),
    )


def _put_own(batch: Batch, line: Line, root: Entry, request: CommitRequest) -> CommitId:
    commit = Commit(
        put_root(batch, root),
        (line.last,) if line.merging is None else (line.last, line.merging),
        request.author.time_ns,
        request.author.tz_minutes,
        request.author.name,
        request.message,
        sorted_provenance(
            {**request.provenance, **({"workspace": line.workspace} if line.workspace else {})}
        ),
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
    batch: Batch,
    head: CommitId | None,
    own: CommitId,
    branch: str,
    line: Line,
    request: CommitRequest,
    newborn: bool,
) -> Merged | None:
    """Merge the line's commit with the branch's head; None when there is nothing to merge with."""
    if head is None:
        return None
    names = MergeNames(branch, line.label)
    merged = merge_commits(batch, head, own, request.author.time_ns, names, newborn=newborn)
    return None if merged.outcome is Outcome.FAST_FORWARD else merged


def _conflicted(line: Line, branch: str, plan: _Plan) -> Committed | None:
    merged = plan.merged
    if merged is None or merged.outcome is not Outcome.CONFLICT:
        return None
    return Committed(
        line.workspace,
        branch,
        line.last,
        None,
        merged.ours,
        conflicts=merged.conflicts,
        notes=merged.notes,
    )


def _land(
    lane: Lane,
    batch: Batch,
    line: Line,
    branch: str,
    own: CommitId,
    plan: _Plan,
    request: CommitRequest,
    along: Sequence[Op],
) -> Committed:
    head, merged = plan
    new_head = own
    notes: tuple[Note, ...] = ()
    if merged is not None and merged.outcome is Outcome.MERGED:
        message = f"join of {line.workspace or 'a directory'} into {branch}"
        new_head = put_merge(batch, merged, request.author, message, {"join": line.workspace or "-"})
        notes = merged.notes
    elif merged is not None:
        new_head = merged.ours
    why = f"commit: {request.message.splitlines()[0] if request.message else '(no message)'}"
    ops: list[Op] = [] if new_head == head else [RefSet(branch_ref(branch), head, new_head, why)]
    lane.apply(batch, [*ops, *along], request.author.name, request.author.time_ns)
    before = head if head is not None else own
    return Committed(line.workspace, branch, before, own, new_head, new_head != own, notes=notes)

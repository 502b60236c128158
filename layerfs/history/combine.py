"""Combine: ``merge THEIRS --into OURS`` – two lines of work become one commit on a branch.

Clean: a commit with two parents, and the branch moves to it (or a new branch is made, ``--as``). Conflict: one record per
conflict, and nothing is created. When the head moves meanwhile the merge is done again (``landing``).
"""

from __future__ import annotations

from typing import NamedTuple

from layerfs.errors import Refused, UsageError, quote
from layerfs.history.authorship import Author
from layerfs.history.merging import Merged, MergeNames, Outcome, merge_commits, put_merge
from layerfs.ids import CommitId
from layerfs.merge.conflicts import Conflict, Note
from layerfs.objects.batch import Batch
from layerfs.objects.moves import RefSet
from layerfs.store.landing import land
from layerfs.store.refs import MAIN, branch_ref
from layerfs.store.store import Lane, Store


class CombineRequest(NamedTuple):
    """Merge ``theirs`` (called ``theirs_name``) into branch ``into``; with ``new_branch`` the result goes there."""

    theirs: CommitId
    theirs_name: str
    into: str
    author: Author
    message: str = ""
    new_branch: str | None = None
    allow_unrelated: bool = False


class Combined(NamedTuple):
    """What became of it: the outcome, the branch, its head before, and the commit it is at now."""

    outcome: Outcome
    branch: str
    before: CommitId
    commit: CommitId | None
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[Note, ...] = ()


def combine(store: Store, request: CombineRequest) -> Combined:
    """Merge; see the module. Raises NotFound for a branch that is not there."""
    if request.into == MAIN:
        raise UsageError("main moves by publishing only", "use 'layerfs publish BRANCH'")
    if request.new_branch is not None:
        branch_ref(request.new_branch)
        if store.refs.head(request.new_branch) is not None:
            raise Refused(f"branch {quote(request.new_branch)} exists already", "choose another name")
    with store.batch() as batch:
        return land(
            store,
            batch,
            lambda refs: refs.need_head(request.into),
            lambda head: _merge(batch, head, request),
            lambda merged: _unmoved(request, merged),
            lambda lane, merged: _land(lane, batch, merged, request),
        )


def _merge(batch: Batch, head: CommitId, request: CombineRequest) -> Merged:
    names = MergeNames(request.into, request.theirs_name)
    return merge_commits(
        batch, head, request.theirs, request.author.time_ns, names, allow_unrelated=request.allow_unrelated
    )


def _unmoved(request: CombineRequest, merged: Merged) -> Combined | None:
    """Return the result when no branch moves: a conflict, or nothing new for a branch that exists."""
    if merged.outcome is not Outcome.CONFLICT and (
        merged.outcome is not Outcome.UP_TO_DATE or request.new_branch is not None
    ):
        return None
    commit = None if merged.outcome is Outcome.CONFLICT else merged.ours
    return Combined(merged.outcome, request.into, merged.ours, commit, merged.conflicts, merged.notes)


def _land(lane: Lane, batch: Batch, merged: Merged, request: CombineRequest) -> Combined:
    if merged.outcome is Outcome.FAST_FORWARD:
        commit = merged.theirs
    elif merged.outcome is Outcome.UP_TO_DATE:
        commit = merged.ours
    else:
        message = request.message or f"merge {request.theirs_name} into {request.into}"
        commit = put_merge(batch, merged, request.author, message, {})
    branch = request.new_branch or request.into
    old = None if request.new_branch is not None else merged.ours
    ops = [RefSet(branch_ref(branch), old, commit, f"merge {request.theirs_name}: {merged.outcome.value}")]
    lane.apply(batch, ops, request.author.name, request.author.time_ns)
    return Combined(merged.outcome, branch, merged.ours, commit, notes=merged.notes)

"""Branches: making, listing, deleting, renaming and resetting lines of work.

Every operation is one move, so it happens for all names or for none, and its reason is in the reflog: a deleted or reset
branch can be had back from there. Nothing here touches a workspace's files; a branch that a workspace works on is not
deleted under it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from layerfs.errors import AlreadyExists, ExpectationFailed, Refused, UsageError, quote
from layerfs.history.history import CommitReader
from layerfs.history.revision import Revision, resolve
from layerfs.history.revisionset import reaches
from layerfs.ids import CommitId, short
from layerfs.objects.commits import Commit
from layerfs.objects.moves import Op, RefSet, WorkspacePut
from layerfs.store.refs import MAIN, Refs, branch_ref
from layerfs.store.store import Store
from layerfs.store.workspacerecords import SOURCE, all_workspaces, encode_record

MOST_FORKS = 10_000


class Branch(NamedTuple):
    """A branch with its head, the commit there, and the workspaces that work on it."""

    name: str
    head: CommitId
    commit: Commit
    workspaces: tuple[str, ...] = ()


class BranchMove(NamedTuple):
    """What happened to a branch: ``old`` None if it was made, ``new`` None if it was deleted."""

    name: str
    old: CommitId | None
    new: CommitId | None
    workspaces: tuple[str, ...] = ()


class Forked(NamedTuple):
    """New branches and the state they all start from."""

    names: tuple[str, ...]
    start: Revision


def fork_names(names: Sequence[str], count: int | None) -> tuple[str, ...]:
    """Return the branches to make: the names, or with a count NAME-1 … NAME-N of each."""
    if count is not None:
        if not 1 <= count <= MOST_FORKS:
            raise UsageError(f"a fork makes 1 to {MOST_FORKS:,} branches, not {count}")
        names = [f"{name}-{number}" for name in names for number in range(1, count + 1)]
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise UsageError(f"branch {quote(twice[0])} is named twice")
    return tuple(names)


def fork(
    store: Store, names: Sequence[str], start: str | None, count: int | None, at: CommitId | None, actor: str
) -> Forked:
    """Make branches from one state, all or none. The default state is ``@`` in a workspace, else main."""
    wanted = fork_names(names, count)
    refs = [branch_ref(name) for name in wanted]
    word = start if start is not None else MAIN if at is None else "@"
    with store.lane() as lane:
        revision = resolve(store, word, at)
        try:
            lane.apply(None, [RefSet(ref, None, revision.commit, f"fork from {word}") for ref in refs], actor)
        except ExpectationFailed:
            for name in wanted:
                _check_free(lane.refs, name)
            raise
    return Forked(wanted, revision)


def _check_free(refs: Refs, name: str) -> None:
    head = refs.head(name)
    if head is not None:
        raise AlreadyExists(
            f"there is a branch {quote(name)} already, at {short(head)}",
            f"'layerfs branch -d {name}' deletes it, 'layerfs branch reset {name} REV' moves it",
        )


def list_branches(store: Store) -> list[Branch]:
    """Return all branches by name."""
    reader = CommitReader(store.objects)
    users = _users(store.refs)
    return [
        Branch(name, head, reader.commit(head), tuple(users.get(name, ())))
        for name, head in store.refs.branches()
    ]


def _users(refs: Refs) -> dict[str, list[str]]:
    users: dict[str, list[str]] = {}
    for record in all_workspaces(refs):
        if record.branch:
            users.setdefault(record.branch, []).append(record.name)
    return users


def delete_branches(store: Store, names: Sequence[str], force: bool, actor: str) -> list[BranchMove]:
    """Delete branches, all or none; refuse one in use, and (unless forced) one whose work is nowhere else."""
    with store.lane() as lane:
        users = _users(lane.refs)
        ops: list[Op] = []
        for name in dict.fromkeys(names):
            head = lane.refs.need_head(name)
            if name in users:
                user = users[name][0]
                hint = (
                    "the captured directory is on it" if user == SOURCE else f"'layerfs unmount {user}' first"
                )
                raise Refused(f"branch {quote(name)} is in use by workspace {quote(user)}", hint)
            if not force:
                _check_merged(store, lane.refs, name, head, names)
            ops.append(RefSet(branch_ref(name), head, None, "delete"))
        lane.apply(None, ops, actor)
    return [
        BranchMove(op.name.removeprefix("refs/heads/"), op.old, op.new)
        for op in ops
        if isinstance(op, RefSet)
    ]


def _check_merged(store: Store, refs: Refs, name: str, head: CommitId, doomed: Sequence[str]) -> None:
    """Refuse when nothing else reaches the branch's head: main, a tag, a branch that stays, a workspace's last commit."""
    top = refs.main_layer()
    others = [] if top is None else [top.commit]
    others += [commit for other, commit in refs.branches() if other not in doomed]
    others += [commit for _, commit in refs.tags()]
    others += [record.last for record in all_workspaces(refs)]
    if not reaches(store, list(dict.fromkeys(others)), head):
        raise Refused(
            f"branch {quote(name)} has work that is neither in main nor in another branch or tag",
            f"'layerfs publish {name}' brings it to main; --force deletes the branch all the same",
        )


def rename_branch(store: Store, old: str, new: str, actor: str) -> BranchMove:
    """Give a branch another name; workspaces on it follow."""
    ref = branch_ref(new)
    with store.lane() as lane:
        head = lane.refs.need_head(old)
        if old == new:
            return BranchMove(new, head, head)
        _check_free(lane.refs, new)
        on_it = [record for record in all_workspaces(lane.refs) if record.branch == old]
        ops: list[Op] = [
            RefSet(branch_ref(old), head, None, f"rename to {new}"),
            RefSet(ref, None, head, f"rename from {old}"),
        ]
        ops += [WorkspacePut(record.name, encode_record(record._replace(branch=new))) for record in on_it]
        lane.apply(None, ops, actor)
    return BranchMove(new, None, head, tuple(record.name for record in on_it))


def reset_branch(store: Store, name: str, word: str, at: CommitId | None, actor: str) -> BranchMove:
    """Move a branch to any state; where it was stays in the reflog."""
    with store.lane() as lane:
        head = lane.refs.need_head(name)
        target = resolve(store, word, at).commit
        users = tuple(_users(lane.refs).get(name, ()))
        if target != head:
            lane.apply(None, (RefSet(branch_ref(name), head, target, f"reset to {word}"),), actor)
    return BranchMove(name, head, target, users)

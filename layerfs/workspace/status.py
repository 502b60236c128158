"""Status: what a workspace holds that its last commit does not, and where its branch stands."""

from __future__ import annotations

from typing import NamedTuple

from layerfs.capture.captured import Problem
from layerfs.errors import Refused, quote
from layerfs.history.history import CommitReader, walk_commits
from layerfs.ids import CommitId
from layerfs.merge.mergebase import is_ancestor
from layerfs.objects.environment import Change
from layerfs.objects.scratch import ScratchObjects
from layerfs.progress import SILENT, Progress
from layerfs.store.store import Store
from layerfs.store.workspacerecords import WorkspaceRecord
from layerfs.workspace.snapshot import changes_between, live_content, take_snapshot

COUNT_LIMIT = 10_000


class WorkspaceStatus(NamedTuple):
    """A workspace compared with ``last``; ``ahead`` counts the branch's commits that the workspace lacks."""

    record: WorkspaceRecord
    head: CommitId | None
    ahead: int
    changes: tuple[Change, ...]
    problems: tuple[Problem, ...]
    mounts: tuple[bytes, ...]
    stale: bool = False
    """Whether the workspace's mount is gone: what is at its path now is not the workspace."""


def read_status(store: Store, record: WorkspaceRecord, progress: Progress = SILENT) -> WorkspaceStatus:
    """Look at the workspace as it is now; nothing is stored but caches."""
    scratch = ScratchObjects(store.objects)
    snapshot = take_snapshot(store, scratch, record, allow_torn=True, progress=progress)
    reader = CommitReader(store.objects)
    last = reader.root(record.last)
    changes = tuple(changes_between(scratch, last, snapshot.root, record.stamps, live_content(store, record)))
    if snapshot.root == last:
        snapshot.keep()
    head = store.refs.head(record.branch) if record.branch else None
    return WorkspaceStatus(
        record,
        head,
        _ahead(reader, record.last, head),
        changes,
        tuple(snapshot.problems),
        tuple(snapshot.mounts),
        is_stale(store, record),
    )


def is_stale(store: Store, record: WorkspaceRecord) -> bool:
    """Whether a workspace should be mounted at its path and is not, as after a restart of the machine."""
    from layerfs.workspace.attach import is_alive

    return bool(record.path) and record.attached and not is_alive(store, record)


def refuse_stale(store: Store, record: WorkspaceRecord) -> None:
    """Raise Refused for a stale workspace: what one sees at its path is not what it holds."""
    if is_stale(store, record):
        raise Refused(
            f"the mount of workspace {quote(record.name)} is gone; what is at {quote(record.path)} is not the workspace",
            f"'layerfs mount {record.name}' attaches it again, with all its work",
        )


def branch_ahead(store: Store, record: WorkspaceRecord) -> int:
    """Count the commits that the branch of a workspace has and the workspace has not."""
    head = store.refs.head(record.branch) if record.branch else None
    return _ahead(CommitReader(store.objects), record.last, head)


def _ahead(reader: CommitReader, last: CommitId, head: CommitId | None) -> int:
    """Count what the branch has and the workspace has not."""
    if head is None or head == last or is_ancestor(head, last, reader.parents, reader.time):
        return 0
    missing = walk_commits(reader, (head,), excluded=(last,))
    return sum(1 for _, logged in zip(range(COUNT_LIMIT), missing, strict=False) if not logged.commit.is_join)

"""Listing workspaces: what is recorded of each, and whether it is really there."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from layerfs.store.places import upper_directory
from layerfs.store.store import Store
from layerfs.store.workspacerecords import Engine, WorkspaceRecord, all_workspaces
from layerfs.workspace.attach import is_alive
from layerfs.workspace.claims import runs


class State(Enum):
    """Whether a workspace is there: ``private`` ones live in the mount namespace of a ``run``, or in another one."""

    ATTACHED = "attached"
    PRIVATE = "private"
    KEPT = "kept"
    STALE = "stale"


class Listed(NamedTuple):
    """A workspace as it is."""

    record: WorkspaceRecord
    state: State
    upper: bytes | None


def describe_workspace(store: Store, record: WorkspaceRecord) -> Listed:
    """Return a workspace with the state it is found in."""
    upper = upper_directory(store, record.name) if record.engine is Engine.OVERLAY else None
    if not record.attached:
        state = State.KEPT
    elif not record.path:
        state = State.PRIVATE if runs(store, record) else State.KEPT
    else:
        elsewhere = State.PRIVATE if runs(store, record) else State.STALE
        state = State.ATTACHED if is_alive(store, record) else elsewhere
    return Listed(record, state, upper)


def list_workspaces(store: Store) -> list[Listed]:
    """Return all workspaces by name."""
    return [describe_workspace(store, record) for record in all_workspaces(store.refs)]

"""Comparison: which two states ``diff`` compares, opened for reading through one source.

Owns the meaning of none, one or two revisions: two are compared with each other; one is compared with the workspace the
caller stands in, as it is now; none stands for the workspace's last commit. A workspace's state goes into a batch that is
never applied, so looking leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from layerfs.capture.captured import Problem
from layerfs.errors import NotFound, UsageError
from layerfs.history.history import CommitReader
from layerfs.history.states import resolve_directory
from layerfs.objects.entry import Entry
from layerfs.objects.source import ObjectSource
from layerfs.store.store import Store
from layerfs.store.workspacerecords import WorkspaceRecord


class Sides(NamedTuple):
    """Two states, where their objects are read, and what could not be read of a workspace."""

    source: ObjectSource
    old: Entry
    new: Entry
    problems: tuple[Problem, ...] = ()


def open_sides(
    store: Store, words: Sequence[str], workspace: WorkspaceRecord | None, resources: ExitStack
) -> Sides:
    """Return the states that the words of ``diff`` mean; what stays open is closed by ``resources``."""
    names = list(words)
    if len(names) == 1 and ".." in names[0]:
        low, _, high = names[0].partition("..")
        names = [low or "@", high or "@"]
    at = None if workspace is None else workspace.last
    if len(names) > 2:
        raise UsageError("give at most two states", "paths come after '--'")
    if len(names) == 2:
        old, new = (resolve_directory(store, name, at) for name in names)
        return Sides(store.objects, old, new)
    if workspace is None:
        raise NotFound(
            "this is no workspace, so there is nothing to compare with",
            "name two states: 'layerfs diff OLD NEW'; paths come after '--'",
        )
    base = (
        resolve_directory(store, names[0], at) if names else CommitReader(store.objects).root(workspace.last)
    )
    from layerfs.workspace.snapshot import take_snapshot

    batch = resources.enter_context(store.batch())
    snapshot = take_snapshot(store, batch, workspace)
    return Sides(batch, base, snapshot.root, tuple(snapshot.problems))

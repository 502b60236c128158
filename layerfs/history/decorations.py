"""Decorations: the names that point at a commit right now, as ``log`` shows them behind its id."""

from __future__ import annotations

from layerfs.ids import CommitId
from layerfs.store.refs import Refs
from layerfs.store.workspacerecords import all_workspaces

Decorations = dict[CommitId, list[str]]


def read_decorations(refs: Refs) -> Decorations:
    """Return the names of each commit that has one: main, layers, branches, ``tag: NAME``, ``@WORKSPACE``."""
    found: Decorations = {}
    layers = refs.layers()
    for position, row in enumerate(layers):
        found.setdefault(row.commit, []).extend(["main"] if not position else [])
        found[row.commit].append(f"L{row.number}")
    for name, commit in refs.branches():
        found.setdefault(commit, []).append(name)
    for name, commit in refs.tags():
        found.setdefault(commit, []).append(f"tag: {name}")
    for record in all_workspaces(refs):
        found.setdefault(record.last, []).append(f"@{record.name}")
    return found

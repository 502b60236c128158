"""Naming a workspace on the command line: by its name, by the directory it is attached at, or by standing in it.

A word that is neither names nothing: it must never fall back to the workspace around the caller.
"""

from __future__ import annotations

import os
from typing import Protocol

from layerfs.context import Context
from layerfs.errors import NotFound, quote
from layerfs.store.store import Store
from layerfs.store.workspacerecords import WorkspaceRecord, find_workspace, workspace_at


class Caller(Protocol):
    """What naming needs to know of a command's surroundings."""

    @property
    def store(self) -> Store:
        """The store."""

    @property
    def context(self) -> Context:
        """The surroundings."""

    @property
    def workspace(self) -> WorkspaceRecord:
        """The workspace the caller stands in."""


def name_workspace(caller: Caller, text: str | None) -> WorkspaceRecord:
    """Return the workspace that ``text`` names, or the one the caller stands in when there is no text."""
    if text is None:
        return caller.workspace
    found = find_workspace(caller.store.refs, text)
    if found is None:
        path = os.path.realpath(caller.context.absolute(text))
        found = workspace_at(caller.store.refs, path)
    else:
        path = found.path
    if found is None or found.path != path:
        raise NotFound(f"no such workspace: {quote(text)}", "'layerfs workspace list' shows what there is")
    return found

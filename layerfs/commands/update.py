"""``layerfs update``: bring newer work into a workspace."""

from __future__ import annotations

from typing import Annotated

import typer

from layerfs.authorship import author_now
from layerfs.frame import Invocation
from layerfs.output import Reply
from layerfs.present.work import present_advance
from layerfs.revision import resolve
from layerfs.workspace.advance import update_workspace


def command(
    inv: Invocation,
    revision: Annotated[
        str | None,
        typer.Argument(metavar="REV", help="What to bring in; the head of the workspace's branch."),
    ] = None,
) -> Reply:
    """Merge newer work into the workspace, uncommitted changes included, and change its files accordingly.

    If the two conflict nothing changes and the exit code is 1.
    """
    record = inv.workspace
    name = revision or record.branch or "main"
    target = resolve(inv.store, name, inv.at).commit
    return present_advance(
        update_workspace(inv.store, record, target, name, author_now(inv.context)), "updated"
    )

"""``layerfs status``: what a workspace holds that its last commit does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.present.work import present_status
from layerfs.workspace.status import read_status

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    every: Annotated[
        bool, typer.Option("--all", help="List what new directories hold, entry by entry.")
    ] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 if anything changed.")] = False,
) -> Reply:
    """Compare the workspace with its last commit, and say where its branch stands.

    Each changed path is listed with a letter: A added, D deleted, M modified (content, permissions, owner, attributes or
    time), T turned into another kind. A directory that came or went whole is one line. A directory of which only the time
    moved is no change, and neither is git's index when it only remembers that files were looked at ("git status").
    """
    with inv.progress() as progress:
        return present_status(read_status(inv.store, inv.workspace, progress), exit_code, every)

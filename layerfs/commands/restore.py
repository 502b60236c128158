"""``layerfs restore``: make a workspace, or paths in it, equal to another state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.history.revision import resolve
from layerfs.present.work import present_advance
from layerfs.workspace.advance import restore_workspace
from layerfs.workspace.status import refuse_stale

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    revision: Annotated[str, typer.Argument(metavar="REV", help="The state to restore.")],
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="Only these, and what is below them.")
    ] = None,
    discard: Annotated[
        bool, typer.Option("--discard", help="Go on although uncommitted changes are lost by it.")
    ] = False,
) -> Reply:
    """Make the workspace equal to another state, byte for byte; what that state does not have is removed.

    The workspace stays on its branch and its history: the next commit records the restored state as a new one. If
    uncommitted changes would be lost nothing is done and the exit code is 13, unless --discard.
    """
    refuse_stale(inv.store, inv.workspace)
    target = resolve(inv.store, revision, inv.at).commit
    chosen = [inv.tree_path(path) for path in paths or ()]
    return present_advance(
        restore_workspace(inv.store, inv.workspace, target, chosen, discard=discard), "restored"
    )

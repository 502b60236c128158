"""``layerfs workspace``: list, show and remove workspaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.history.authorship import author_now
from layerfs.present.workspaces import present_detached, present_workspace, present_workspaces
from layerfs.workspace.detach import DetachRequest, detach
from layerfs.workspace.listing import describe_workspace, list_workspaces
from layerfs.workspace.naming import name_workspace

if TYPE_CHECKING:
    import typer


def command_list(inv: Invocation) -> Reply:
    """List workspaces: name, engine, state, branch, last commit, path.

    The state is "attached", "private" (a run is going on in it, or another mount namespace has it), "kept" (not attached,
    with its work), or "stale" (its mount is gone, as after a restart: "layerfs mount" of the same name heals it).
    """
    return present_workspaces(list_workspaces(inv.store))


def command_show(
    inv: Invocation,
    workspace: Annotated[
        str | None,
        typer.Argument(metavar="WORKSPACE", help="Its name or its directory; the one around here."),
    ] = None,
) -> Reply:
    """Show all that is known of one workspace."""
    inv.stand_near(workspace)
    return present_workspace(describe_workspace(inv.store, name_workspace(inv, workspace)))


def command_remove(
    inv: Invocation,
    workspace: Annotated[
        str | None,
        typer.Argument(metavar="WORKSPACE", help="Its name or its directory; the one around here."),
    ] = None,
    discard: Annotated[bool, typer.Option("--discard", help="Drop uncommitted changes.")] = False,
) -> Reply:
    """Forget a workspace, attached or not; uncommitted changes need --discard."""
    inv.stand_near(workspace)
    record = name_workspace(inv, workspace)
    inv.step_out()
    return present_detached(detach(inv.store, record, DetachRequest(author_now(inv.context), discard)))

"""``layerfs unmount``: take a workspace away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.authorship import author_now, provenance_from
from layerfs.present.workspaces import present_detached
from layerfs.workspace.commit import check_message
from layerfs.workspace.detach import DetachRequest, detach
from layerfs.workspace.naming import name_workspace
from layerfs.workspace.recording import CommitRequest

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    workspace: Annotated[
        str | None,
        typer.Argument(metavar="WORKSPACE", help="Its name or its directory; the one around here."),
    ] = None,
    discard: Annotated[bool, typer.Option("--discard", help="Drop uncommitted changes.")] = False,
    commit: Annotated[bool, typer.Option("--commit", help="Commit uncommitted changes first.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="End the processes that use it; uncommitted changes are kept.")
    ] = False,
    message: Annotated[
        str | None, typer.Option("-m", "--message", metavar="TEXT", help="Why, for --commit.")
    ] = None,
) -> Reply:
    """Detach a workspace and forget it.

    Uncommitted changes are never lost: with any the command is refused (13) unless --commit or --discard. While processes
    use the workspace it is refused as well (11), and they are listed. What is written at the last moment is kept, and
    "layerfs mount" of the same name brings it back.

    With --force the processes that use it are ended, first politely. Uncommitted changes then stay in the store, unless
    --commit or --discard, and "layerfs mount" of the same name brings them back; nothing is ever dropped silently. A
    workspace of engine copy stays where it is as long as it has uncommitted changes.
    """
    if discard and commit:
        raise UsageError("--discard and --commit exclude each other")
    author = author_now(inv.context)
    request = CommitRequest(author, check_message(message), provenance_from(inv.context)) if commit else None
    inv.stand_near(workspace)
    record = name_workspace(inv, workspace)
    inv.step_out()
    with inv.progress() as progress:
        return present_detached(
            detach(inv.store, record, DetachRequest(author, discard, request, force), progress)
        )

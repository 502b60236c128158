"""``layerfs merge``: combine two lines of work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.authorship import author_now
from layerfs.history.combine import CombineRequest, combine
from layerfs.history.revision import resolve
from layerfs.present.meeting import present_merge
from layerfs.workspace.commit import check_message

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    theirs: Annotated[str, typer.Argument(metavar="THEIRS", help="The state to merge.")],
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="BRANCH", help="The branch to merge into; the workspace's own."),
    ] = None,
    branch: Annotated[
        str | None, typer.Option("--as", metavar="NEW", help="Put the result on a new branch of this name.")
    ] = None,
    message: Annotated[str | None, typer.Option("-m", "--message", metavar="TEXT", help="Why.")] = None,
    unrelated: Annotated[
        bool, typer.Option("--allow-unrelated", help="Merge histories that have nothing in common.")
    ] = False,
) -> Reply:
    """Merge a state into a branch: three-way, over the last state both have in common.

    A clean merge is a commit with two parents, or a fast-forward. On conflict nothing is created: one line per conflict
    is printed and the exit code is 1. Workspaces on the branch keep their files until "layerfs update" brings the merge
    in.
    """
    found = inv.find_workspace()
    target = into if into is not None else (found.branch if found is not None else "")
    if not target:
        raise UsageError("merge into which branch?", "name it with --into BRANCH")
    request = CombineRequest(
        resolve(inv.store, theirs, inv.at).commit,
        theirs,
        target,
        author_now(inv.context),
        check_message(message),
        branch,
        unrelated,
    )
    here = branch is None and found is not None and found.branch == target
    return present_merge(combine(inv.store, request), theirs, here)

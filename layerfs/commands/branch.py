"""``layerfs branch``: list, delete, rename and reset branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.branches import delete_branches, list_branches, rename_branch, reset_branch
from layerfs.present.branches import present_branches, present_deleted, present_renamed, present_reset

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="With -d the branches to delete; with -m OLD and NEW."),
    ] = None,
    delete: Annotated[bool, typer.Option("-d", "--delete", help="Delete branches.")] = False,
    force_delete: Annotated[bool, typer.Option("-D", help="The same as --delete --force.")] = False,
    rename: Annotated[
        bool, typer.Option("-m", "--move", help="Rename a branch; workspaces on it follow.")
    ] = False,
    force: Annotated[
        bool, typer.Option("-f", "--force", help="Delete a branch even if its work is nowhere else.")
    ] = False,
) -> Reply:
    """List the branches with their heads; the branch of the workspace you are in has a star.

    With -d branches are deleted, all or none: not while a workspace is on one (exit 13), and not if its work is in
    neither main nor another branch or tag, unless forced. A deleted branch can be had back: its commits stay, and
    'layerfs reflog NAME' shows where it was. To make a branch, use 'layerfs fork'.
    """
    given = list(names or ())
    delete = delete or force_delete
    if (
        (delete and rename)
        or len(given) < (1 if delete else 0)
        or (not delete and len(given) != (2 if rename else 0))
    ):
        raise UsageError(
            "give no names to list, -d and names, or -m OLD NEW", "'layerfs fork NAME' makes a branch"
        )
    author = inv.context.author()
    if delete:
        return present_deleted(delete_branches(inv.store, given, force or force_delete, author))
    if rename:
        return present_renamed(given[0], rename_branch(inv.store, given[0], given[1], author))
    record = inv.find_workspace()
    return present_branches(list_branches(inv.store), record.branch if record else None)


def command_reset(
    inv: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The branch to move.")],
    revision: Annotated[str, typer.Argument(metavar="REV", help="Where to.")],
) -> Reply:
    """Move a branch to any state. Where it was stays in the reflog as NAME@{1}.

    Workspaces on the branch keep their files and their last commit. If the branch was moved back, the next commit in
    such a workspace follows that commit, and so moves the branch forward again: unmount the workspace first, or go on
    from a fork.
    """
    return present_reset(reset_branch(inv.store, name, revision, inv.at, inv.context.author()))

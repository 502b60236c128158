"""``layerfs resolve``: decide one path of an open merge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.authorship import author_now
from layerfs.present.openmerge import present_open
from layerfs.workspace.openmerge import list_undecided, resolve_conflict

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The path to decide.")],
    ours: Annotated[bool, typer.Option("--ours", help="Take what this workspace had.")] = False,
    theirs: Annotated[bool, typer.Option("--theirs", help="Take what is merged in.")] = False,
    base: Annotated[bool, typer.Option("--base", help="Take what both sides started from.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it.")] = False,
) -> Reply:
    """Decide a path of the workspace's open merge: take a side, or say that the file is right as it is now.

    What was put beside the path as NAME~theirs is removed. When nothing is undecided any more, "layerfs commit" concludes
    the merge.
    """
    chosen = {"ours": ours, "theirs": theirs, "base": base, "delete": delete}
    sides = [*filter(chosen.get, chosen)]
    if len(sides) > 1:
        raise UsageError("take one side", "--ours, --theirs, --base and --delete exclude each other")
    side = sides[0] if sides else None
    record = resolve_conflict(inv.store, inv.workspace, inv.tree_path(path), side, author_now(inv.context))
    return present_open(record, list_undecided(inv.store, record))._replace(exit_code=0)

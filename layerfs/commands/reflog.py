"""``layerfs reflog``: where names were before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.history.reflog import read_reflog
from layerfs.present.branches import present_reflog

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A branch or tag, also a deleted one, or main.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--max-count", min=0, metavar="N", help="Show at most N moves.")
    ] = None,
) -> Reply:
    """Show every move of a branch or tag, newest first, or of all of them.

    NAME@{N} names the state N moves ago, in every command that takes a revision, as long as NAME exists; a line of dashes
    is a deletion, and a deleted branch comes back with 'layerfs fork NAME --from' and the id below it.
    """
    return present_reflog(read_reflog(inv.store, name, limit))

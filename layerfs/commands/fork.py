"""``layerfs fork``: branches from any state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.history.branches import fork
from layerfs.present.branches import present_fork

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="The branches to make.")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="REV", help="Where they start: by default @ in a workspace, else main."
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", min=1, metavar="N", help="Make NAME-1 to NAME-N of each name.")
    ] = None,
) -> Reply:
    """Make branches from any state: main, a layer, a branch, a tag, a commit, a fork of a fork. Nothing is copied.

    All of them are made, or none. 'layerfs mount NAME' or 'layerfs run NAME' then works on one.
    """
    return present_fork(fork(inv.store, names, start, count, inv.at, inv.context.author()))

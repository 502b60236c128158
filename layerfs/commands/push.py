"""``layerfs push``: send names to another store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.exchange.copying import push
from layerfs.present.transfers import present_transferred

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    other: Annotated[str, typer.Argument(metavar="STORE", help="The store to push to.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Branches, tags, or main; without any, all of them."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Move branches and tags also where that loses commits.")
    ] = False,
) -> Reply:
    """Send branches, tags and layers to another store, with everything they reach.

    Only what is missing is copied, and everything is verified on arrival. Both stores may be in use. A branch moves only
    forward and a tag not at all, unless forced; main is extended by the layers it lacks, if those it has are the same.
    Names that cannot move are listed, the others move; exit 1 then.
    """
    path = inv.context.absolute(other)
    with inv.progress() as progress:
        moved = push(
            inv.store, path, tuple(names or ()), force, inv.context.clock, inv.context.author(), progress
        )
        return present_transferred(moved)

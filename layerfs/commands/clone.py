"""``layerfs clone``: copy a store into a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.exchange.copying import clone
from layerfs.present.transfers import present_cloned

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    source: Annotated[str, typer.Argument(metavar="STORE", help="The store to copy.")],
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Where the new store goes; absent or empty.")
    ],
) -> Reply:
    """Copy all branches, tags and layers of a store, with everything they reach, into a new store.

    Everything is verified on arrival. The source may be in use. If it is interrupted, "layerfs fetch" goes on with it.
    Workspaces and the reflog belong to a store and are not copied; settings are.
    """
    absolute = inv.context.absolute
    with inv.progress() as progress:
        return present_cloned(
            clone(absolute(source), absolute(directory), inv.context.clock, inv.context.author(), progress)
        )

"""``layerfs show-ref``: list pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.present.refs import present_refs

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="List only these: full names, or their last parts as people use them."
        ),
    ] = None,
) -> Reply:
    """List branches, tags and main with the commits they name, one per line: id, space, full name.

    With names it lists only the pointers called so, and exits 1 if there is none. Main is shown as refs/main.
    """
    return present_refs(inv.store.refs.all(), names)

"""``layerfs ls-extents``: the pieces a stored file consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.history.states import place_extents
from layerfs.present.objects import present_pieces

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="REV:PATH, or the id of a chunk or an extent tree.")
    ],
) -> Reply:
    """List the pieces of a stored file: offset, length, chunk id or "hole", one per line."""
    return present_pieces(place_extents(inv.store, file, inv.at))

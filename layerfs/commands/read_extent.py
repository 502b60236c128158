"""``layerfs read-extent``: a range of a stored file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.plumbing.splicing import read_stored
from layerfs.present.objects import present_range

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="REV:PATH, or the id of a chunk or an extent tree.")
    ],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", help="The first byte, counted from 0.")],
    length: Annotated[
        int | None, typer.Argument(metavar="LENGTH", help="How many bytes; without it all up to the end.")
    ] = None,
) -> Reply:
    """Print the bytes of a stored file from OFFSET on, reading only the pieces they lie in.

    A range that reaches past the end of the file is cut there, and one that begins there is empty. Memory stays small
    whatever the range, and holes are not read.
    """
    return present_range(read_stored(inv.store, file, offset, length, inv.at))

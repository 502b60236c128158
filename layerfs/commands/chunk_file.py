"""``layerfs chunk-file``: the pieces a file would be stored in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.cli.stdin import iter_blocks
from layerfs.plumbing.hashing import cut_content, iter_file
from layerfs.present.objects import present_pieces

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to cut; '-' reads standard input.")],
) -> Reply:
    """Show how a file is cut into chunks and holes: offset, length, chunk id or "hole", one piece per line.

    Nothing is stored and no store is needed. A file below 128 KiB is one piece; an empty one has none.
    """
    blocks = iter_blocks() if file == "-" else iter_file(inv.context.absolute(file))
    return present_pieces(cut_content(blocks))

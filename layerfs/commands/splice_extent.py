"""``layerfs splice-extent``: other bytes in a stored file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.capture.dirtyranges import Range
from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.cli.stdin import iter_blocks
from layerfs.errors import UsageError
from layerfs.plumbing.hashing import iter_file
from layerfs.plumbing.splicing import splice_stored
from layerfs.present.objects import present_spliced

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="REV:PATH, or the id of a chunk or an extent tree.")
    ],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", help="The first byte, counted from 0.")],
    length: Annotated[
        int, typer.Argument(metavar="LENGTH", help="How many bytes to take out; 0 inserts only.")
    ],
    data: Annotated[
        str | None, typer.Option("--data", metavar="FILE", help="Read the new bytes from FILE.")
    ] = None,
    zeros: Annotated[
        int | None,
        typer.Option("--zeros", metavar="COUNT", help="Put that many zero bytes, and read nothing."),
    ] = None,
    root: Annotated[
        bool, typer.Option("--root", help="Print the root of REV with the file so changed, for commit-tree.")
    ] = False,
) -> Reply:
    """Store a file's content with LENGTH bytes at OFFSET replaced by standard input, and print its id.

    No branch moves. The id is the one that the whole new content has, but only the pieces around the change are read and
    written, however long the file is. Where bytes come or go that are no multiple of 4096, the list of all pieces behind
    them is read too, since holes consist of whole pages; their content is not. With --root the file's mtime is now.
    """
    if data is not None and zeros is not None:
        raise UsageError("--data and --zeros do not go together")
    if zeros is not None and zeros < 0:
        raise UsageError("a number of zeros is not negative")
    blocks = (
        [zeros]
        if zeros is not None
        else iter_blocks()
        if data is None
        else iter_file(inv.context.absolute(data))
    )
    return present_spliced(
        splice_stored(
            inv.store,
            file,
            Range(offset, length),
            blocks,
            inv.context.author(),
            inv.at,
            inv.context.now_ns() if root else None,
        )
    )

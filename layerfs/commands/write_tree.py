"""``layerfs write-tree``: a directory as a root object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.plumbing.objectwriting import write_tree
from layerfs.present.trees import present_written

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The directory to capture.")],
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="PATTERN", help="Leave out paths that match.")
    ] = None,
) -> Reply:
    """Capture a directory into the store and print the id of its root object; no branch moves.

    Of what the store's settings exclude nothing is left out; a pointer file at the top and the store itself always are.
    What could not be captured is listed on standard error, and the exit code is 3.
    """
    with inv.progress() as progress:
        written = write_tree(
            inv.store, inv.context.absolute(directory), exclude or (), inv.context.author(), progress
        )
    return present_written(written)

"""``layerfs layers``: the stack of main."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.history.layerstack import iter_layers
from layerfs.present.layers import present_layers

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    covered: Annotated[
        bool, typer.Option("--covered", help="Show which layers and paths each layer covers.")
    ] = False,
) -> Reply:
    """List the layers of main, newest first: number, commit, when, how it was made, from which branch, message.

    A layer made with 'layerfs publish --mode overwrite' covers others; --covered shows what.
    """
    return present_layers(iter_layers(inv.store, True), covered)

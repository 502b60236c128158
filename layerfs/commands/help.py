"""``layerfs help``: show a manual page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.manual import read_page
from layerfs.cli.output import Reply
from layerfs.present.manual import present_page

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="A command, or a topic such as 'scripting'.")
    ] = "layerfs",
) -> Reply:
    """Show the manual page of a command or a topic.

    Without a topic it shows layerfs(1). The text is the manual page itself, laid out for the width of the terminal.
    """
    return present_page(read_page(topic), inv.context.columns)

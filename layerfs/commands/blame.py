"""``layerfs blame``: which commit, agent and tool call wrote each line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.annotate import annotate, parse_lines
from layerfs.present.annotations import present_annotations

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="The file; a revision may stand before it (default @, else main)."
        ),
    ],
    lines: Annotated[
        str | None,
        typer.Option("-L", metavar="A,B", help="Only these lines: A,B or A,+N or A alone to the end."),
    ] = None,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", help="Follow the first parent only.")
    ] = False,
    porcelain: Annotated[
        bool,
        typer.Option("--porcelain", help="Print a header of fields and a tab before each line, for scripts."),
    ] = False,
) -> Reply:
    """Show each line of a file with the commit it came from, the agent, tool call or author, and the date.

    Lines are followed through merges and renames. A file that is not text is answered by the commit that last changed it.
    """
    if len(words) > 2:
        raise UsageError("give a path, or a revision and a path")
    revision = words[0] if len(words) == 2 else None
    bounds = parse_lines(lines)
    return present_annotations(
        annotate(inv.store, revision, inv.tree_path(words[-1]), inv.at, bounds, first_parent), porcelain
    )

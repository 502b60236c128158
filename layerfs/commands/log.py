"""``layerfs log``: history, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.decorations import read_decorations
from layerfs.history.history import CommitReader
from layerfs.history.revisionset import Selection, parse_set, select
from layerfs.present.history import present_log
from layerfs.store.refs import MAIN

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="REV",
            help="What to start from (default @ in a workspace, else main); A..B leaves out what A reaches; "
            "after '--' paths to keep to.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--max-count", min=0, metavar="N", help="Show at most N commits.")
    ] = None,
    oneline: Annotated[bool, typer.Option("--oneline", help="Show a line per commit.")] = False,
    calls: Annotated[
        bool, typer.Option("--calls", help="Show a line per commit with its agent, tool call and command.")
    ] = False,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", help="Follow the first parent only.")
    ] = False,
    joins: Annotated[
        bool,
        typer.Option(
            "--joins", help="Show the commits that only join concurrent commits of a branch as well."
        ),
    ] = False,
) -> Reply:
    """Show commits, newest first: id, the names that point at it, author, date, where it came from, message.

    With paths it shows the commits that changed one of them, compared with every parent.
    """
    if oneline and calls:
        raise UsageError("--oneline and --calls exclude each other")
    revisions, paths = inv.split_words(words)
    wanted = parse_set(inv.store, revisions, inv.at, MAIN if inv.at is None else "@")
    selection = Selection(tuple(paths), first_parent, joins, limit)
    return present_log(
        select(CommitReader(inv.store.objects), wanted, selection),
        read_decorations(inv.store.refs),
        "oneline" if oneline else "calls" if calls else "full",
        paths,
    )

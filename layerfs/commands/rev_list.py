"""``layerfs rev-list``: the commits a set of revisions selects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.history import CommitReader
from layerfs.history.revisionset import Selection, parse_set, select
from layerfs.present.history import present_rev_list

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="REV",
            help="What to start from; ^REV or A..B leaves out what REV or A reaches; after '--' paths to keep to.",
        ),
    ],
    limit: Annotated[
        int | None, typer.Option("-n", "--max-count", min=0, metavar="N", help="Print at most N commits.")
    ] = None,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", help="Follow the first parent only.")
    ] = False,
    topological: Annotated[
        bool,
        typer.Option("--topo-order", help="Never show a parent before its child, whatever the clocks said."),
    ] = False,
    count: Annotated[bool, typer.Option("--count", help="Print only how many there are.")] = False,
) -> Reply:
    """List the commits reachable from the revisions, newest first, one id per line; joins are included.

    With paths only commits that changed one of them, compared with every parent, are listed.
    """
    revisions, paths = inv.split_words(words)
    wanted = parse_set(inv.store, revisions, inv.at)
    if not wanted.starts:
        raise UsageError("give a revision to start from")
    selection = Selection(tuple(paths), first_parent, True, limit, topological)
    return present_rev_list(select(CommitReader(inv.store.objects), wanted, selection), count)

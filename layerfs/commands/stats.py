"""``layerfs stats``: a store in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.history.revision import resolve
from layerfs.present.health import present_statistics
from layerfs.upkeep.stats import gather

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    revision: Annotated[
        str | None,
        typer.Argument(metavar="REV", help="The state to measure, by default main's newest layer."),
    ] = None,
) -> Reply:
    """Show how big a state is, what the store takes for the whole history, and how much a commit adds.

    Measuring a state walks its whole tree.
    """
    commit = None if revision is None else resolve(inv.store, revision, inv.at).commit
    return present_statistics(gather(inv.store, commit))

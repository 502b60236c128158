"""``layerfs gc``: give back the room of what no name reaches any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.present.upkeep import present_collected
from layerfs.store.settings import Settings, retention
from layerfs.upkeep.collect import WAIT_SECONDS, CollectOptions, collect

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Say what would go, and change nothing.")
    ] = False,
    reflog_expire: Annotated[
        int | None,
        typer.Option("--reflog-expire", metavar="DAYS", min=0, help="Keep lines of the reflog this long."),
    ] = None,
    dropped_expire: Annotated[
        int | None,
        typer.Option(
            "--dropped-expire", metavar="DAYS", min=0, help="Keep deleted branches and tags this long."
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, help="Wait so long for writers that began before."),
    ] = WAIT_SECONDS,
) -> Reply:
    """Give back the room of what no branch, tag, layer, workspace or line of the reflog reaches any more.

    Lines of the reflog are kept for gc.reflog-expire days, those of deleted branches and tags for gc.dropped-expire
    days; so long what they reach can be had back. With --dropped-expire 0 the room of deleted branches comes back at
    once.

    Others may read and write meanwhile, and it may be interrupted or killed at any moment. A dry run does not look at
    what was committed since the last pack was sealed.
    """
    kept = retention(Settings(inv.store.path), inv.context.clock(), reflog_expire, dropped_expire)
    with inv.progress() as progress:
        options = CollectOptions(kept, wait, dry_run)
        return present_collected(collect(inv.store, options, inv.context.author(), progress))

"""``layerfs prune``: collect, shrink the layer cache and remove leftovers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.present.upkeep import present_pruned
from layerfs.store.settings import Settings, cache_bound, retention
from layerfs.upkeep.collect import CollectOptions
from layerfs.upkeep.prune import prune

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Say what would go, and change nothing.")
    ] = False,
    cache: Annotated[
        bool, typer.Option("--cache", help="Remove every layer of the cache that is not in use.")
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
) -> Reply:
    """Do all that "layerfs gc" does, make the layer cache fit cache.max-size, and remove what killed commands left.

    Layers that a workspace uses stay. Uncommitted work is never removed: where a directory of a workspace that the store
    does not know holds some, it is named and left.
    """
    settings = Settings(inv.store.path)
    kept = retention(settings, inv.context.clock(), reflog_expire, dropped_expire)
    with inv.progress() as progress:
        options = CollectOptions(kept, dry_run=dry_run)
        bound = 0 if cache else cache_bound(settings)
        return present_pruned(prune(inv.store, options, bound, inv.context.author(), progress))

"""``layerfs purge``: take a path or a commit out of all history."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.revision import resolve
from layerfs.present.upkeep import present_purged
from layerfs.store.settings import Settings, retention
from layerfs.upkeep.collect import WAIT_SECONDS, CollectOptions
from layerfs.upkeep.purge import PurgeRequest, purge

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="What goes, from the root of the tree.")
    ] = None,
    commit: Annotated[
        str | None, typer.Option("--commit", metavar="REV", help="Take this commit out instead of a path.")
    ] = None,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, help="Wait so long for writers that began before."),
    ] = WAIT_SECONDS,
) -> Reply:
    """Take paths, with all below them, or a commit out of all history, and their bytes off the disk.

    Every commit that holds a path, and every one after it, gets a new id; branches, tags, layers, the reflog and
    workspaces move with them, and each old id is printed with its new one. Nothing brings what was purged back.

    Refused while a workspace other than the captured directory stands on what changes, while any workspace is mounted on
    a cached layer that holds it, and while the captured directory still holds the path. Cached layers that hold it go
    too; damaged packs that a repair put into quarantine are told of. A commit that is taken out leaves what later commits
    hold as it is.
    """
    given = tuple(os.fsencode(path).strip(b"/") for path in paths or ())
    if bool(given) == bool(commit) or not all(given):
        raise UsageError("give paths to purge, or --commit REV")
    commits = (resolve(inv.store, commit, inv.at).commit,) if commit else ()
    kept = retention(Settings(inv.store.path), inv.context.clock(), None, None)
    with inv.progress() as progress:
        request = PurgeRequest(given, commits)
        return present_purged(
            purge(inv.store, request, CollectOptions(kept, wait), inv.context.author(), progress)
        )

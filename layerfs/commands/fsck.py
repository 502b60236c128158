"""``layerfs fsck``: check a store from its packs up to its refs."""

from __future__ import annotations

from typing import Annotated

import typer

from layerfs.frame import Invocation
from layerfs.output import Reply
from layerfs.present.health import present_report
from layerfs.repair import repair_store
from layerfs.verify import verify_store


def command(
    inv: Invocation,
    fast: Annotated[
        bool, typer.Option("--fast", help="Check that chunks are there, without decoding every one of them.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="First make the database and damaged indexes anew from the packs.")
    ] = False,
) -> Reply:
    """Check every pack, every object against its id, and that everything a name reaches is there.

    A problem names the object, the newest commit that needs it and the first path. Exit 1 if there is one. Nothing is
    changed, except by --repair, which rebuilds what is derived from the packs and touches no pack.
    """
    repaired = repair_store(inv.store_path, inv.context.clock) if repair else []
    with inv.progress() as progress:
        return present_report(verify_store(inv.store, not fast, progress), repaired)

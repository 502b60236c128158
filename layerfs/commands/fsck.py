"""``layerfs fsck``: check a store from its packs up to its refs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.present.health import present_report
from layerfs.upkeep.repair import repair_store
from layerfs.upkeep.verify import verify_store

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    fast: Annotated[
        bool, typer.Option("--fast", help="Check that chunks are there, without decoding every one of them.")
    ] = False,
    read_data: Annotated[
        bool, typer.Option("--read-data", help="Decode every chunk too, as is done unless --fast is given.")
    ] = False,
    repair: Annotated[bool, typer.Option("--repair", help="First repair what can be repaired.")] = False,
    other: Annotated[
        str | None,
        typer.Option("--from", metavar="STORE", help="With --repair, take what is missing from this store."),
    ] = None,
) -> Reply:
    """Check every pack, every object against its id, the database against the log, and that all a name reaches is there.

    A problem names the object, the newest commit that needs it and the first path. Exit 1 if there is one. Nothing is
    changed, except by --repair: it makes the database and indexes anew from the packs, saves what is whole of damaged
    packs, keeps these in the store's directory quarantine, and takes missing objects from another store, such as a clone,
    that is named with --from. What is listed afterwards is lost.
    """
    if fast and read_data:
        raise UsageError("--fast and --read-data exclude each other")
    if other is not None and not repair:
        raise UsageError("--from goes with --repair")
    helper = None if other is None else inv.context.absolute(other)
    repaired = repair_store(inv.store_path, inv.context.clock, helper) if repair else []
    with inv.progress() as progress:
        return present_report(verify_store(inv.store, not fast, progress), repaired)

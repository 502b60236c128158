"""``layerfs ls-pack``: packs, and what lies in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.present.packs import present_pack, present_packs
from layerfs.store.packlist import list_pack, list_packs

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    pack: Annotated[
        str | None, typer.Argument(metavar="PACK", help="List what lies in this pack instead of the packs.")
    ] = None,
) -> Reply:
    """List the packs: name, log or bulk, open or sealed, objects, bytes.

    With PACK it lists the objects in it, in their order: id, kind, length, offset of the frame, offset in its payload.
    """
    return present_packs(list_packs(inv.store)) if pack is None else present_pack(list_pack(inv.store, pack))

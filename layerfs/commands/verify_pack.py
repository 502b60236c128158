"""``layerfs verify-pack``: check packs from their first byte to their last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.present.packs import present_checks
from layerfs.store.packlist import verify_packs

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    pack: Annotated[
        str | None, typer.Argument(metavar="PACK", help="The pack to check, instead of all.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Check frames and indexes only, without decoding every object.")
    ] = False,
) -> Reply:
    """Check every frame of a pack, its index, and each object against its id; exit 1 if anything is wrong.

    One line per pack: name, ok or damaged, whole frames, objects, bytes; then a line for each problem. What an object
    means and which commit needs it is checked by 'layerfs fsck'.
    """
    return present_checks(list(verify_packs(inv.store, pack, not fast)))

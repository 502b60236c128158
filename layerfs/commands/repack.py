"""``layerfs repack``: few packs, in which like lies with like, compressed deeply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.present.packs import present_repacked
from layerfs.upkeep.repack import LEVEL, RepackOptions, repack

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    everything: Annotated[
        bool, typer.Option("--all", help="Also rewrite packs that were repacked before.")
    ] = False,
    level: Annotated[
        int, typer.Option("--level", metavar="N", min=1, max=22, help="How deeply to compress, as in zstd.")
    ] = LEVEL,
) -> Reply:
    """Put what was committed since the last repack into few large packs that take much less room.

    Others may read and write meanwhile, and it may be interrupted at any moment: the old packs stay until the new ones
    are complete. Room for the new packs is needed until then.
    """
    with inv.progress() as progress:
        return present_repacked(repack(inv.store, RepackOptions(everything, level), "repack", progress))

"""``layerfs warm``: put a state into the layer cache, so that mounting it takes milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.history.revision import resolve
from layerfs.present.workspaces import present_warm
from layerfs.workspace.layercache import ensure_stack, own_flavour

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    revision: Annotated[str, typer.Argument(metavar="REV", help="The state to materialise.")] = "main",
) -> Reply:
    """Materialise a state in the layer cache and sync it to disk.

    The next mount or run of this state, or of one near it, only mounts. The cache outlasts a restart of the machine; it
    may be deleted at any time while nothing is mounted.
    """
    commit = resolve(inv.store, revision, inv.at).commit
    with inv.progress() as progress:
        stack = ensure_stack(
            inv.store, commit, inv.context.now_ns(), progress, flavour=own_flavour(), sync=True
        )
    return present_warm(commit, stack)

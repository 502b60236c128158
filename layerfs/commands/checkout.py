"""``layerfs checkout``: write a state into a new directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.checkout.export import export_commit
from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.revision import resolve
from layerfs.present.captures import present_checkout

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    revision: Annotated[str, typer.Argument(metavar="REV", help="The state to write.")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="DIR", help="A new or an empty directory; needed.")
    ] = None,
) -> Reply:
    """Write a complete state into a directory, byte for byte, with owners, permissions, attributes, links and times.

    Nothing is ever written outside of the directory. What this machine cannot represent (owners and devices without
    root) is listed, and the exit code is 3 where anything but owners is concerned. The directory is a plain copy: it is
    not a workspace, and nothing in the store remembers it.
    """
    if to is None:
        raise UsageError(
            "missing option '--to'",
            f"'layerfs mount {revision}' attaches it as a workspace; '--to DIR' writes a plain copy",
        )
    commit = resolve(inv.store, revision, inv.at).commit
    target = inv.context.absolute(to)
    with inv.progress() as progress:
        restored = export_commit(inv.store, commit, target, progress)
    return present_checkout(commit, target, restored)

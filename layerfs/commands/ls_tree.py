"""``layerfs ls-tree``: the entries of a directory in a state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.history.states import list_tree, resolve_directory
from layerfs.present.entries import present_tree

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    directory: Annotated[
        str, typer.Argument(metavar="TREE", help="REV, REV:PATH, or the id of a root, tree, commit or layer.")
    ],
    recursive: Annotated[
        bool, typer.Option("-r", help="List everything below, directories included.")
    ] = False,
    long: Annotated[bool, typer.Option("-l", help="Show size and mtime as well.")] = False,
) -> Reply:
    """List a directory: mode, kind, id, a tab, the name; with -l size and mtime before the tab.

    Names count from the directory that was named. Entries without an object of their own (empty files, links, sockets,
    FIFOs, devices) show a dash. Names with odd bytes are quoted as git quotes them; -z quotes nothing.
    """
    return present_tree(
        list_tree(inv.store.objects, resolve_directory(inv.store, directory, inv.at), recursive), long
    )

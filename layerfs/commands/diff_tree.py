"""``layerfs diff-tree``: what differs between two states, one raw line per path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.states import diff_paths, resolve_directory
from layerfs.present.entries import present_raw_changes

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    words: Annotated[
        list[str],
        typer.Argument(metavar="TREE", help="Two states: REV, REV:PATH or ids; after '--' paths to keep to."),
    ],
) -> Reply:
    """List every path whose entry differs between two states: letter, modes, ids, a tab, the path.

    The letter is A (added), D (deleted), M (content or any attribute) or T (another kind); then the old and the new mode
    and id, zeros and a dash for nothing. Everything below is compared, directories included; unchanged subtrees are
    skipped unread.
    """
    names, paths = inv.split_words(words)
    if len(names) != 2:
        raise UsageError("give two states", "paths come after '--'")
    old, new = (resolve_directory(inv.store, name, inv.at) for name in names)
    return present_raw_changes(diff_paths(inv.store.objects, old, new, paths))

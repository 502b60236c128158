"""``layerfs show``: a commit with its patch, a layer, or a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.decorations import read_decorations
from layerfs.history.showing import is_place, open_place, read_state
from layerfs.present.showing import PatchStyle, present_place, present_state

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    revision: Annotated[
        str | None,
        typer.Argument(metavar="REV", help="A revision or REV:PATH; by default @ in a workspace, else main."),
    ] = None,
    patch: Annotated[
        bool, typer.Option("-p", "--patch", help="Show the patch of a first commit too, all its files.")
    ] = False,
    no_patch: Annotated[bool, typer.Option("-s", help="Show no patch.")] = False,
    stat: Annotated[bool, typer.Option("--stat", help="Show how many lines changed in each path.")] = False,
    names: Annotated[
        bool, typer.Option("--name-status", help="Show a letter and the path of each change.")
    ] = False,
    times: Annotated[
        bool, typer.Option("--times", help="Show directories of which only the time changed.")
    ] = False,
) -> Reply:
    """Show a commit and what it changed against its first parent; a layer, also how it came to main.

    REV:PATH prints a file's content, a link's target, or the names in a directory.
    """
    if patch + no_patch + stat + names > 1:
        raise UsageError("-p, -s, --stat and --name-status exclude each other")
    word = revision if revision is not None else "main" if inv.at is None else "@"
    if is_place(word):
        return present_place(open_place(inv.store, word, inv.at), inv.as_json)
    style = (
        PatchStyle.NONE
        if no_patch
        else PatchStyle.STAT
        if stat
        else PatchStyle.NAMES
        if names
        else PatchStyle.PATCH
    )
    state = read_state(inv.store, word, inv.at, patch or stat or names, times)
    return present_state(state, read_decorations(inv.store.refs), style, inv.context.columns)

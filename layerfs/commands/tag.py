"""``layerfs tag``: list, make and delete tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.tags import delete_tags, list_tags, make_tag
from layerfs.present.branches import present_tag_moves, present_tags

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="The tag to make, and perhaps a revision after it; with -d tags to delete."
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("-d", "--delete", help="Delete tags.")] = False,
    force: Annotated[bool, typer.Option("-f", "--force", help="Move a tag that exists.")] = False,
) -> Reply:
    """List the tags, or give a state a name that stays.

    The default state is @ in a workspace, else main.
    """
    given = list(words or ())
    if (delete and not given) or (not delete and len(given) > 2):
        raise UsageError("give no words to list, NAME and perhaps REV to make a tag, or -d and names")
    if not given:
        return present_tags(list_tags(inv.store))
    author = inv.context.author()
    if delete:
        return present_tag_moves(delete_tags(inv.store, given, author))
    return present_tag_moves(
        [make_tag(inv.store, given[0], given[1] if len(given) > 1 else None, force, inv.at, author)]
    )

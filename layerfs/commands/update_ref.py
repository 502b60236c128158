"""``layerfs update-ref``: move branches and tags by compare-and-set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.cli.stdin import iter_records
from layerfs.errors import UsageError
from layerfs.plumbing.refupdates import RefUpdate, parse_update, update_refs
from layerfs.present.refs import present_ref_updates

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="REF", help="The full ref, its new value, and perhaps the value expected to be there."
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("-d", help="Delete the ref: REF [OLD].")] = False,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Read changes from standard input and make all of them or none.")
    ] = False,
    why: Annotated[
        str, typer.Option("-m", metavar="REASON", help="The reason the reflog shows.")
    ] = "update-ref",
) -> Reply:
    """Set a branch or a tag to a commit; with OLD only if it is there now, else exit 12 and do nothing.

    REF is refs/heads/NAME or refs/tags/NAME. An OLD of 64 zeros says that the ref must not exist; a NEW of 64 zeros
    deletes. Lines of --stdin are "update REF NEW [OLD]", "create REF NEW", "delete REF [OLD]" and "verify REF [OLD]";
    all of them happen in one move.
    """
    given = list(words or ())
    if stdin:
        if given or delete:
            raise UsageError("--stdin takes no other arguments")
        updates = list(map(parse_update, iter_records(inv.nul)))
    elif delete and 1 <= len(given) <= 2:
        updates = [RefUpdate("delete", given[0], None, *given[1:])]
    elif not delete and 2 <= len(given) <= 3:
        updates = [RefUpdate("update", *given)]
    else:
        raise UsageError("give REF and NEW, or -d and REF, or --stdin")
    return present_ref_updates(update_refs(inv.store, updates, inv.at, why, inv.context.author()))

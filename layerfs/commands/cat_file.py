"""``layerfs cat-file``: one object, raw or readable."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.cli.stdin import iter_records
from layerfs.errors import UsageError, quote
from layerfs.history.states import read_object, read_objects
from layerfs.present.objects import (
    present_batch,
    present_existence,
    present_kind,
    present_payload,
    present_readable,
    present_size,
)

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OBJECT",
            help="An id, a prefix of one, a revision, or REV:PATH; for raw bytes its kind before it.",
        ),
    ] = None,
    kind: Annotated[bool, typer.Option("-t", help="Print the kind only.")] = False,
    size: Annotated[bool, typer.Option("-s", help="Print the size of the payload only.")] = False,
    exists: Annotated[
        bool, typer.Option("-e", help="Print nothing; exit 10 if there is no such object.")
    ] = False,
    pretty: Annotated[bool, typer.Option("-p", help="Print the object in a readable form.")] = False,
    batch: Annotated[
        bool, typer.Option("--batch", help="Read words from standard input and print each object.")
    ] = False,
) -> Reply:
    """Print an object: with KIND its raw bytes, otherwise what the option says.

    KIND is chunk, extent, tree, root, commit or layer, and the object must be of that kind. With --batch each object is
    printed as a line with its id, kind and size, its bytes, and a newline; a word that names nothing as the word and
    "missing".
    """
    given = list(words or ())
    forms = (kind, size, exists, pretty, batch)
    if sum(forms) > 1 or len(given) != (0 if batch else 1 if any(forms) else 2):
        raise UsageError("give KIND and OBJECT, or one of -t, -s, -e, -p and OBJECT, or --batch")
    if batch:
        names = map(os.fsdecode, iter_records(inv.nul))
        return present_batch(read_objects(inv.store, names, inv.at), inv.nul)
    found = read_object(inv.store, given[-1], inv.at)
    if len(given) == 2 and found.kind.label != given[0]:
        raise UsageError(f"{quote(given[1])} is of kind {found.kind.label}, not {quote(given[0])}")
    show = (
        present_kind if kind else present_size if size else present_existence if exists else present_readable
    )
    return show(found) if any(forms) else present_payload(found)

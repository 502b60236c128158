"""``layerfs rev-parse``: what revisions name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.cli.stdin import iter_records
from layerfs.errors import UsageError
from layerfs.history.states import resolve_each, resolve_many
from layerfs.ids import ID_BYTES, SHORT_HEX
from layerfs.present.objects import present_ids

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="REV", help="Revisions, ids, prefixes of ids, or REV:PATH.")
    ] = None,
    short: Annotated[bool, typer.Option("--short", help="Print the first 12 digits only.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Demand exactly one revision.")] = False,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Read words from standard input and answer each as it comes.")
    ] = False,
) -> Reply:
    """Print the id of what each word names, one per line.

    A revision names a commit, REV:PATH the object of the file or directory there. All words must name something, or
    nothing is printed and the exit code is 10; with --stdin a word that names nothing is answered by the word and
    "missing".
    """
    given = list(words or ())
    if stdin == bool(given):
        raise UsageError("give revisions, or --stdin")
    if verify and len(given) != 1:
        raise UsageError("--verify takes exactly one revision")
    digits = SHORT_HEX if short else 2 * ID_BYTES
    if stdin:
        return present_ids(resolve_each(inv.store, map(os.fsdecode, iter_records(inv.nul)), inv.at), digits)
    return present_ids(iter(resolve_many(inv.store, given, inv.at)), digits)

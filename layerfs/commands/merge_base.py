"""``layerfs merge-base``: the commits two lines of work have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.revisionset import find_merge_bases, reaches
from layerfs.history.states import resolve_commits
from layerfs.present.history import present_answer, present_bases

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    one: Annotated[str, typer.Argument(metavar="A", help="A revision.")],
    other: Annotated[str, typer.Argument(metavar="B", help="Another revision.")],
    every: Annotated[bool, typer.Option("--all", help="Print all merge bases, newest first.")] = False,
    is_ancestor: Annotated[
        bool,
        typer.Option("--is-ancestor", help="Print nothing; exit 0 if A is B or reachable from it, else 1."),
    ] = False,
) -> Reply:
    """Print the best common ancestor of two commits, the base that a merge of them starts from.

    Exits 1 and prints nothing when the histories have nothing in common.
    """
    if every and is_ancestor:
        raise UsageError("--all and --is-ancestor exclude each other")
    first, second = resolve_commits(inv.store, (one, other), inv.at)
    if is_ancestor:
        return present_answer("is_ancestor", reaches(inv.store, [second], first))
    return present_bases(find_merge_bases(inv.store, first, second), every)

"""``layerfs commit-tree``: a commit of a root, without moving a branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.history.authorship import author_now, provenance_from
from layerfs.history.states import resolve_commits, resolve_root
from layerfs.plumbing.objectwriting import parse_provenance, write_commit
from layerfs.present.objects import present_id

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    root: Annotated[
        str, typer.Argument(metavar="ROOT", help="The id of a root object, or a revision for its root.")
    ],
    parents: Annotated[
        list[str] | None,
        typer.Option("-p", metavar="PARENT", help="A parent, in order; none makes a first commit."),
    ] = None,
    messages: Annotated[
        list[str] | None, typer.Option("-m", metavar="TEXT", help="The message; several are paragraphs.")
    ] = None,
    about: Annotated[
        list[str] | None, typer.Option("--about", metavar="KEY=VALUE", help="A provenance value to record.")
    ] = None,
    author: Annotated[
        str | None, typer.Option("--author", metavar="NAME", help="The author, instead of the one found.")
    ] = None,
) -> Reply:
    """Make a commit of a root object and print its id; no branch moves.

    'layerfs write-tree' makes roots, 'layerfs update-ref' moves a branch to the commit.
    """
    return present_id(
        "commit",
        write_commit(
            inv.store,
            resolve_root(inv.store, root, inv.at),
            resolve_commits(inv.store, parents or (), inv.at),
            author_now(inv.context, author),
            "\n\n".join(messages or ()),
            {**provenance_from(inv.context), **parse_provenance(about or ())},
        ),
    )

"""``layerfs run``: run a command in a workspace at the captured path."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.authorship import author_now, provenance_from
from layerfs.history.revision import resolve
from layerfs.present.runs import present_run
from layerfs.workspace.commit import check_message
from layerfs.workspace.recording import CommitRequest
from layerfs.workspace.runs import RunRequest, run_command

if TYPE_CHECKING:
    import typer

STDERR = 2


def command(
    inv: Invocation,
    words: Annotated[
        list[str], typer.Argument(metavar="REV -- CMD", help="The state to run in, and the command.")
    ],
    commit: Annotated[bool, typer.Option("--commit", help="Commit what the command changed.")] = False,
    branch: Annotated[
        str | None, typer.Option("--as", metavar="NEW", help="Commit to a new branch of this name.")
    ] = None,
    message: Annotated[str | None, typer.Option("-m", "--message", metavar="TEXT", help="Why.")] = None,
    discard: Annotated[bool, typer.Option("--discard", help="Drop what the command changed.")] = False,
    inside: Annotated[
        str | None, typer.Option("--in", metavar="WORKSPACE", help="Run in a workspace that was kept.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="End everything after this time (code 124)."),
    ] = None,
    through: Annotated[
        list[str] | None,
        typer.Option("--pass-through", metavar="PATH", help="Show what really is at this path of the tree."),
    ] = None,
    elsewhere: Annotated[
        bool, typer.Option("--no-at-source", help="Run in a plain copy, not at the captured path.")
    ] = False,
) -> Reply:
    """Run a command with a state mounted over the path it was captured from.

    Only the command and what it starts see the workspace; the directory itself stays as it is. Absolute paths in
    virtualenvs, build caches and editors lead into the workspace. The command starts in the same sub-directory, with
    its terminal and signals, and its exit code is the exit code.

    With --json the document is all there is on standard output; what the command writes goes to standard error.

    Unchanged, the workspace is removed afterwards. With --commit its state is committed, also when the command failed.
    Changed otherwise it is kept, and its name is printed; --discard drops it.

    Without root the workspace is mounted in a user namespace, where all files belong to the caller; what is left as it is
    keeps its owner in commits. Where no overlay is possible the workspace is a copy. Where nothing at all can be mounted,
    the command runs in a copy elsewhere, unless files of the state name the captured path: then it would silently use the
    original, and is refused (20). With --no-at-source it always runs in a copy elsewhere.
    """
    split = inv.argv.index("--") if "--" in inv.argv else len(inv.argv)
    given = len(inv.argv) - split - 1
    revisions = words[: len(words) - given] if given > 0 else words
    argv = words[len(revisions) :]
    if not argv or len(revisions) > 1 or bool(revisions) == bool(inside):
        raise UsageError("give one state (or --in WORKSPACE) and a command", "layerfs run REV -- CMD…")
    author = author_now(inv.context)
    request = CommitRequest(author, check_message(message), provenance_from(inv.context), new_branch=branch)
    with inv.progress() as progress:
        ran = run_command(
            inv.store,
            RunRequest(
                [os.fsencode(word) for word in argv],
                inv.context.environment_bytes(),
                inv.context.cwd,
                author,
                resolve(inv.store, revisions[0], inv.at) if revisions else None,
                inside,
                request if commit or branch else None,
                discard,
                timeout,
                tuple(os.fsencode(path).strip(b"/") for path in through or ()),
                elsewhere,
                STDERR if inv.as_json else None,
            ),
            progress,
        )
    return present_run(ran)

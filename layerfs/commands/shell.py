"""``layerfs shell``: an interactive shell in a workspace at the captured path."""

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
    revision: Annotated[str | None, typer.Argument(metavar="REV", help="The state to work in.")] = None,
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit what was changed, when the shell ends.")
    ] = False,
    branch: Annotated[
        str | None, typer.Option("--as", metavar="NEW", help="Commit to a new branch of this name.")
    ] = None,
    message: Annotated[str | None, typer.Option("-m", "--message", metavar="TEXT", help="Why.")] = None,
    discard: Annotated[bool, typer.Option("--discard", help="Drop what was changed.")] = False,
    inside: Annotated[
        str | None, typer.Option("--in", metavar="WORKSPACE", help="Go on in a workspace that was kept.")
    ] = None,
    elsewhere: Annotated[
        bool, typer.Option("--no-at-source", help="Work in a plain copy, not at the captured path.")
    ] = False,
) -> Reply:
    """Start $SHELL with a state mounted over the path it was captured from, as "layerfs run" does with a command.

    Inside, "layerfs status", "diff" and "commit" work on the workspace. What is left uncommitted at the end is kept.

    With --json the document is all there is on standard output; the shell's own goes to standard error.
    """
    if bool(revision) == bool(inside):
        raise UsageError("give one state, or --in WORKSPACE", "layerfs shell REV")
    author = author_now(inv.context)
    request = CommitRequest(author, check_message(message), provenance_from(inv.context), new_branch=branch)
    shell = inv.context.env.get("SHELL") or "/bin/sh"
    ran = run_command(
        inv.store,
        RunRequest(
            [os.fsencode(shell)],
            inv.context.environment_bytes(),
            inv.context.cwd,
            author,
            resolve(inv.store, revision, inv.at) if revision else None,
            inside,
            request if commit or branch else None,
            discard,
            elsewhere=elsewhere,
            stdout=STDERR if inv.as_json else None,
        ),
    )
    return present_run(ran)

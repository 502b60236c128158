"""``layerfs commit``: record the state of a workspace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.authorship import author_now, provenance_from
from layerfs.history.revision import resolve
from layerfs.present.work import present_commit
from layerfs.workspace.commit import check_message, commit_directory, commit_workspace, named_branch
from layerfs.workspace.recording import CommitRequest
from layerfs.workspace.status import refuse_stale

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    message: Annotated[str | None, typer.Option("-m", "--message", metavar="TEXT", help="Why.")] = None,
    branch: Annotated[
        str | None, typer.Option("--as", metavar="NEW", help="Commit to a new branch of this name.")
    ] = None,
    author: Annotated[
        str | None, typer.Option("--author", metavar="NAME", help="Who, if not the caller.")
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="TEXT", help="Which agent.")] = None,
    session: Annotated[str | None, typer.Option("--session", metavar="TEXT", help="Which session.")] = None,
    tool: Annotated[str | None, typer.Option("--tool", metavar="TEXT", help="Which tool.")] = None,
    call_id: Annotated[str | None, typer.Option("--call-id", metavar="TEXT", help="Which tool call.")] = None,
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="REV", help="Commit only if the branch is here (else exit 12)."),
    ] = None,
    empty: Annotated[bool, typer.Option("--allow-empty", help="Commit even if nothing changed.")] = False,
    freeze: Annotated[
        bool, typer.Option("--freeze", help="Stop the processes that use the workspace while it is read.")
    ] = False,
    directory: Annotated[
        str | None,
        typer.Option("--from", metavar="DIR", help="Record this directory, which need not be a workspace."),
    ] = None,
    onto: Annotated[
        str | None,
        typer.Option("--branch", metavar="BRANCH", help="Where --from commits to; the workspace's own."),
    ] = None,
    torn: Annotated[
        bool, typer.Option("--allow-torn", help="Record files that keep changing as they were read.")
    ] = False,
) -> Reply:
    """Record everything the workspace holds as a commit on its branch.

    There is no staging: a commit is the complete state. If others committed to the branch meanwhile, both are merged and
    the branch moves to the join; if that conflicts nothing moves, the workspace keeps its work, and the exit code is 1.
    Provenance comes from the options or from LAYERFS_AGENT, LAYERFS_SESSION, LAYERFS_TOOL and LAYERFS_CALL_ID.

    With --from any directory is recorded as the next state of a branch, without a workspace: a CI job's checkout, say.
    With --freeze the programs that use the workspace stand still while it is read, so that a database and its log are
    from one instant.
    """
    if directory is None and onto is not None:
        raise UsageError(
            "--branch is for --from", "a workspace commits to its own branch, or with --as to a new one"
        )
    if directory is not None and freeze:
        raise UsageError("--freeze is for a workspace", "leave it out with --from")
    flags = {"agent": agent, "session": session, "tool": tool, "call-id": call_id}
    request = CommitRequest(
        author_now(inv.context, author),
        check_message(message),
        provenance_from(inv.context, flags),
        (),
        branch,
        None if expect is None else resolve(inv.store, expect, inv.at).commit,
        empty,
        torn,
        freeze,
    )
    if directory is None:
        refuse_stale(inv.store, inv.workspace)
    with inv.progress() as progress:
        if directory is not None:
            target = branch or onto or named_branch(inv.find_workspace())
            place = os.path.realpath(inv.context.absolute(directory))
            return present_commit(commit_directory(inv.store, place, target, request, progress))
        return present_commit(commit_workspace(inv.store, inv.workspace, request, progress))

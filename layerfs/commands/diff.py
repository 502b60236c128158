"""``layerfs diff``: the difference between two states as a patch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import UsageError
from layerfs.history.diffing import diff_states, list_changes
from layerfs.present.patch import present_names, present_patch, present_stat
from layerfs.present.problems import with_problems
from layerfs.workspace.comparison import open_sides

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="REV", help="The states to compare; after '--' the paths to keep to."),
    ] = None,
    stat: Annotated[bool, typer.Option("--stat", help="Show how many lines changed in each path.")] = False,
    names: Annotated[bool, typer.Option("--name-status", help="Show a letter and the path only.")] = False,
    times: Annotated[
        bool, typer.Option("--times", help="Show directories of which only the time changed.")
    ] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 if there are differences.")] = False,
) -> Reply:
    """Show the difference between two states as a patch: OLD NEW, or OLD..NEW.

    With one state it compares that with the workspace you are in as it is now; with none the workspace's last commit with
    it. Modes, links, owners and extended attributes are in the header lines of a patch. With --name-status and -z each
    record is the letter, a NUL byte, the path, a NUL byte.
    """
    revisions, paths = inv.split_words(words)
    if stat and names:
        raise UsageError("--stat and --name-status exclude each other")
    source, old, new, problems = open_sides(inv.store, revisions, inv.find_workspace(), inv.open_resources)
    if names:
        reply = present_names(list_changes(source, old, new, paths, times), exit_code)
    else:
        diffs = diff_states(source, old, new, paths, times)
        reply = (
            present_stat(diffs, inv.context.columns, exit_code) if stat else present_patch(diffs, exit_code)
        )
    return with_problems(reply, problems, "readable")

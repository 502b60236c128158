"""``layerfs update``: bring newer work into a workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.history.authorship import author_now
from layerfs.history.revision import resolve
from layerfs.present.work import present_advance
from layerfs.workspace.advance import update_workspace
from layerfs.workspace.openmerge import abort_merge, update_marked
from layerfs.workspace.status import branch_ahead, refuse_stale

if TYPE_CHECKING:
    import typer


def command(
    inv: Invocation,
    revision: Annotated[
        str | None,
        typer.Argument(metavar="REV", help="What to bring in; the head of the workspace's branch."),
    ] = None,
    mark: Annotated[
        bool, typer.Option("--mark", help="Write conflicts into the files, to be decided there.")
    ] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Give up a merge that --mark left open.")] = False,
) -> Reply:
    """Merge newer work into the workspace, uncommitted changes included, and change its files accordingly.

    If the two conflict nothing changes and the exit code is 1. With --mark the merge is written into the files instead:
    texts get conflict markers, and where files cannot be merged their side is put beside as NAME~theirs. Edit the files
    or use "layerfs resolve", then commit; "layerfs conflicts" lists what is undecided, and --abort goes back.
    """
    record = inv.workspace
    refuse_stale(inv.store, record)
    if abort:
        return present_advance(abort_merge(inv.store, record, author_now(inv.context)), "restored")
    name = revision if revision is not None else record.branch or "main"
    target = resolve(inv.store, name, inv.at).commit
    bring_in = update_marked if mark else update_workspace
    done = bring_in(inv.store, record, target, name, author_now(inv.context))
    idle = done.before == done.after and not done.changes
    return present_advance(done, "updated", name, branch_ahead(inv.store, record) if idle else 0)

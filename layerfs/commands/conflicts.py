"""``layerfs conflicts``: what an open merge has left to decide."""

from __future__ import annotations

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.present.openmerge import present_open
from layerfs.workspace.openmerge import list_undecided


def command(inv: Invocation) -> Reply:
    """List the paths of the workspace's open merge that are not decided: kind, path, and where their side lies.

    A text is decided when it has no conflict markers any more; everything else with "layerfs resolve". The exit code is 1
    while anything is undecided.
    """
    return present_open(inv.workspace, list_undecided(inv.store, inv.workspace))

"""``layerfs doctor``: what this machine can do."""

from __future__ import annotations

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.errors import NotAStore
from layerfs.present.health import present_findings
from layerfs.store.layout import stores_directory
from layerfs.upkeep.doctor import examine, find_departures


def command(inv: Invocation) -> Reply:
    """Try what layerfs can use on this machine: overlayfs, user namespaces, reflinks, attributes, compiled kernels.

    Each is tried in the directory of the store, or where stores would be made if there is none. What does not work is
    explained with what layerfs does instead; the exit code is 0 all the same.

    For a store it also lists the files of its newest state, or of the workspace around here, that name absolute paths:
    symbolic links, first lines of scripts, and the files of virtualenvs and build tools known to do so. Those into the
    captured directory lead to the original when a workspace is elsewhere; those out of it are not part of the state.
    """
    try:
        place = inv.store_path
    except NotAStore:
        return present_findings(examine(stores_directory(inv.context)))
    findings = examine(place)
    top = inv.store.refs.main_layer()
    commit = inv.at or (None if top is None else top.commit)
    if commit is None:
        return present_findings(findings)
    return present_findings(findings, find_departures(inv.store, commit), inv.store.format.source)

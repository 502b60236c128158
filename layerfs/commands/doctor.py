"""``layerfs doctor``: what this machine can do."""

from __future__ import annotations

from layerfs.doctor import examine
from layerfs.errors import NotAStore
from layerfs.frame import Invocation
from layerfs.layout import stores_directory
from layerfs.output import Reply
from layerfs.present.health import present_findings


def command(inv: Invocation) -> Reply:
    """Try what layerfs can use on this machine: overlayfs, user namespaces, reflinks, attributes, compiled kernels.

    Each is tried in the directory of the store, or where stores would be made if there is none. What does not work is
    explained with what layerfs does instead; the exit code is 0 all the same.
    """
    try:
        place = inv.store_path
    except NotAStore:
        place = stores_directory(inv.context)
    return present_findings(examine(place))

"""``layerfs ls-layers``: the stack of main for scripts."""

from __future__ import annotations

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.history.layerstack import iter_layers
from layerfs.present.layers import present_layer_lines


def command(inv: Invocation) -> Reply:
    """List the layers of main, newest first: number, layer id, commit id, how, time, a tab, the branch.

    The time is nanoseconds since the epoch; how is init, merge, ff or overwrite; the branch is empty for the first layer.
    """
    return present_layer_lines(iter_layers(inv.store))

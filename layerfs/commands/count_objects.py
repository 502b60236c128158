"""``layerfs count-objects``: how many objects of each kind."""

from __future__ import annotations

from layerfs.cli.frame import Invocation
from layerfs.cli.output import Reply
from layerfs.present.packs import present_counts
from layerfs.store.packlist import count_objects


def command(inv: Invocation) -> Reply:
    """Count the objects of the store: kind, objects, bytes of payload, one kind per line; then packs and their bytes."""
    return present_counts(count_objects(inv.store))

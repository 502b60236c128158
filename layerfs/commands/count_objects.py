"""``layerfs count-objects``: how many objects of each kind."""

from __future__ import annotations

from layerfs.frame import Invocation
from layerfs.output import Reply
from layerfs.packlist import count_objects
from layerfs.present.packs import present_counts


def command(inv: Invocation) -> Reply:
    """Count the objects of the store: kind, objects, bytes of payload, one kind per line; then packs and their bytes."""
    return present_counts(count_objects(inv.store))

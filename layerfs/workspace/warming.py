"""Warming: a store that was just made gets its first state into the layer cache (``init --warm``)."""

from __future__ import annotations

from layerfs.context import Context
from layerfs.ids import CommitId
from layerfs.progress import Progress
from layerfs.store.store import Store
from layerfs.workspace.layercache import ensure_stack, own_flavour


def warm_up(context: Context, store_path: bytes, commit: CommitId, progress: Progress) -> None:
    """Materialise a commit in the layer cache of a store, durably."""
    with Store.open(store_path, clock=context.clock) as store:
        ensure_stack(store, commit, context.now_ns(), progress, flavour=own_flavour(), sync=True)

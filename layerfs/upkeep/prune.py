"""Pruning: everything of a store that takes room and that nobody needs, removed at once.

A collection (``collect``), then the layer cache down to its bound, then leftovers: scratch files and torn tails in
``tmp/``, cache directories without a row, directories of workspaces without a record. Uncommitted work is never removed:
the directory of a workspace that no record names is removed only if its upper is empty; otherwise it is reported. Nothing
follows a symbolic link, and nothing on a mounted file system is touched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from layerfs.durable.atomicfile import lock_file
from layerfs.errors import Refused
from layerfs.progress import SILENT, Progress
from layerfs.store.layout import WORKSPACES
from layerfs.store.places import GOING, UPPER, directory_name, remove_tree
from layerfs.store.store import SCRATCH, Store
from layerfs.store.workspacerecords import all_workspaces
from layerfs.upkeep.collect import Collected, CollectOptions, collect
from layerfs.workspace.cacheupkeep import Evicted, evict, remove_leftovers
from layerfs.workspace.layercache import tree_size

YOUNG_NS = 3600 * 1_000_000_000
"""What is younger may belong to a command that is just beginning."""


class Pruned(NamedTuple):
    """What a pruning removed, or would remove, and the workspace directories it left because there is work in them."""

    collected: Collected
    evicted: Evicted
    leftovers: int
    freed_bytes: int
    kept: tuple[bytes, ...]


def prune(
    store: Store,
    options: CollectOptions,
    cache_bytes: int | None,
    actor: str = "",
    progress: Progress = SILENT,
) -> Pruned:
    """Prune a store; ``cache_bytes`` None leaves the layers of the cache alone."""
    now_ns = options.retention.now_ns
    dry_run = options.dry_run
    collected = collect(store, options, actor, progress)
    evicted = Evicted() if cache_bytes is None else evict(store, cache_bytes, now_ns, dry_run)
    strays = remove_leftovers(store, dry_run)
    count, freed = strays.leftovers, strays.freed_bytes
    kept: list[bytes] = []
    for path in _scratch(store, now_ns):
        freed += os.lstat(path).st_blocks * 512
        count += 1
        if not dry_run:
            os.unlink(path)
    with store.lane():
        for path in _nameless_workspaces(store, now_ns):
            if not os.path.basename(path).startswith(GOING) and _has_work(path):
                kept.append(path)
                continue
            freed += tree_size(path)
            count += 1
            if not dry_run:
                remove_tree(path)
    if not dry_run:
        store.sweep()
        store.restore_reserve()
    return Pruned(collected, evicted, count, freed, tuple(kept))


def _scratch(store: Store, now_ns: int) -> Iterator[bytes]:
    """Yield plain files in ``tmp/`` that are not young and that nobody holds."""
    directory = os.path.join(store.path, SCRATCH)
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        info = os.lstat(path)
        if stat.S_ISREG(info.st_mode) and now_ns - info.st_ctime_ns >= YOUNG_NS and not _is_held(path):
            yield path


def _is_held(path: bytes) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return not lock_file(descriptor, wait=False)
    finally:
        os.close(descriptor)


def _nameless_workspaces(store: Store, now_ns: int) -> Iterator[bytes]:
    known = {directory_name(record.name) for record in all_workspaces(store.refs)}
    directory = os.path.join(store.path, WORKSPACES)
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        info = os.lstat(path)
        if name not in known and stat.S_ISDIR(info.st_mode) and now_ns - info.st_ctime_ns >= YOUNG_NS:
            yield path


def _has_work(path: bytes) -> bool:
    """Whether anything lies in the workspace's upper, or something there is strange enough to be left alone."""
    upper = os.path.join(path, UPPER)
    try:
        if not stat.S_ISDIR(os.lstat(upper).st_mode):
            return True
        with os.scandir(upper) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False
    except PermissionError as error:
        raise Refused(f"cannot look into a workspace's directory: {error.strerror}") from error

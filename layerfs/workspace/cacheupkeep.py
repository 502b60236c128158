"""Upkeep of the layer cache: layers nobody uses go, the least recently used first, until the cache fits its bound.

A layer is in use when an attached workspace has it among its lowers, when it was asked for a moment ago (a mount may be
about to happen), when somebody holds a lock on its directory, or when a layer that stays lies on it. Layers of states
that the store does not have any more go in any case: nobody can ask for them, and they hold files that were meant to go.
A row goes before its directory, which is renamed and then emptied, so whoever is stopped leaves only a directory without
a row; the next upkeep removes those.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from typing import NamedTuple

from layerfs.durable.atomicfile import lock_file
from layerfs.durable.metadb import CachedLayer
from layerfs.ids import ObjectId
from layerfs.store.places import remove_tree
from layerfs.store.settings import Settings
from layerfs.store.store import Store
from layerfs.store.workspacerecords import all_workspaces
from layerfs.workspace.layercache import CACHE, layer_path, tree_size

RECENT_NS = 60 * 1_000_000_000
GOING = b".going"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Evicted(NamedTuple):
    """What went: layers with a row, directories without one, and the bytes of both on disk."""

    layers: int = 0
    leftovers: int = 0
    freed_bytes: int = 0


def evict(store: Store, most_bytes: int, now_ns: int, dry_run: bool = False) -> Evicted:
    """Make the cache fit into ``most_bytes`` as far as what is in use allows; 0 bytes remove all that is not in use."""
    rows = store.db.cached_layers()
    total = sum(row.disk_bytes for row in rows)
    used = {name for record in all_workspaces(store.refs) if record.attached for name in record.layers}
    layers = freed = 0
    while total > most_bytes or (not most_bytes and rows):
        row = next((row for row in rows if _may_go(row, rows, used, now_ns)), None)
        if row is None:
            break
        rows.remove(row)
        if not dry_run and not _remove(store, row):
            continue
        total -= row.disk_bytes
        freed += row.disk_bytes
        layers += 1
    return Evicted(layers, 0, freed)


def forget_dead(store: Store, now_ns: int, *, thorough: bool = False) -> Evicted:
    """Remove the layers whose states a collection or a purge dropped, as far as nobody uses them.

    ``thorough``, after a purge: also what lies on them, though its own state lives on, and what was asked for just now.
    """
    rows = store.db.cached_layers()
    dead = {row.directory for row in rows if not store.objects.contains(ObjectId(row.root))}
    while thorough and (above := {row.directory for row in rows if row.parent in dead} - dead):
        dead |= above
    used = {name for record in all_workspaces(store.refs) if record.attached for name in record.layers}
    asked_ns = -RECENT_NS if thorough else now_ns
    layers = freed = 0
    left = [row for row in rows if row.directory in dead]
    while (row := next((row for row in left if _may_go(row, rows, used, asked_ns)), None)) is not None:
        left.remove(row)
        if _remove(store, row):
            rows.remove(row)
            layers += 1
            freed += row.disk_bytes
    return Evicted(layers, 0, freed)


def keep_bound(store: Store, now_ns: int) -> None:
    """Bring the cache down to ``cache.max-size`` if the user has set one; whoever made a layer calls this."""
    bound = Settings(store.path).get("cache.max-size")
    if isinstance(bound, int) and bound > 0:
        evict(store, bound, now_ns)


def _may_go(row: CachedLayer, rows: list[CachedLayer], used: Container[str], now_ns: int) -> bool:
    if row.directory in used or 0 <= now_ns - row.last_used_ns < RECENT_NS:
        return False
    return all(other.parent != row.directory for other in rows)


def _remove(store: Store, row: CachedLayer) -> bool:
    """Remove one layer; return False when somebody holds its directory."""
    path = layer_path(store, row.directory)
    try:
        descriptor = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        store.db.drop_cached_layer(row.directory)
        return True
    try:
        if not lock_file(descriptor, wait=False):
            return False
        store.db.drop_cached_layer(row.directory)
        os.rename(path, path + GOING)
    finally:
        os.close(descriptor)
    remove_tree(path + GOING)
    return True


def remove_leftovers(store: Store, dry_run: bool = False) -> Evicted:
    """Remove directories of the cache that no row names, apart from those being made right now."""
    known = {os.fsencode(row.directory) for row in store.db.cached_layers()}
    found = freed = 0
    for name in sorted(_directories(store)):
        if name in known or _is_being_made(store, name):
            continue
        path = os.path.join(store.path, CACHE, name)
        freed += tree_size(path)
        found += 1
        if not dry_run:
            remove_tree(path)
    return Evicted(0, found, freed)


def _directories(store: Store) -> Iterator[bytes]:
    with os.scandir(os.path.join(store.path, CACHE)) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield os.fsencode(entry.name)


def _is_being_made(store: Store, name: bytes) -> bool:
    """Whether the lock under which this directory's root is materialised is held."""
    path = os.path.join(store.path, CACHE, name[:24] + b".lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not lock_file(descriptor, wait=False)
    finally:
        os.close(descriptor)

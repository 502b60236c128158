"""The layer cache: commits materialised once, as read-only lowers that all workspaces share.

A *base* is a whole tree, a *delta* what differs from another cached one. Asking for a commit finds its tree in the cache,
or the nearest cached ancestor and materialises the difference only, or materialises it whole. A stack that grew deep is
squashed: the next delta goes right onto its base. When a workspace is left after its last commit, its upper *is* the
delta of that commit and is taken over as it is (:func:`promote_upper`), so going on from there costs nothing.

The cache lies in ``cache/NAME`` and its rows in the database; both may be deleted at any time when nothing is mounted. A
row counts only if its directory is there and it was made in this boot, or was synced: a power cut never leaves half a
layer in use.

Each layer is made under its own kernel lock, in a directory of another name, and renamed when complete, so two mounts of
one commit at once share the work and a crash leaves only a directory that the next one clears away.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from layerfs.checkout.restored import Restored
from layerfs.durable.metadb import CachedLayer
from layerfs.history.history import CommitReader, walk_commits
from layerfs.ids import CommitId, ObjectId, RootId
from layerfs.objects.entry import Entry
from layerfs.objects.environment import Change, diff_trees, read_root
from layerfs.progress import SILENT, Progress
from layerfs.store.places import remove_tree, upper_directory
from layerfs.store.store import Store
from layerfs.store.workspacerecords import WorkspaceRecord
from layerfs.workspace import kernel
from layerfs.workspace.deltalower import TRUSTED, USER, write_base, write_delta
from layerfs.workspace.linkindex import keep_linked_names, linked_names
from layerfs.workspace.references import find_references

CACHE = b"cache"
MAX_DEPTH = 24
MAX_DELTA_CHANGES = 50_000
MAX_ANCESTORS = 500
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Stack(NamedTuple):
    """Cached layers that together show one tree: their names and absolute paths, newest first."""

    names: tuple[str, ...]
    paths: tuple[bytes, ...]


_Fill = Callable[[int], Restored]


def boot_id() -> str:
    """Return the id of this boot of the kernel."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def flavour_of(userxattr: bool) -> str:
    """Return the flavour of the layers below an overlay."""
    return USER if userxattr else TRUSTED


def own_flavour() -> str:
    """Return the flavour of the layers that this process can put below a workspace."""
    return flavour_of(os.geteuid() != 0)


def ensure_stack(
    store: Store,
    commit: CommitId,
    now_ns: int,
    progress: Progress = SILENT,
    *,
    flavour: str = TRUSTED,
    sync: bool = False,
) -> Stack:
    """Return the layers that show ``commit``, materialising what is missing; ``sync`` makes them outlast a reboot.

    Raises Unable for a tree that cannot be a lower (it holds marks of overlayfs): the caller uses another engine.
    """
    reader = CommitReader(store.objects)
    root_id = reader.commit(commit).root
    found = find_stack(store, root_id, flavour)
    if found is not None:
        _touch(store, found, now_ns)
        if sync:
            sync_stack(store, found)
        return found
    root = reader.root(commit)
    with _making(store, root_id):
        found = find_stack(store, root_id, flavour)
        if found is not None:
            return found
        near = _nearest(store, reader, commit, root, flavour)
        if near is None:
            row = _make_base(store, root_id, root, flavour, now_ns, progress)
        else:
            row = _make_delta(store, root_id, root, near, flavour, now_ns, progress)
        find_references(store, commit)  # while all of it is at hand; whoever mounts is told at once then
    found = find_stack(store, root_id, flavour)
    assert found is not None, row
    if sync:
        sync_stack(store, found)
    return found


def sync_stack(store: Store, stack: Stack) -> None:
    """Make the layers of a stack durable, so that they count after a reboot as well."""
    directory = os.open(stack.paths[0], _DIRECTORY)
    try:
        kernel.syncfs(directory)
    finally:
        os.close(directory)
    for row in store.db.cached_layers():
        if row.directory in stack.names and not row.synced:
            store.db.put_cached_layer(row._replace(synced=True))


def find_stack(store: Store, root_id: bytes, flavour: str = TRUSTED) -> Stack | None:
    """Return the cached layers of a root, if it is cached and they are all usable."""
    rows = {row.directory: row for row in store.db.cached_layers()}
    boot = boot_id()
    for row in rows.values():
        if row.root == root_id and row.flavour == flavour:
            stack = _stack_of(store, row, rows, boot)
            if stack is not None:
                return stack
    return None


def _stack_of(store: Store, row: CachedLayer, rows: dict[str, CachedLayer], boot: str) -> Stack | None:
    names: list[str] = []
    at: CachedLayer | None = row
    while at is not None:
        if not (at.synced or at.boot_id == boot) or not os.path.isdir(layer_path(store, at.directory)):
            return None
        names.append(at.directory)
        if at.parent is None:
            return Stack(tuple(names), tuple(layer_path(store, name) for name in names))
        at = rows.get(at.parent)
    return None


def layer_path(store: Store, name: str) -> bytes:
    """Return the directory of a cached layer."""
    return os.path.join(store.path, CACHE, os.fsencode(name))


def cached_bases(store: Store) -> list[tuple[bytes, Entry]]:
    """Return the usable cached bases, each with the root entry of the state it shows."""
    rows = [row for row in store.db.cached_layers() if row.parent is None]
    boot = boot_id()
    return [
        (layer_path(store, row.directory), read_root(store.objects, RootId(ObjectId(row.root))))
        for row in rows
        if (row.synced or row.boot_id == boot) and os.path.isdir(layer_path(store, row.directory))
    ]


def _touch(store: Store, stack: Stack, now_ns: int) -> None:
    for name in stack.names:
        store.db.touch_cached_layer(name, now_ns)


class _Near(NamedTuple):
    root: Entry
    stack: Stack
    changes: list[Change]


def _nearest(store: Store, reader: CommitReader, commit: CommitId, root: Entry, flavour: str) -> _Near | None:
    """Return the nearest cached ancestor that is near enough to be worth a delta."""
    cached = {row.root for row in store.db.cached_layers() if row.flavour == flavour}
    if not cached:
        return None
    for _, logged in zip(range(MAX_ANCESTORS), walk_commits(reader, (commit,)), strict=False):
        if logged.commit.root not in cached:
            continue
        stack = find_stack(store, logged.commit.root, flavour)
        if stack is None:
            continue
        near = reader.root(logged.oid)
        if len(stack.names) >= MAX_DEPTH:
            stack, near = _bottom(store, stack)
        changes: list[Change] = []
        for change in diff_trees(store.objects, near, root):
            changes.append(change)
            if len(changes) > MAX_DELTA_CHANGES:
                return None
        return _Near(near, stack, changes)
    return None


def _bottom(store: Store, stack: Stack) -> tuple[Stack, Entry]:
    """Return the base of a deep stack by itself, and the tree it shows: what a squashed delta lies on."""
    name = stack.names[-1]
    row = next(row for row in store.db.cached_layers() if row.directory == name)
    return Stack((name,), stack.paths[-1:]), read_root(store.objects, RootId(ObjectId(row.root)))


def promote_upper(store: Store, record: WorkspaceRecord, now_ns: int) -> bool:
    """Take the upper of a detached workspace over as the cached delta of its last commit; return whether it was.

    The caller has seen, after the unmount, that lower and upper together are exactly that commit's tree. A workspace that
    changed nothing, or whose stack is deep enough, leaves no layer.
    """
    root_id = CommitReader(store.objects).commit(record.last).root
    flavour = flavour_of(record.userxattr)
    rows = {row.directory: row for row in store.db.cached_layers()}
    below = rows.get(record.layers[0]) if record.layers else None
    if below is None or below.flavour != flavour or len(record.layers) >= MAX_DEPTH:
        return False
    if _stack_of(store, below, rows, boot_id()) is None:
        return False
    name = f"{root_id.hex()[:24]}-{flavour}-on-{below.directory[:12]}"
    final = layer_path(store, name)
    upper = upper_directory(store, record.name)
    with _making(store, root_id):
        if find_stack(store, root_id, flavour) is not None or os.path.lexists(final):
            return False
        size = tree_size(upper)
        os.rename(upper, final)
        store.db.put_cached_layer(
            CachedLayer(name, root_id, "delta", flavour, below.directory, size, now_ns, False, boot_id())
        )
    return True


def tree_size(path: bytes) -> int:
    """Return the bytes of the files below a directory, as the disk has them."""
    total = 0
    stack = [path]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                info = entry.stat(follow_symlinks=False)
                total += info.st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
    return total


def _make_base(
    store: Store, root_id: bytes, root: Entry, flavour: str, now_ns: int, progress: Progress
) -> CachedLayer:
    progress.phase("materialising")

    def fill(directory: int) -> Restored:
        made = write_base(store.objects, directory, root, flavour, progress)
        keep_linked_names(store, root_id, made.linked)
        return made

    name = f"{root_id.hex()[:24]}-{flavour}"
    return _publish(store, name, root_id, "base", flavour, None, now_ns, fill)


def _make_delta(
    store: Store, root_id: bytes, root: Entry, near: _Near, flavour: str, now_ns: int, progress: Progress
) -> CachedLayer:
    def fill(directory: int) -> Restored:
        linked = partial(linked_names, store, root_id, root)
        return write_delta(store.objects, directory, root, near.changes, linked, flavour, progress)

    parent = near.stack.names[0]
    name = f"{root_id.hex()[:24]}-{flavour}-on-{parent[:12]}"
    return _publish(store, name, root_id, "delta", flavour, parent, now_ns, fill)


def _publish(
    store: Store,
    name: str,
    root_id: bytes,
    kind: str,
    flavour: str,
    parent: str | None,
    now_ns: int,
    fill: _Fill,
) -> CachedLayer:
    final = layer_path(store, name)
    fresh = final + b".new"
    remove_tree(fresh)
    remove_tree(final)
    store.files.make_directory(fresh)
    directory = os.open(fresh, _DIRECTORY)
    try:
        made = fill(directory)
    except BaseException:
        os.close(directory)
        remove_tree(fresh)
        raise
    os.close(directory)
    os.rename(fresh, final)
    row = CachedLayer(name, root_id, kind, flavour, parent, made.size, now_ns, False, boot_id())
    store.db.put_cached_layer(row)
    return row


@contextmanager
def _making(store: Store, root_id: bytes) -> Iterator[None]:
    """Hold the lock under which one root is materialised; the kernel lets go of it when a process dies."""
    path = os.path.join(store.path, CACHE, root_id.hex()[:24].encode("ascii") + b".lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if store.files.owner is not None:
            os.fchown(fd, *store.files.owner)
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)

"""Capture: a directory on disk in, a tree of objects out.

Owns the walk over directories and the making of their trees. It never leaves the file system of its root unless told to,
and never leaves anything out quietly: what is missing from the result is a problem, reported every time. What becomes of
files and other leaves is in ``leaves``; where objects go is the caller's affair (``ObjectStore``).

Cost: the kernel compares the whole tree with the stat cache first. If nothing changed, that is all, and nothing is read
from the store. Otherwise only changed directories and those on the way to them are gone through; only files whose rows
changed are opened. Directories with linked files are gone through whenever anything changed, since a link group is a
matter of the whole tree.
"""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from layerfs.capture.captured import Captured, Rules, entry_kind
from layerfs.capture.leaves import Leaves, Listing
from layerfs.capture.linkgroups import assign_groups
from layerfs.capture.moved import Moved
from layerfs.capture.statcache import Buffer, CacheBuilder, Record, StatCache, Sums, kernel_now_ns, smudge
from layerfs.ids import TreeId
from layerfs.kernels import native
from layerfs.kernels.rows import Row
from layerfs.objects.entry import MODE_MASK, Entry, EntryKind, Xattrs
from layerfs.objects.environment import join, tree_of
from layerfs.objects.growing import GrowingTree
from layerfs.objects.source import ObjectStore
from layerfs.objects.trees import Named, build_tree, find_entry, iter_tree
from layerfs.progress import SILENT, Progress

Sorted = TypeVar("Sorted", bound=tuple[Any, ...])
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def capture_directory(
    directory: int,
    store: ObjectStore,
    *,
    base: Entry | None = None,
    cache: StatCache | None = None,
    rules: Rules | None = None,
    progress: Progress = SILENT,
) -> Captured:
    """Capture the directory open as ``directory``.

    ``base`` is the state the cache belongs to; entries whose rows did not change are taken from it. Raises TornRead for a
    file that will not hold still; whatever the object store raises passes through, and nothing is published by this.
    """
    info = os.fstat(directory)
    moved = Moved(store, is_first=base is None)
    leaves = Leaves(store, rules or Rules(), progress, moved)
    xattrs = leaves.xattrs(directory, b".", b"")
    walk = _Walk(leaves, cache or StatCache(), info.st_dev)
    tree = walk.captured_tree(directory, tree_of(base) if base is not None else None)
    moved.settle()
    owner = (info.st_uid, info.st_gid)
    if base is not None and leaves.rules.keep_owners:
        owner = (base.uid, base.gid)
    root = Entry(EntryKind.DIR, info.st_mode & MODE_MASK, *owner, info.st_mtime_ns, 0, tree, xattrs)
    return Captured(root, leaves.totals, leaves.problems, walk.mounts, walk.next_cache)


class _Before(Generic[Sorted]):
    """What a directory held before, by name, taken as far as the walk has come."""

    def __init__(self, items: Iterator[Sorted]) -> None:
        self._items = items
        self._next = next(items, None)

    def until(self, last: bytes | None) -> Iterator[Sorted]:
        """Yield what comes next up to the name ``last``, or all that is left."""
        while self._next is not None and (last is None or self._next[0] <= last):
            yield self._next
            self._next = next(self._items, None)


class _Census:
    """What lies right in a directory: its sub-directories' names, and its sums without what is below them."""

    def __init__(self) -> None:
        self.directories: list[bytes] = []
        self.files = self.others = self.size = 0

    def count(self, items: list[Named]) -> None:
        """Count some entries."""
        for name, entry in items:
            if entry.kind is EntryKind.FILE:
                self.files += 1
                self.size += entry.size
            elif entry.kind is EntryKind.DIR:
                self.directories.append(name)
            else:
                self.others += 1

    @property
    def own(self) -> Sums:
        """The sums, the directory itself included."""
        return Sums(1, self.files, self.others, self.size)


class _Found(NamedTuple):
    """A directory gone through; ``below`` are those in it that wait for link groups."""

    path: bytes
    rows: Buffer
    tree: GrowingTree
    below: dict[bytes, _Found]
    directories: list[bytes]
    own: Sums
    linked: bool = False


class _Walk:
    """One capture; ``mounts`` are the mount points that were left out."""

    def __init__(self, leaves: Leaves, cache: StatCache, device: int) -> None:
        self.leaves = leaves
        self.store = leaves.store
        self.rules = leaves.rules
        self.totals = leaves.totals
        self.cache = cache
        self.next_cache = cache
        self.device = device
        self.mounts: list[bytes] = []
        self.changed: list[int] = []
        self.builder = CacheBuilder(cache, self.rules.stamp)
        self.members: dict[tuple[int, int], list[tuple[bytes, int]]] = {}

    def captured_tree(self, fd: int, base: TreeId | None) -> TreeId:
        """Capture the whole tree."""
        record = self.cache.root if base is not None else None
        if record is not None and self.cache.stamp != self.rules.stamp:
            self.changed = self.cache.everything()
        elif record is not None:
            changed, linked = self.cache.changed(fd)
            if not changed and record.tree == base:
                self.totals.add(record.sums)
                return record.tree
            self.changed = sorted({*changed, *linked})
        top = self._directory(fd, b"", base, record)
        if isinstance(top, _Found):
            top = self._resolve(top, assign_groups(self.members))
        self.next_cache = self.builder.build()
        return top

    def _is_clean(self, record: Record) -> bool:
        """Whether neither the directory nor anything below it has to be gone through."""
        at = bisect_left(self.changed, record.place)
        return at == len(self.changed) or self.changed[at] >= record.end

    def _is_same(self, record: Record) -> bool:
        """Whether the directory itself has not to be gone through."""
        at = bisect_left(self.changed, record.place)
        return at == len(self.changed) or self.changed[at] != record.place

    def _keep(self, record: Record) -> None:
        self.totals.add(record.sums)
        self.builder.keep(record)

    def _directory(self, fd: int, path: bytes, base: TreeId | None, record: Record | None) -> TreeId | _Found:
        """Capture one directory and everything below; return its tree, or what waits for link groups."""
        if record is not None and record.tree == base and self._is_same(record):
            return self._same_directory(fd, record)
        scanned_ns = kernel_now_ns()
        blob = native.scan_directory(fd)
        held = _Before(iter_tree(self.store, base) if base is not None else iter(()))
        old_rows = _Before(
            native.iter_rows(record.rows if record is not None and record.tree == base else b"")
        )
        records: dict[bytes, Record] = {}
        if record is not None:
            records = {os.path.basename(child.path): child for child in self.cache.children(record)}
        found = _Found(
            path, blob, GrowingTree(self.store, base), {}, (census := _Census()).directories, Sums()
        )
        linked = False
        self.totals.directories += 1
        for start, rows in native.row_runs(blob):
            last = rows[-1].name if len(rows) == native.ROWS_AT_ONCE else None
            listing = Listing(fd, path, dict(held.until(last)))
            same = {row.name: row for row in old_rows.until(last)}
            reading: list[Row] = []
            links: set[bytes] = set()
            for row in rows:
                name = row.name
                if self.rules.excluded is not None and self.rules.excluded(listing.inner(row)):
                    continue
                kind = entry_kind(row.mode)
                if row.dev != self.device:
                    listing.unsettled.add(name)
                    if not self.rules.cross_filesystems:
                        self._mount(listing, row)
                        continue
                before = listing.known.get(name)
                unchanged = before is not None and before.kind is kind and same.get(name) == row
                if kind is EntryKind.DIR:
                    child = records.get(name)
                    if unchanged and before is not None and child is not None and self._is_clean(child):
                        listing.items[name] = before
                        self._keep(child)
                    else:
                        self._enter(listing, row, child, found.below)
                    continue
                group = before.link_group if before is not None else 0
                if row.nlink > 1 or group:
                    links.add(name)
                    self.members.setdefault((row.dev, row.ino), []).append((listing.inner(row), group))
                self.totals.count(kind is EntryKind.FILE, row.size)
                if unchanged and before is not None:
                    listing.items[name] = before
                elif kind is EntryKind.FILE:
                    reading.append(row)
                else:
                    self.leaves.special(listing, row, kind)
            self.leaves.files(listing, reading)
            if base is not None and not self.leaves.moved.is_idle:
                for name in listing.known.keys() - {row.name for row in rows}:
                    self.leaves.moved.gone(join(path, name), listing.known[name])
            items = sorted(listing.items.items())
            census.count(items)
            found.tree.add(items, listing.known, links | found.below.keys())
            linked = linked or bool(links)
            smudge(blob, start, rows, scanned_ns, listing.unsettled)
        found = found._replace(own=census.own, linked=linked)
        return found if linked or found.below else self._finish(found)

    def _same_directory(self, fd: int, record: Record) -> TreeId | _Found:
        """Go through a directory none of whose own rows changed: only what lies in its sub-directories may have.

        Its sub-directories' own attributes have not changed either, extended ones included: those move the ctime, which
        is in the rows. So the tree is read only when something below it came out different.
        """
        tree = GrowingTree(self.store, record.tree)
        below: dict[bytes, _Found] = {}
        names: list[bytes] = []
        own = record.sums
        for child in self.cache.children(record):
            name = os.path.basename(child.path)
            names.append(name)
            own = own.minus(child.sums)
            if self._is_clean(child):
                self._keep(child)
                continue
            result = self._enter_same(fd, name, child)
            if result == child.tree:
                continue
            before = find_entry(self.store, record.tree, name)
            listing = Listing(fd, record.path, {} if before is None else {name: before})
            if result is None:
                row = next(row for row in native.iter_rows(record.rows) if row.name == name)
                self._enter(listing, row, child, below)
            elif before is not None:
                listing.items[name] = before._replace(ref=b"" if isinstance(result, _Found) else result)
                if isinstance(result, _Found):
                    below[name] = result
            tree.add(listing.items.items(), listing.known, below)
        self.totals.add(own)
        found = _Found(record.path, record.rows, tree, below, names, own)
        return found if below else self._finish(found)

    def _enter_same(self, fd: int, name: bytes, record: Record) -> TreeId | _Found | None:
        """Capture a sub-directory whose own row did not change; None if it cannot be entered the short way."""
        try:
            inner = os.open(name, _DIRECTORY_FLAGS, dir_fd=fd)
        except OSError:
            return None
        try:
            return self._directory(inner, record.path, record.tree, record)
        except PermissionError:
            return None
        finally:
            os.close(inner)

    def _enter(self, listing: Listing, row: Row, record: Record | None, below: dict[bytes, _Found]) -> None:
        path = listing.inner(row)
        before = listing.known.get(row.name)
        try:
            inner = os.open(row.name, _DIRECTORY_FLAGS, dir_fd=listing.fd)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                self.leaves.problem(listing, row, error)
            return
        try:
            base = tree_of(before) if before is not None and before.kind is EntryKind.DIR else None
            problems = len(self.leaves.problems)
            xattrs = self.leaves.xattrs(inner, b".", path)
            if len(self.leaves.problems) > problems:
                listing.unsettled.add(row.name)
            try:
                result = self._directory(inner, path, base, record)
            except PermissionError as error:
                self.leaves.problem(listing, row, error)
                return
        finally:
            os.close(inner)
        tree = b"" if isinstance(result, _Found) else result
        listing.items[row.name] = _directory_entry(row, self.leaves.owner(row, before), tree, xattrs)
        if isinstance(result, _Found):
            below[row.name] = result

    def _mount(self, listing: Listing, row: Row) -> None:
        """A mount point: its own directory is kept, empty; what is mounted on it is not part of the tree."""
        self.mounts.append(listing.inner(row))
        if stat.S_ISDIR(row.mode):
            empty = build_tree(self.store, ())
            listing.items[row.name] = _directory_entry(row, (row.uid, row.gid), empty, ())

    def _resolve(self, found: _Found, groups: dict[bytes, int]) -> TreeId:
        """Give linked files their groups and finish the trees that waited for them."""
        tree = found.tree
        for name, entry in tree.waiting.items():
            inner = found.below.get(name)
            if inner is not None:
                tree.settle(name, entry._replace(ref=self._resolve(inner, groups)))
            elif entry.kind is not EntryKind.DIR:
                tree.settle(name, entry._replace(link_group=groups.get(join(found.path, name), 0)))
        return self._finish(found)

    def _finish(self, found: _Found) -> TreeId:
        """Make the tree of a directory, and its record."""
        tree = found.tree.finish()
        self.builder.add(found.path, found.rows, tree, found.directories, found.linked, found.own)
        return tree


def _directory_entry(row: Row, owner: tuple[int, int], tree: bytes, xattrs: Xattrs) -> Entry:
    return Entry(EntryKind.DIR, row.mode & MODE_MASK, *owner, row.mtime_ns, 0, tree, xattrs)

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
from typing import NamedTuple

from layerfs import native
from layerfs.captured import Captured, Rules, entry_kind
from layerfs.ids import TreeId
from layerfs.leaves import Leaves, Listing
from layerfs.linkgroups import assign_groups
from layerfs.objects.entry import MODE_MASK, Entry, EntryKind, Xattrs
from layerfs.objects.environment import join, tree_of
from layerfs.objects.source import ObjectStore
from layerfs.objects.trees import Named, build_tree, edit_tree, read_tree
from layerfs.progress import SILENT, Progress
from layerfs.rows import Row
from layerfs.statcache import CacheBuilder, Record, StatCache, Sums, kernel_now_ns, smudge

MOST_WAITING = 4096
"""Files are read once so many wait for it: the rows of a directory of a million names take 400 MB."""
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
    leaves = Leaves(store, rules or Rules(), progress)
    xattrs = leaves.xattrs(directory, b".", b"")
    walk = _Walk(leaves, cache or StatCache(), info.st_dev)
    tree = walk.captured_tree(directory, tree_of(base) if base is not None else None)
    owner = (info.st_uid, info.st_gid)
    if base is not None and leaves.rules.keep_owners:
        owner = (base.uid, base.gid)
    root = Entry(EntryKind.DIR, info.st_mode & MODE_MASK, *owner, info.st_mtime_ns, 0, tree, xattrs)
    return Captured(root, leaves.totals, leaves.problems, walk.mounts, walk.next_cache)


class _Pending(NamedTuple):
    """A directory whose entries are known but for the link groups below it."""

    path: bytes
    items: list[Named]
    below: dict[bytes, _Pending]
    rows: bytes
    linked: bool
    base: TreeId | None


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
        self.builder = CacheBuilder(cache)
        self.members: dict[tuple[int, int], list[tuple[bytes, int]]] = {}

    def captured_tree(self, fd: int, base: TreeId | None) -> TreeId:
        """Capture the whole tree."""
        record = self.cache.root if base is not None else None
        if record is not None:
            changed, linked = self.cache.changed(fd)
            if not changed and record.tree == base:
                self.totals.add(record.sums)
                return record.tree
            self.changed = sorted({*changed, *linked})
        top = self._directory(fd, b"", base, record)
        if isinstance(top, _Pending):
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

    def _directory(
        self, fd: int, path: bytes, base: TreeId | None, record: Record | None
    ) -> TreeId | _Pending:
        """Capture one directory and everything below; return its tree, or what waits for link groups."""
        if record is not None and record.tree == base and self._is_same(record):
            return self._same_directory(fd, record)
        scanned_ns = kernel_now_ns()
        blob = native.scan_directory(fd)
        listing = Listing(fd, path, dict(read_tree(self.store, base)) if base is not None else {})
        old_rows: dict[bytes, Row] = {}
        records: dict[bytes, Record] = {}
        if record is not None:
            records = {os.path.basename(child.path): child for child in self.cache.children(record)}
            if record.tree == base:
                old_rows = {old.name: old for old in native.parse_rows(record.rows)}
        below: dict[bytes, _Pending] = {}
        reading: list[Row] = []
        linked = False
        self.totals.directories += 1
        for row in native.iter_rows(blob):
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
            unchanged = before is not None and before.kind is kind and old_rows.get(name) == row
            if kind is EntryKind.DIR:
                child = records.get(name)
                if unchanged and before is not None and child is not None and self._is_clean(child):
                    listing.items[name] = before
                    self._keep(child)
                else:
                    self._enter(listing, row, child, below)
                continue
            group = before.link_group if before is not None else 0
            if row.nlink > 1 or group:
                linked = True
                self.members.setdefault((row.dev, row.ino), []).append((listing.inner(row), group))
            self.totals.count(kind is EntryKind.FILE, row.size)
            if unchanged and before is not None:
                listing.items[name] = before
            elif kind is EntryKind.FILE:
                reading.append(row)
                if len(reading) == MOST_WAITING:
                    self.leaves.files(listing, reading)
                    reading = []
            else:
                self.leaves.special(listing, row, kind)
        self.leaves.files(listing, reading)
        items = sorted(listing.items.items())
        smudged = smudge(blob, native.iter_rows(blob), scanned_ns, listing.unsettled)
        if linked or below:
            return _Pending(path, items, below, smudged, linked, base)
        return self._finish(path, items, smudged, False, base)

    def _same_directory(self, fd: int, record: Record) -> TreeId | _Pending:
        """Go through a directory none of whose own rows changed: only what lies in its sub-directories may have.

        Its sub-directories' own attributes have not changed either, extended ones included: those move the ctime, which
        is in the rows. So the tree is read only when something below it came out different.
        """
        known: dict[bytes, Entry] | None = None
        items: dict[bytes, Entry] = {}
        below: dict[bytes, _Pending] = {}
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
            if known is None:
                known = dict(read_tree(self.store, record.tree))
                items = dict(known)
            if result is None:
                row = next(row for row in native.parse_rows(record.rows) if row.name == name)
                listing = Listing(fd, record.path, known)
                self._enter(listing, row, child, below)
                items.pop(name, None)
                items.update(listing.items)
            elif isinstance(result, _Pending):
                below[name] = result
            else:
                items[name] = known[name]._replace(ref=result)
        self.totals.add(own)
        if below:
            return _Pending(record.path, sorted(items.items()), below, record.rows, False, record.tree)
        tree = record.tree
        if known is not None:
            changes = {
                name: items.get(name)
                for name in known.keys() | items.keys()
                if known.get(name) != items.get(name)
            }
            tree = edit_tree(self.store, tree, changes)
        self.builder.add(record.path, record.rows, tree, names, False, own)
        return tree

    def _enter_same(self, fd: int, name: bytes, record: Record) -> TreeId | _Pending | None:
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

    def _enter(self, listing: Listing, row: Row, record: Record | None, below: dict[bytes, _Pending]) -> None:
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
        tree = b"" if isinstance(result, _Pending) else result
        listing.items[row.name] = _directory_entry(row, self.leaves.owner(row, before), tree, xattrs)
        if isinstance(result, _Pending):
            below[row.name] = result

    def _mount(self, listing: Listing, row: Row) -> None:
        """A mount point: its own directory is kept, empty; what is mounted on it is not part of the tree."""
        self.mounts.append(listing.inner(row))
        if stat.S_ISDIR(row.mode):
            empty = build_tree(self.store, ())
            listing.items[row.name] = _directory_entry(row, (row.uid, row.gid), empty, ())

    def _resolve(self, pending: _Pending, groups: dict[bytes, int]) -> TreeId:
        """Give linked files their groups and build the trees that waited for them."""
        items: list[Named] = []
        for name, entry in pending.items:
            inner = pending.below.get(name)
            if inner is not None:
                entry = entry._replace(ref=self._resolve(inner, groups))
            elif pending.linked and entry.kind is not EntryKind.DIR:
                group = groups.get(join(pending.path, name), 0)
                if group != entry.link_group:
                    entry = entry._replace(link_group=group)
            items.append((name, entry))
        return self._finish(pending.path, items, pending.rows, pending.linked, pending.base)

    def _finish(
        self, path: bytes, items: list[Named], rows: bytes, linked: bool, base: TreeId | None
    ) -> TreeId:
        """Make the tree of these entries, and its record."""
        tree = self._build(items, base)
        names: list[bytes] = []
        files = size = 0
        for name, entry in items:
            if entry.kind is EntryKind.FILE:
                files += 1
                size += entry.size
            elif entry.kind is EntryKind.DIR:
                names.append(name)
        own = Sums(1, files, len(items) - files - len(names), size)
        self.builder.add(path, rows, tree, names, linked, own)
        return tree

    def _build(self, items: list[Named], base: TreeId | None) -> TreeId:
        """Return the tree of these entries, made from the state before if there is one: only new nodes are put."""
        if base is None:
            return build_tree(self.store, items)
        known: dict[bytes, Entry | None] = dict(read_tree(self.store, base))
        changes = {name: entry for name, entry in items if known.pop(name, None) != entry}
        return edit_tree(self.store, base, changes | dict.fromkeys(known))


def _directory_entry(row: Row, owner: tuple[int, int], tree: bytes, xattrs: Xattrs) -> Entry:
    return Entry(EntryKind.DIR, row.mode & MODE_MASK, *owner, row.mtime_ns, 0, tree, xattrs)

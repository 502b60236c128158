"""Capture: a directory on disk in, a tree of objects out.

Owns the walk, the reading and what is done when something cannot be read. It never follows a symlink, never blocks on a
FIFO, never leaves the file system of its root unless told to, and never leaves anything out quietly: what is missing from
the result is a :class:`Problem`. A file that moves while it is read is read again; if it will not hold still the capture
is refused (``TornRead``) unless the caller allows torn reads.

Cost: one scan per directory; only directories whose rows changed since the stat cache are decoded, only files whose
rows changed are opened, and no tree is read above directories in which nothing changed.
Where objects go is the caller's affair (``ObjectStore``).
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from layerfs import native
from layerfs.errors import NotFound, TornRead, quote
from layerfs.ids import TreeId
from layerfs.linkgroups import assign_groups
from layerfs.objects.chunking import ONE_PIECE_LIMIT
from layerfs.objects.content import old_extents, put_blocks, put_chunk
from layerfs.objects.entry import MODE_MASK, Entry, EntryKind, Xattrs, device_ref
from layerfs.objects.environment import join, tree_of
from layerfs.objects.source import ObjectStore
from layerfs.objects.trees import Named, build_tree, edit_tree, read_tree
from layerfs.progress import SILENT, Progress
from layerfs.rows import NOT_REGULAR, FileRead, Row
from layerfs.statcache import CachedDirectory, StatCache, kernel_now_ns, smudge

READ_BLOCK = 4 * 1024 * 1024
BATCH_FILES = 256
BATCH_BYTES = 8 * 1024 * 1024
TORN_RETRIES = 5
TORN_PAUSE_SECONDS = 0.01
MAX_SYMLINK = 4095
_OUR_LIMITS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

KIND_OF_TYPE = {
    stat.S_IFREG: EntryKind.FILE,
    stat.S_IFDIR: EntryKind.DIR,
    stat.S_IFLNK: EntryKind.SYMLINK,
    stat.S_IFIFO: EntryKind.FIFO,
    stat.S_IFSOCK: EntryKind.SOCKET,
    stat.S_IFCHR: EntryKind.CHARDEV,
    stat.S_IFBLK: EntryKind.BLOCKDEV,
}


class Problem(NamedTuple):
    """A path that could not be captured or restored faithfully, and why; ``kept`` if the older state stands in."""

    path: bytes
    why: str
    kept: bool = False


class Rules(NamedTuple):
    """What a capture includes. ``excluded`` decides on a path (relative); names in it are never even opened."""

    excluded: Callable[[bytes], bool] | None = None
    cross_filesystems: bool = False
    allow_torn: bool = False
    keep_owners: bool = False
    """The caller cannot own files as others do: where the state before has another owner for a path, it keeps it."""


class Totals:
    """What a capture met: counts, and bytes by what had to be done for them."""

    __slots__ = ("directories", "files", "others", "read_bytes", "read_files", "size")

    def __init__(self) -> None:
        self.files = self.directories = self.others = 0
        self.size = self.read_files = self.read_bytes = 0


class Captured(NamedTuple):
    """A captured directory: its root entry, what it contained, what is missing from it, and the next stat cache."""

    root: Entry
    totals: Totals
    problems: list[Problem]
    mounts: list[bytes]
    cache: StatCache


def entry_kind(mode: int) -> EntryKind | None:
    """Return the entry kind of a ``st_mode``, or None for a type that no entry has."""
    return KIND_OF_TYPE.get(stat.S_IFMT(mode))


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
    run = _Capture(store, cache or StatCache(), rules or Rules(), progress)
    info = os.fstat(directory)
    row = Row(
        b"",
        info.st_mode,
        info.st_uid,
        info.st_gid,
        info.st_nlink,
        info.st_dev,
        0,
        0,
        info.st_ino,
        info.st_mtime_ns,
        info.st_ctime_ns,
    )
    run.device = info.st_dev
    xattrs = run.xattrs(directory, b".", b"")
    top = run.directory(directory, b"", tree_of(base) if base is not None else None)
    root = run.finish(top, row, xattrs)
    if base is not None and run.rules.keep_owners:
        root = root._replace(uid=base.uid, gid=base.gid)
    return Captured(root, run.totals, run.problems, run.mounts, run.next_cache)


class _Pending(NamedTuple):
    """A directory whose entries are known but for the link groups below it."""

    path: bytes
    items: list[tuple[bytes, Entry]]
    below: dict[bytes, _Pending]
    blob: bytes
    linked: bool
    special: bool
    base: TreeId | None = None


class _Capture:
    def __init__(self, store: ObjectStore, cache: StatCache, rules: Rules, progress: Progress) -> None:
        self.store = store
        self.cache = cache
        self.rules = rules
        self.progress = progress
        self.device = 0
        self.totals = Totals()
        self.problems: list[Problem] = []
        self.mounts: list[bytes] = []
        self.next_cache = StatCache()
        self.members: dict[tuple[int, int], list[tuple[bytes, int]]] = {}

    # -- directories ----------------------------------------------------------------------------------------------

    def directory(self, fd: int, path: bytes, base: TreeId | None) -> TreeId | _Pending:
        """Capture one directory and everything below; return its tree, or what waits for link groups."""
        scanned_ns = kernel_now_ns()
        blob = native.scan_directory(fd)
        cached = self.cache.get(path)
        self.totals.directories += 1
        if (
            cached is not None
            and base is not None
            and cached.blob == blob
            and cached.tree == base
            and not cached.special
        ):
            return self._unchanged(fd, path, cached)
        rows = native.parse_rows(blob)
        known: dict[bytes, Entry] = dict(read_tree(self.store, base)) if base is not None else {}
        old_rows: dict[bytes, Row] = {}
        if cached is not None and base is not None and cached.tree == base:
            old_rows = {old.name: old for old in native.parse_rows(cached.blob)}
        items: dict[bytes, Entry] = {}
        below: dict[bytes, _Pending] = {}
        reading: list[Row] = []
        linked = special = False
        for item in rows:
            name = item.name
            inner = join(path, name)
            if self.rules.excluded is not None and self.rules.excluded(inner):
                continue
            kind = entry_kind(item.mode)
            if item.dev != self.device:
                special = True
                if not self.rules.cross_filesystems:
                    self._mount(inner, item, items)
                    continue
            if kind is EntryKind.DIR:
                self._enter(fd, inner, item, known.get(name), items, below)
                continue
            before = known.get(name)
            group = before.link_group if before is not None else 0
            if item.nlink > 1 or group:
                linked = True
                self.members.setdefault((item.dev, item.ino), []).append((inner, group))
            self._count(kind, item.size)
            if before is not None and old_rows.get(name) == item and before.kind is kind:
                items[name] = before
                continue
            if kind is EntryKind.FILE:
                reading.append(item)
            else:
                self._special(fd, inner, item, kind, before, items)
        self._read_files(fd, path, reading, known, items)
        ordered = sorted(items.items())
        smudged = smudge(blob, rows, scanned_ns)
        if linked or below:
            return _Pending(path, ordered, below, smudged, linked, special, base)
        tree = self._build(ordered, base)
        self._remember(path, ordered, smudged, tree, linked or special)
        return tree

    def _build(self, items: list[Named], base: TreeId | None) -> TreeId:
        """Return the tree of these entries, made from the state before if there is one: only new nodes are put."""
        if base is None:
            return build_tree(self.store, items)
        known: dict[bytes, Entry | None] = dict(read_tree(self.store, base))
        changes = {name: entry for name, entry in items if known.pop(name, None) != entry}
        return edit_tree(self.store, base, changes | dict.fromkeys(known))

    def _remember(self, path: bytes, items: list[Named], blob: bytes, tree: TreeId, special: bool) -> None:
        names: list[bytes] = []
        files = size = 0
        for name, entry in items:
            if entry.kind is EntryKind.FILE:
                files += 1
                size += entry.size
            elif entry.kind is EntryKind.DIR:
                names.append(name)
        others = len(items) - files - len(names)
        self.next_cache.put(path, CachedDirectory(blob, tree, tuple(names), special, files, others, size))

    def _unchanged(self, fd: int, path: bytes, cached: CachedDirectory) -> TreeId | _Pending:
        """Go through a directory none of whose own rows changed: only what lies in its sub-directories may have.

        Its sub-directories' own attributes have not changed either, extended ones included: those move the ctime, which
        is in the rows. So the tree is read only when something below it came out different.
        """
        self.totals.files += cached.files
        self.totals.others += cached.others
        self.totals.size += cached.size
        known: dict[bytes, Entry] | None = None
        items: dict[bytes, Entry] = {}
        below: dict[bytes, _Pending] = {}
        for name in cached.subdirectories:
            inner = join(path, name)
            child = self.cache.get(inner)
            result = None if child is None else self._enter_unchanged(fd, name, inner, child.tree)
            if child is not None and result == child.tree:
                continue
            if known is None:
                known = dict(read_tree(self.store, cached.tree))
                items = dict(known)
            if result is None:
                row = next(row for row in native.parse_rows(cached.blob) if row.name == name)
                self._enter(fd, inner, row, known.get(name), items, below)
            elif isinstance(result, _Pending):
                below[name] = result
            else:
                items[name] = known[name]._replace(ref=result)
        if known is None:
            self.next_cache.put(path, cached)
            return cached.tree
        if below:
            return _Pending(path, sorted(items.items()), below, cached.blob, False, False, cached.tree)
        changes = {
            name: items.get(name)
            for name in known.keys() | items.keys()
            if known.get(name) != items.get(name)
        }
        tree = edit_tree(self.store, cached.tree, changes)
        self.next_cache.put(path, cached if tree == cached.tree else cached._replace(tree=tree))
        return tree

    def _enter_unchanged(self, fd: int, name: bytes, path: bytes, base: TreeId) -> TreeId | _Pending | None:
        """Capture a sub-directory whose own row did not change; None if it cannot be entered the short way."""
        try:
            inner = os.open(name, _DIRECTORY_FLAGS, dir_fd=fd)
        except OSError:
            return None
        try:
            return self.directory(inner, path, base)
        except PermissionError:
            return None
        finally:
            os.close(inner)

    def _enter(
        self,
        fd: int,
        path: bytes,
        row: Row,
        before: Entry | None,
        items: dict[bytes, Entry],
        below: dict[bytes, _Pending],
    ) -> None:
        try:
            inner = os.open(row.name, _DIRECTORY_FLAGS, dir_fd=fd)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                self._problem(path, row.name, error, before, items)
            return
        try:
            base = tree_of(before) if before is not None and before.kind is EntryKind.DIR else None
            xattrs = self.xattrs(inner, b".", path)
            try:
                result = self.directory(inner, path, base)
            except PermissionError as error:
                self._problem(path, row.name, error, before, items)
                return
        finally:
            os.close(inner)
        entry = _directory_entry(row, result if not isinstance(result, _Pending) else None, xattrs)
        uid, gid = self._owner(row, before)
        items[row.name] = entry._replace(uid=uid, gid=gid)
        if isinstance(result, _Pending):
            below[row.name] = result

    def _mount(self, path: bytes, row: Row, items: dict[bytes, Entry]) -> None:
        """A mount point: its own directory is kept, empty; what is mounted on it is not part of the tree."""
        self.mounts.append(path)
        if stat.S_ISDIR(row.mode):
            items[row.name] = _directory_entry(row, build_tree(self.store, ()), ())

    def finish(self, top: TreeId | _Pending, row: Row, xattrs: Xattrs) -> Entry:
        """Give linked files their groups, build what waited for them, and return the root entry."""
        if isinstance(top, _Pending):
            groups = assign_groups(self.members)
            top = self._resolve(top, groups)
        return _directory_entry(row, top, xattrs)

    def _resolve(self, pending: _Pending, groups: dict[bytes, int]) -> TreeId:
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
        tree = self._build(items, pending.base)
        self._remember(pending.path, items, pending.blob, tree, pending.linked or pending.special)
        return tree

    # -- entries --------------------------------------------------------------------------------------------------

    def _count(self, kind: EntryKind | None, size: int) -> None:
        if kind is EntryKind.FILE:
            self.totals.files += 1
            self.totals.size += size
        else:
            self.totals.others += 1

    def _special(
        self,
        fd: int,
        path: bytes,
        row: Row,
        kind: EntryKind | None,
        before: Entry | None,
        items: dict[bytes, Entry],
    ) -> None:
        ref = b""
        if kind is None:
            self.problems.append(Problem(path, "a kind of file that layerfs does not know"))
            return
        try:
            if kind is EntryKind.SYMLINK:
                ref = os.readlink(row.name, dir_fd=fd)
                if not ref or len(ref) > MAX_SYMLINK:
                    self.problems.append(Problem(path, "a symlink without a usable target"))
                    return
            elif kind in (EntryKind.CHARDEV, EntryKind.BLOCKDEV):
                ref = device_ref(os.major(row.rdev), os.minor(row.rdev))
        except OSError as error:
            if error.errno != errno.ENOENT:
                self._problem(path, row.name, error, before, items)
            return
        items[row.name] = Entry(
            kind,
            row.mode & MODE_MASK,
            *self._owner(row, before),
            row.mtime_ns,
            0,
            ref,
            self.xattrs(fd, row.name, path),
        )

    def _owner(self, row: Row, before: Entry | None) -> tuple[int, int]:
        if before is None or not self.rules.keep_owners:
            return row.uid, row.gid
        return before.uid, before.gid

    def _problem(
        self, path: bytes, name: bytes, error: OSError, before: Entry | None, items: dict[bytes, Entry]
    ) -> None:
        if error.errno in _OUR_LIMITS:
            raise error  # the path is fine, this process is not: a capture without it would leave work out
        self.problems.append(Problem(path, os.strerror(error.errno or 0).lower(), before is not None))
        if before is not None:
            items[name] = before

    def xattrs(self, fd: int, name: bytes, path: bytes) -> Xattrs:
        """Return all extended attributes of a directory entry, sorted; unreadable ones are problems."""
        target = b"/proc/self/fd/%d/%s" % (fd, name)
        try:
            names = os.listxattr(target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOENT):
                self.problems.append(
                    Problem(path, f"extended attributes: {os.strerror(error.errno or 0).lower()}")
                )
            return ()
        if not names:
            return ()
        found: list[tuple[bytes, bytes]] = []
        for key in names:
            try:
                found.append((os.fsencode(key), os.getxattr(target, key, follow_symlinks=False)))
            except OSError as error:
                if error.errno not in (errno.ENODATA, errno.ENOENT):
                    why = f"extended attribute {quote(key)}: {os.strerror(error.errno or 0).lower()}"
                    self.problems.append(Problem(path, why))
        return tuple(sorted(found))

    # -- file content ---------------------------------------------------------------------------------------------

    def _read_files(
        self,
        fd: int,
        path: bytes,
        reading: list[Row],
        known: dict[bytes, Entry],
        items: dict[bytes, Entry],
    ) -> None:
        batch: list[Row] = []
        size = 0
        for row in reading:
            if row.size >= ONE_PIECE_LIMIT:
                self._large(fd, join(path, row.name), row, known.get(row.name), items)
                continue
            batch.append(row)
            size += row.size
            if len(batch) >= BATCH_FILES or size >= BATCH_BYTES:
                self._small(fd, path, batch, known, items)
                batch, size = [], 0
        if batch:
            self._small(fd, path, batch, known, items)

    def _small(
        self, fd: int, path: bytes, batch: list[Row], known: dict[bytes, Entry], items: dict[bytes, Entry]
    ) -> None:
        results = native.read_files(fd, [row.name for row in batch], ONE_PIECE_LIMIT - 1)
        total = 0
        for row, result in zip(batch, results, strict=True):
            inner = join(path, row.name)
            data = result.data
            if data is not None and result.mode == row.mode:
                ref = put_chunk(self.store, data, known.get(row.name)) if data else b""
                xattrs = self.xattrs(fd, row.name, inner) if result.has_xattrs else ()
                items[row.name] = self._file_entry(
                    row, known.get(row.name), result.mtime_ns, len(data), ref, xattrs
                )
                total += len(data)
            else:
                self._retry(fd, inner, row, result, known.get(row.name), items)
        self.totals.read_files += len(batch)
        self.totals.read_bytes += total
        self.progress.advance(len(batch), total)

    def _file_entry(
        self, row: Row, before: Entry | None, mtime_ns: int, size: int, ref: bytes, xattrs: Xattrs
    ) -> Entry:
        uid, gid = self._owner(row, before)
        return Entry(EntryKind.FILE, row.mode & MODE_MASK, uid, gid, mtime_ns, size, ref, xattrs)

    def _retry(
        self,
        fd: int,
        path: bytes,
        row: Row,
        result: FileRead,
        before: Entry | None,
        items: dict[bytes, Entry],
    ) -> None:
        """A small file that was not read at the first try: find out what it is now, and treat it as that."""
        if result.errno == errno.ENOENT:
            return
        if result.errno not in (0, NOT_REGULAR, errno.EFBIG, errno.ELOOP):
            self._problem(path, row.name, OSError(result.errno, ""), before, items)
            return
        fresh = _restat(fd, row)
        if fresh is None:
            return
        kind = entry_kind(fresh.mode)
        if kind is EntryKind.FILE:
            self._large(fd, path, fresh, before, items)
        elif kind is EntryKind.DIR:
            self._enter_swapped(fd, path, fresh, items)
        else:
            self._special(fd, path, fresh, kind, before, items)

    def _enter_swapped(self, fd: int, path: bytes, row: Row, items: dict[bytes, Entry]) -> None:
        raise TornRead(
            f"{quote(path)} turned from a file into a directory while it was captured",
            "let the programs that write there finish, then try again",
        )

    def _large(self, fd: int, path: bytes, row: Row, before: Entry | None, items: dict[bytes, Entry]) -> None:
        """Read one file by itself, in blocks, as often as it takes to hold still."""
        for attempt in range(TORN_RETRIES):
            if attempt:
                time.sleep(TORN_PAUSE_SECONDS * attempt)
            try:
                content = read_file(fd, row.name, self.store, self.progress, before)
            except NotFound:
                return
            except OSError as error:
                self._problem(path, row.name, error, before, items)
                return
            if content.stable or (self.rules.allow_torn and attempt == TORN_RETRIES - 1):
                row = row._replace(
                    mode=content.info.st_mode, uid=content.info.st_uid, gid=content.info.st_gid
                )
                xattrs = self.xattrs(fd, row.name, path)
                items[row.name] = self._file_entry(
                    row, before, content.info.st_mtime_ns, content.size, content.ref, xattrs
                )
                self.totals.read_files += 1
                self.totals.read_bytes += content.size
                self.progress.advance(1, 0)
                return
        raise TornRead(
            f"{quote(path)} keeps changing while it is read",
            "stop what writes to it, or pass --allow-torn to record it as it was read",
        )


def _directory_entry(row: Row, tree: TreeId | None, xattrs: Xattrs) -> Entry:
    return Entry(EntryKind.DIR, row.mode & MODE_MASK, row.uid, row.gid, row.mtime_ns, 0, tree or b"", xattrs)


def _restat(fd: int, row: Row) -> Row | None:
    try:
        info = os.stat(row.name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return row._replace(
        mode=info.st_mode,
        uid=info.st_uid,
        gid=info.st_gid,
        size=info.st_size,
        rdev=info.st_rdev,
        ino=info.st_ino,
        mtime_ns=info.st_mtime_ns,
        ctime_ns=info.st_ctime_ns,
    )


class FileContent(NamedTuple):
    """One file as it was read: content reference, size, its status afterwards, and whether it held still."""

    ref: bytes
    size: int
    info: os.stat_result
    stable: bool


def read_file(
    directory: int,
    name: bytes,
    store: ObjectStore,
    progress: Progress = SILENT,
    earlier: Entry | None = None,
) -> FileContent:
    """Read a regular file of any size into the store, with bounded memory; holes on disk are not read.

    ``earlier`` is what the store has at its place, which helps to store the difference only.
    Raises NotFound if the name is gone, OSError if it cannot be opened or read or is no regular file (EINVAL).
    """
    try:
        fd = os.open(name, _FILE_FLAGS, dir_fd=directory)
    except FileNotFoundError:
        raise NotFound(f"{quote(name)} is gone") from None
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if before.st_size < ONE_PIECE_LIMIT:
            data = _read_up_to(fd, ONE_PIECE_LIMIT)
            ref: bytes = b""
            size = len(data)
            if size >= ONE_PIECE_LIMIT:
                return FileContent(b"", size, os.fstat(fd), False)
            if data:
                ref = put_chunk(store, data, earlier)
        else:
            blocks = _Blocks(fd, before, progress)
            first = blocks.prime()
            if not first:
                return FileContent(b"", 0, os.fstat(fd), False)
            ref, size = put_blocks(store, blocks, old_extents(store, earlier))
        after = os.fstat(fd)
        moved = (before.st_size, before.st_mtime_ns, before.st_ctime_ns) != (
            after.st_size,
            after.st_mtime_ns,
            after.st_ctime_ns,
        )
        return FileContent(ref, size, after, not moved and size == after.st_size)
    finally:
        os.close(fd)


def _read_up_to(fd: int, limit: int) -> bytes:
    parts: list[bytes] = []
    while limit:
        part = os.read(fd, limit)
        if not part:
            break
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


class _Blocks:
    """The blocks of an open file: data in pieces of ``READ_BLOCK``, holes that the file system reports as lengths."""

    def __init__(self, fd: int, info: os.stat_result, progress: Progress) -> None:
        self._fd = fd
        self._size = info.st_size
        self._sparse = info.st_blocks * 512 < info.st_size
        self._progress = progress

    def prime(self) -> bool:
        """Whether the file still is long enough for an extent tree."""
        return os.fstat(self._fd).st_size >= ONE_PIECE_LIMIT

    def __iter__(self) -> Iterator[bytes | int]:
        at = 0
        while at < self._size:
            stop = self._size
            if self._sparse:
                start = self._next_data(at)
                if start > at:
                    yield start - at
                    at = start
                    continue
                stop = min(os.lseek(self._fd, at, os.SEEK_HOLE), self._size)
            data = os.pread(self._fd, min(READ_BLOCK, stop - at), at)
            if not data:
                missing = max(ONE_PIECE_LIMIT - at, 0)
                if missing:
                    yield missing
                return
            at += len(data)
            self._progress.advance(0, len(data))
            yield data

    def _next_data(self, at: int) -> int:
        try:
            return min(os.lseek(self._fd, at, os.SEEK_DATA), self._size)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return self._size
            raise

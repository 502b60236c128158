"""The reader of an upper: what a workspace changed, relative to the tree it was mounted from.

Owns the meaning of everything overlayfs writes into an upper directory: whiteouts, opaque and redirected directories,
files of which only the attributes were copied up. It reads names, stats and attributes – the cost is one stat and one
attribute list per upper entry – and never file contents: a file whose content nobody knows yet is *pending* and is read
by the caller, who then calls :meth:`UpperScan.settle`.

How it works: while walking the upper, it follows two things for each directory. ``current`` is what the base tree, with
the edits found so far, has at that path; ``lower`` is what the overlay shows through there. They are the same thing
almost everywhere (*merged*); ``lower`` is nothing in an opaque directory, which is then compared name by name; and it
is another part of the base tree below a redirect, which becomes an edit that takes that subtree over by id. So the
result is always a set of edits for ``environment.edit_paths``, and a renamed directory costs nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from layerfs.capture.captured import KIND_OF_TYPE
from layerfs.errors import StoreDamaged, TornRead, quote
from layerfs.kernels.native import parse_rows, scan_directory
from layerfs.kernels.rows import Row
from layerfs.objects.entry import Entry, EntryKind, Xattrs, device_ref
from layerfs.objects.environment import join, list_directory, lookup_path, path_key, tree_of
from layerfs.objects.source import ObjectSource
from layerfs.objects.trees import count_entries, find_entry
from layerfs.workspace.overlayxattrs import (
    METACOPY,
    REDIRECT,
    WHITEOUT,
    Attributes,
    handle,
    prefix,
    read_attributes,
)
from layerfs.workspace.uppercache import UpperCache, remember
from layerfs.workspace.upperlinks import link_sets, with_link_groups

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTING_RATIO = 8
"""List a base directory as a whole if the upper has more than one of its eight names; else look names up."""


class UpperEntry(NamedTuple):
    """One path at which the upper says something.

    ``old`` is what the tree under edit has there (None: nothing), ``new`` what the workspace has (None: deleted).
    A *pending* file has its size and attributes, but its ``ref`` is only known once the upper file at ``path`` was
    read. A directory's ``new.ref`` is empty unless the content of the subtree at ``moved_from`` is taken over by
    id. ``row`` is what the scan saw of the inode; a reader compares it with what it sees after reading.
    """

    path: bytes
    old: Entry | None
    new: Entry | None
    row: Row | None = None
    pending: bool = False
    moved_from: bytes | None = None

    @property
    def is_change(self) -> bool:
        """Whether this differs from the base, as far as is known without reading."""
        if self.pending or self.old is None or self.new is None:
            return True
        if self.new.kind is EntryKind.DIR and self.old.kind is EntryKind.DIR and not self.new.ref:
            return self.new != self.old._replace(ref=b"")
        return self.new != self.old

    @property
    def is_only_times(self) -> bool:
        """Whether all that changed is the mtime of a directory, which is nothing to report or to commit."""
        if self.old is None or self.new is None or self.new.kind is not EntryKind.DIR or self.new.ref:
            return False
        return self.new == self.old._replace(ref=b"", mtime_ns=self.new.mtime_ns)


class Content(NamedTuple):
    """What reading one pending file gave: its content id, and the inode as it was when the reading held still."""

    ref: bytes
    size: int
    mtime_ns: int
    ctime_ns: int


class UpperScan:
    """The outcome of one walk: every entry the upper holds a name or a whiteout for, in path order."""

    __slots__ = ("_links", "base", "found", "started_ns")

    def __init__(self, base: Entry, found: list[UpperEntry], started_ns: int) -> None:
        self.base = base
        self.started_ns = started_ns
        self._links = link_sets(found)
        self.found = found

    @property
    def changes(self) -> list[UpperEntry]:
        """The entries that differ from the base or may differ once their content is read."""
        return [entry for entry in self.found if entry.is_change]

    def pending(self) -> list[UpperEntry]:
        """The files to read, each inode once."""
        first = {paths[0] for paths in self._links.values()}
        also = {path for paths in self._links.values() for path in paths} - first
        return [entry for entry in self.found if entry.pending and entry.path not in also]

    def settle(self, contents: Mapping[bytes, Content]) -> UpperScan:
        """Return the scan with the contents of all pending files filled in; KeyError if one is missing."""
        known = dict(contents)
        for paths in self._links.values():
            if paths[0] in known:
                known.update((path, known[paths[0]]) for path in paths[1:])
        settled = [_filled(entry, known[entry.path]) if entry.pending else entry for entry in self.found]
        return UpperScan(self.base, settled, self.started_ns)

    def edits(self) -> dict[bytes, Entry | None]:
        """Return the changes as ``edit_paths`` takes them; nothing may be pending."""
        assert not any(entry.pending for entry in self.found)
        return {entry.path: entry.new for entry in self.found if entry.is_change}

    def cache(self) -> UpperCache:
        """Return what the next scan of the same upper over the same base need not read again."""
        files = (
            (entry.path, entry.row, entry.new)
            for entry in self.found
            if entry.row is not None
            and entry.new is not None
            and entry.new.kind is not EntryKind.DIR
            and not entry.pending
        )
        return remember(self.base.ref, files, self.started_ns)


def _filled(entry: UpperEntry, content: Content) -> UpperEntry:
    assert entry.new is not None and entry.row is not None
    new = entry.new._replace(ref=content.ref, size=content.size, mtime_ns=content.mtime_ns)
    row = entry.row._replace(size=content.size, mtime_ns=content.mtime_ns, ctime_ns=content.ctime_ns)
    return entry._replace(new=new, row=row, pending=False)


def scan_upper(
    upper: int,
    source: ObjectSource,
    base: Entry,
    *,
    started_ns: int,
    userxattr: bool = False,
    keep_owners: bool = False,
    skip: frozenset[bytes] = frozenset(),
    cache: UpperCache | None = None,
) -> UpperScan:
    """Walk the upper directory open as ``upper``, mounted over the tree of the root entry ``base``.

    ``started_ns`` is the time now. ``keep_owners`` is for workspaces without root, where every file belongs to the
    caller: owners, and attributes such a mount cannot hold, stay as the base has them. ``skip`` names paths that are
    not part of the environment. Raises TornRead if names vanish while they are read.
    """
    if cache is not None and cache.base != base.ref:
        cache = None
    walker = _Walker(source, base, prefix(userxattr), keep_owners, skip, cache)
    try:
        walker.walk(upper)
    except FileNotFoundError as error:
        name = error.filename if isinstance(error.filename, bytes | str) else b""
        raise TornRead(f"{quote(os.path.basename(name))} vanished while the workspace was read") from None
    found = sorted(walker.found, key=lambda entry: path_key(entry.path))
    return UpperScan(base, with_link_groups(found, source, base, cache), started_ns)


class _Names:
    """The names of one base directory, looked up singly or listed once, whichever is cheaper."""

    __slots__ = ("_directory", "_listed", "_source")

    def __init__(self, source: ObjectSource, directory: Entry | None, expected: int) -> None:
        self._source = source
        self._directory = directory
        self._listed: dict[bytes, Entry] | None = None
        if directory is None:
            self._listed = {}
        elif expected * _LISTING_RATIO > count_entries(source, tree_of(directory)):
            self.all()

    def find(self, name: bytes) -> Entry | None:
        if self._listed is not None:
            return self._listed.get(name)
        assert self._directory is not None
        return find_entry(self._source, tree_of(self._directory), name)

    def all(self) -> dict[bytes, Entry]:
        if self._listed is None:
            assert self._directory is not None
            self._listed = dict(list_directory(self._source, self._directory))
        return self._listed


class _Shown(NamedTuple):
    """What the overlay shows through at a name: a base entry and the path where the base has it."""

    path: bytes
    entry: Entry


class _Directory:
    """One upper directory on the way down."""

    __slots__ = ("fd", "names", "owned", "path", "rows", "shown", "whiteout_files")

    def __init__(self, fd: int, owned: bool, path: bytes, shown: _Shown | None, whiteout_files: bool) -> None:
        self.fd = fd
        self.owned = owned
        self.path = path
        self.shown = shown
        self.whiteout_files = whiteout_files
        self.rows: Iterator[Row]
        self.names: _Names


class _Walker:
    def __init__(
        self,
        source: ObjectSource,
        base: Entry,
        flavour: bytes,
        keep_owners: bool,
        skip: frozenset[bytes],
        cache: UpperCache | None,
    ) -> None:
        self.source = source
        self.base = base
        self.flavour = flavour
        self.keep_owners = keep_owners
        self.skip = skip
        self.cache = cache
        self.found: list[UpperEntry] = []

    def walk(self, upper: int) -> None:
        """Go through the tree without recursion, so that depth costs descriptors and never the interpreter's stack."""
        row = _row_of(upper)
        attributes = read_attributes(upper, self.flavour)
        self._emit(b"", self.base, self._entry(EntryKind.DIR, row, attributes, self.base), row)
        top = _Directory(upper, False, b"", _Shown(b"", self.base), attributes.has_whiteout_files)
        stack = [top]
        self._enter(top, self.base)
        try:
            while stack:
                directory = stack[-1]
                row_or_end = next(directory.rows, None)
                if row_or_end is None:
                    stack.pop()
                    _close(directory)
                    continue
                below = self._visit(directory, row_or_end)
                if below is not None:
                    stack.append(below)
        finally:
            for directory in stack:
                _close(directory)

    def _enter(self, directory: _Directory, current: Entry | None) -> None:
        rows = parse_rows(scan_directory(directory.fd))
        if directory.shown is None:
            directory.names = _Names(self.source, current, len(rows))
            present = {row.name for row in rows if not _is_device_whiteout(row)}
            for name, old in directory.names.all().items():
                path = join(directory.path, name)
                if name not in present and path not in self.skip:
                    self._emit(path, old, None)
        else:
            directory.names = _Names(self.source, directory.shown.entry, len(rows))
        directory.rows = iter(rows)

    def _visit(self, directory: _Directory, row: Row) -> _Directory | None:
        """Deal with one upper name; return the directory to go on in if it is one."""
        path = join(directory.path, row.name)
        if path in self.skip:
            return None
        old = directory.names.find(row.name)
        if _is_device_whiteout(row):
            if directory.shown is not None and old is not None:
                self._emit(path, old, None)
            return None
        kind = KIND_OF_TYPE[stat.S_IFMT(row.mode)]
        if kind is EntryKind.DIR:
            return self._visit_directory(directory, path, row, old)
        known = self.cache.entry_for(path, row) if self.cache is not None else None
        if known is not None:
            self._emit(path, old, known, row)
            return None
        attributes = read_attributes(handle(directory.fd, row.name), self.flavour)
        if directory.whiteout_files and not row.size and WHITEOUT in attributes.own:
            if old is not None:
                self._emit(path, old, None)
            return None
        self._visit_leaf(directory, path, row, old, kind, attributes)
        return None

    def _visit_directory(self, directory: _Directory, path: bytes, row: Row, old: Entry | None) -> _Directory:
        fd = os.open(row.name, _OPEN_DIRECTORY, dir_fd=directory.fd)
        try:
            attributes = read_attributes(fd, self.flavour)
            shown = None if attributes.opaque else self._shown(directory, row.name, attributes)
            if shown is not None and shown.entry.kind is not EntryKind.DIR:
                shown = None
            was_dir = old is not None and old.kind is EntryKind.DIR
            entry = self._entry(
                EntryKind.DIR, row, attributes, shown.entry if shown else old if was_dir else None
            )
            below = _Directory(fd, True, path, shown, attributes.has_whiteout_files)
            if shown is not None and not (was_dir and old is not None and shown.entry.ref == old.ref):
                self._emit(path, old, entry._replace(ref=shown.entry.ref), row, moved_from=shown.path)
            else:
                self._emit(path, old, entry, row)
            self._enter(below, old if was_dir else None)
        except BaseException:
            os.close(fd)
            raise
        return below

    def _visit_leaf(
        self,
        directory: _Directory,
        path: bytes,
        row: Row,
        old: Entry | None,
        kind: EntryKind,
        attributes: Attributes,
    ) -> None:
        if kind is EntryKind.FILE and METACOPY in attributes.own:
            shown = self._shown(directory, row.name, attributes)
            if shown is None or shown.entry.kind is not EntryKind.FILE:
                raise StoreDamaged(
                    f"the content of {quote(path)} is neither in the workspace nor in its base"
                )
            entry = self._entry(kind, row, attributes, shown.entry)
            entry = entry._replace(size=shown.entry.size, ref=shown.entry.ref)
            moved_from = shown.path if shown.path != path else None
            self._emit(path, old, entry, row, moved_from=moved_from)
            return
        entry = self._entry(kind, row, attributes, old if old is not None and old.kind is kind else None)
        if kind is EntryKind.SYMLINK:
            entry = entry._replace(ref=os.readlink(row.name, dir_fd=directory.fd))
        elif kind in (EntryKind.CHARDEV, EntryKind.BLOCKDEV):
            entry = entry._replace(ref=device_ref(os.major(row.rdev), os.minor(row.rdev)))
        self._emit(path, old, entry, row, pending=kind is EntryKind.FILE and row.size > 0)

    def _shown(self, directory: _Directory, name: bytes, attributes: Attributes) -> _Shown | None:
        """Return what the overlay finds below an upper name: at the redirect, else at the same name."""
        redirect = attributes.own.get(REDIRECT, name)
        if redirect.startswith(b"/"):
            path = redirect.strip(b"/")
            entry = lookup_path(self.source, self.base, path)
        elif directory.shown is None:
            return None
        else:
            path = join(directory.shown.path, redirect)
            entry = directory.names.find(redirect)
        return None if entry is None else _Shown(path, entry)

    def _entry(self, kind: EntryKind, row: Row, attributes: Attributes, origin: Entry | None) -> Entry:
        uid, gid, xattrs = row.uid, row.gid, attributes.user
        if self.keep_owners and origin is not None:
            uid, gid, xattrs = origin.uid, origin.gid, _with_privileged(xattrs, origin.xattrs)
        size = row.size if kind is EntryKind.FILE else 0
        return Entry(kind, stat.S_IMODE(row.mode), uid, gid, row.mtime_ns, size, b"", xattrs)

    def _emit(
        self,
        path: bytes,
        old: Entry | None,
        new: Entry | None,
        row: Row | None = None,
        *,
        pending: bool = False,
        moved_from: bytes | None = None,
    ) -> None:
        self.found.append(UpperEntry(path, old, new, row, pending, moved_from))


def _close(directory: _Directory) -> None:
    if directory.owned:
        os.close(directory.fd)


def _is_device_whiteout(row: Row) -> bool:
    return stat.S_ISCHR(row.mode) and row.rdev == 0


def _row_of(fd: int) -> Row:
    seen = os.fstat(fd)
    return Row(
        name=b"",
        mode=seen.st_mode,
        uid=seen.st_uid,
        gid=seen.st_gid,
        nlink=seen.st_nlink,
        dev=seen.st_dev,
        rdev=0,
        size=seen.st_size,
        ino=seen.st_ino,
        mtime_ns=seen.st_mtime_ns,
        ctime_ns=seen.st_ctime_ns,
    )


def _with_privileged(held: Xattrs, base: Xattrs) -> Xattrs:
    """Return the attributes a user could set as the upper has them, and the others as the base has them."""
    names = {name for name, _ in held}
    kept = [item for item in base if not item[0].startswith((b"user.", b"system.")) and item[0] not in names]
    return tuple(sorted((*held, *kept)))

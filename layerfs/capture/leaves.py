"""Leaves: what becomes of the entries of a directory that are no directories, files above all.

Owns the making of an entry from a row of a scan: content read in batches or by itself, symlink targets, device numbers,
extended attributes, owners. It never follows a symlink and never blocks on a FIFO. What cannot be read is a
:class:`Problem`, and the state before stands in for it where there is one; a file that moves while it is read is read
again, and refused (``TornRead``) if it will not hold still. Which entries are asked for is ``capture``'s affair.
"""

from __future__ import annotations

import errno
import os

from layerfs.capture.captured import Problem, Rules, Totals, entry_kind
from layerfs.capture.companions import held_still, journals_in, state_at, torn
from layerfs.capture.filecontent import read_steady, tries
from layerfs.capture.moved import Moved
from layerfs.capture.statcache import kernel_now_ns
from layerfs.errors import NotFound, TornRead, quote
from layerfs.kernels import native
from layerfs.kernels.rows import NOT_REGULAR, FileRead, Row
from layerfs.objects.chunking import ONE_PIECE_LIMIT
from layerfs.objects.entry import MODE_MASK, Entry, EntryKind, Xattrs, device_ref
from layerfs.objects.environment import join
from layerfs.objects.source import ObjectStore
from layerfs.progress import Progress

BATCH_FILES = 256
BATCH_BYTES = 8 * 1024 * 1024
MAX_SYMLINK = 4095
_OUR_LIMITS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


class Listing:
    """One directory while it is captured: what it held before and the entries found so far.

    ``unsettled`` are the names that must be looked at again next time, whatever their rows say then.
    """

    __slots__ = ("fd", "items", "known", "path", "unsettled")

    def __init__(self, fd: int, path: bytes, known: dict[bytes, Entry]) -> None:
        self.fd = fd
        self.path = path
        self.known = known
        self.items: dict[bytes, Entry] = {}
        self.unsettled: set[bytes] = set()

    def inner(self, row: Row) -> bytes:
        """Return the path of an entry."""
        return join(self.path, row.name)


class Leaves:
    """Makes entries of rows and puts their content into a store."""

    def __init__(self, store: ObjectStore, rules: Rules, progress: Progress, moved: Moved) -> None:
        self.store = store
        self.moved = moved
        self.rules = rules
        self.progress = progress
        self.totals = Totals()
        self.problems: list[Problem] = []

    def owner(self, row: Row, before: Entry | None) -> tuple[int, int]:
        """Return whose an entry is."""
        if before is None or not self.rules.keep_owners:
            return row.uid, row.gid
        return before.uid, before.gid

    def problem(self, listing: Listing, row: Row, error: OSError) -> None:
        """Note an entry that cannot be captured; what it was before stands in for it."""
        if error.errno in _OUR_LIMITS:
            raise error  # the path is fine, this process is not: a capture without it would leave work out
        before = listing.known.get(row.name)
        why = os.strerror(error.errno or 0).lower()
        self.problems.append(Problem(listing.inner(row), why, before is not None))
        listing.unsettled.add(row.name)
        if before is not None:
            listing.items[row.name] = before

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

    def _xattrs_in(self, listing: Listing, row: Row) -> Xattrs:
        problems = len(self.problems)
        found = self.xattrs(listing.fd, row.name, listing.inner(row))
        if len(self.problems) > problems:
            listing.unsettled.add(row.name)
        return found

    def special(self, listing: Listing, row: Row, kind: EntryKind | None) -> None:
        """Make the entry of what is neither file nor directory."""
        path = listing.inner(row)
        ref = b""
        if kind is None:
            self.problems.append(Problem(path, "a kind of file that layerfs does not know"))
            listing.unsettled.add(row.name)
            return
        try:
            if kind is EntryKind.SYMLINK:
                ref = os.readlink(row.name, dir_fd=listing.fd)
                if not ref or len(ref) > MAX_SYMLINK:
                    self.problems.append(Problem(path, "a symlink without a usable target"))
                    listing.unsettled.add(row.name)
                    return
            elif kind in (EntryKind.CHARDEV, EntryKind.BLOCKDEV):
                ref = device_ref(os.major(row.rdev), os.minor(row.rdev))
        except OSError as error:
            if error.errno != errno.ENOENT:
                self.problem(listing, row, error)
            return
        owner = self.owner(row, listing.known.get(row.name))
        xattrs = self._xattrs_in(listing, row)
        listing.items[row.name] = Entry(kind, row.mode & MODE_MASK, *owner, row.mtime_ns, 0, ref, xattrs)

    def files(self, listing: Listing, reading: list[Row]) -> None:
        """Read files and make their entries: small ones in batches, each large one by itself, databases as a whole."""
        started_ns = kernel_now_ns()
        batch: list[Row] = []
        size = 0
        for row in reading:
            if row.size >= ONE_PIECE_LIMIT:
                self._large(listing, row)
                continue
            batch.append(row)
            size += row.size
            if len(batch) >= BATCH_FILES or size >= BATCH_BYTES:
                self._small(listing, batch)
                batch, size = [], 0
        if batch:
            self._small(listing, batch)
        read = {row.name for row in reading}
        for database, journal in list(journals_in(listing.items)) if read else ():
            if database in listing.items and (database in read or journal in read):
                self._together(listing, (database, journal), started_ns)

    def _together(self, listing: Listing, names: tuple[bytes, bytes], started_ns: int) -> None:
        """Read a database and its journal again until both are of one instant."""
        for attempt, _ in enumerate(tries()):
            if attempt:
                started_ns = kernel_now_ns()
                for name in names:
                    fresh = _restat(listing.fd, name)
                    listing.items.pop(name, None)
                    if fresh is not None:
                        self._large(listing, fresh)
            moved = False
            for name in names:
                entry = listing.items.get(name)
                then = None if entry is None else (entry.size, entry.mtime_ns)
                moved = moved or not held_still(then, state_at(listing.fd, name), started_ns)
            if not moved:
                return
        if not self.rules.allow_torn:
            raise torn(join(listing.path, names[0]))

    def _small(self, listing: Listing, batch: list[Row]) -> None:
        results = native.read_files(listing.fd, [row.name for row in batch], ONE_PIECE_LIMIT - 1)
        total = 0
        for row, result in zip(batch, results, strict=True):
            data = result.data
            if data is not None and result.mode == row.mode:
                before = listing.known.get(row.name)
                ref = self.moved.put(listing.inner(row), data, before) if data else b""
                xattrs = self._xattrs_in(listing, row) if result.has_xattrs else ()
                self._put(listing, row, result.mtime_ns, len(data), ref, xattrs)
                total += len(data)
            else:
                self._retry(listing, row, result)
        self.totals.read_files += len(batch)
        self.totals.read_bytes += total
        self.progress.advance(len(batch), total)

    def _put(self, listing: Listing, row: Row, mtime_ns: int, size: int, ref: bytes, xattrs: Xattrs) -> None:
        uid, gid = self.owner(row, listing.known.get(row.name))
        listing.items[row.name] = Entry(
            EntryKind.FILE, row.mode & MODE_MASK, uid, gid, mtime_ns, size, ref, xattrs
        )

    def _retry(self, listing: Listing, row: Row, result: FileRead) -> None:
        """A small file that was not read at the first try: find out what it is now, and treat it as that."""
        if result.errno == errno.ENOENT:
            return
        if result.errno not in (0, NOT_REGULAR, errno.EFBIG, errno.ELOOP):
            self.problem(listing, row, OSError(result.errno, ""))
            return
        fresh = _restat(listing.fd, row.name)
        if fresh is None:
            return
        kind = entry_kind(fresh.mode)
        if kind is EntryKind.FILE:
            self._large(listing, fresh)
        elif kind is EntryKind.DIR:
            raise TornRead(
                f"{quote(listing.inner(row))} turned from a file into a directory while it was captured",
                "let the programs that write there finish, then try again",
            )
        else:
            self.special(listing, fresh, kind)

    def _large(self, listing: Listing, row: Row) -> None:
        """Read one file by itself, in blocks, as often as it takes to hold still."""
        before = listing.known.get(row.name)
        try:
            content = read_steady(
                listing.fd,
                listing.inner(row),
                self.store,
                self.progress,
                before,
                allow_torn=self.rules.allow_torn,
            )
        except NotFound:
            return
        except OSError as error:
            self.problem(listing, row, error)
            return
        info = content.info
        row = row._replace(mode=info.st_mode, uid=info.st_uid, gid=info.st_gid)
        xattrs = self._xattrs_in(listing, row)
        self._put(listing, row, info.st_mtime_ns, content.size, content.ref, xattrs)
        self.totals.read_files += 1
        self.totals.read_bytes += content.size
        self.progress.advance(1, 0)


def _restat(fd: int, name: bytes) -> Row | None:
    try:
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return Row(
        name,
        info.st_mode,
        info.st_uid,
        info.st_gid,
        info.st_nlink,
        info.st_dev,
        info.st_rdev,
        info.st_size,
        info.st_ino,
        info.st_mtime_ns,
        info.st_ctime_ns,
    )

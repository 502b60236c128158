"""The stat cache: what a directory tree looked like when it was last captured, and which trees that gave.

For every directory it keeps a *record*: the packed rows of one scan (``rows``), the id of the tree captured from them,
and sums over everything below. A directory whose next scan is byte-equal has not changed; the kernel compares a whole
tree with its records at once (``native.changed_records``), so what did not change costs no Python at all. The cache is
disposable – a missing, torn or foreign file is an empty cache – and it never says "unchanged" of a file that may have
changed:

* ctime cannot be set by a user, so an edit that restores mtime and size is seen;
* a row whose ctime is not safely older than the scan (*racy*, as in Git's index) is stored with ctime zero, which no
  later scan equals, so the file is read again next time. So is the row of what could not be captured, or lies on another
  file system: it is looked at, and reported, every time.

Records lie in one run of bytes, each before those of its sub-directories and these in the order of their names, so
everything below a directory is one piece that a later cache takes over as it is. A record, little-endian, no padding:

====== ===== ==================================================================
offset type  field
====== ===== ==================================================================
0      u64   bytes of this record and all records below
8      u32   length of the path
12     u32   length of the rows
16     u32   1 if it holds linked files: looked at whenever anything changed
20     u32   directories, this one included
24     u32   files in them
28     u32   other entries in them
32     u64   bytes of the files
40     32    tree id
72     bytes path from the root, then the rows
====== ===== ==================================================================
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

import xxhash

from layerfs.ids import ObjectId, TreeId
from layerfs.kernels import native
from layerfs.kernels.rows import ROW_HEADER, Row

MAGIC = b"LFSTAT04"
RACY_NS = 20_000_000
COARSE_RACY_NS = 2_000_000_000
NANO = 1_000_000_000
_CTIME_SECONDS_AT = 60
_CTIME_NANOS_AT = 72
_REALTIME_COARSE = 5
_SUM_BYTES = 8
NO_STAMP = bytes(8)
"""Of a cache of captures that left nothing out by rules."""
_MOST_ROWS = 0xFFFFFFFF
RECORD_HEAD = Struct("<QIIIIIIQ32s")

Buffer = bytes | bytearray | memoryview


class Sums(NamedTuple):
    """How many directories, files and other entries there are, and the bytes of the files."""

    directories: int = 0
    files: int = 0
    others: int = 0
    size: int = 0

    def plus(self, other: Sums) -> Sums:
        """Return both together."""
        return Sums(*(mine + its for mine, its in zip(self, other, strict=True)))

    def minus(self, other: Sums) -> Sums:
        """Return what is left without the other."""
        return Sums(*(mine - its for mine, its in zip(self, other, strict=True)))


class Record(NamedTuple):
    """One directory at its last capture; ``place`` and ``end`` bound its record and all below, ``inner`` the latter.

    A directory below that has a record was captured together with this one, so its tree is the one this tree holds. One
    without a record is the reason for a record without rows, which no scan equals.
    """

    place: int
    inner: int
    end: int
    path: bytes
    rows: memoryview
    linked: bool
    sums: Sums
    tree: TreeId


def kernel_now_ns() -> int:
    """Return the clock that the kernel stamps files with (its coarse real-time clock), in nanoseconds.

    This is a property of the file system, not the time layerfs records; tests that fix the clock do not touch it.
    """
    return time.clock_gettime_ns(_REALTIME_COARSE)


def is_racy(ctime_ns: int, scanned_ns: int) -> bool:
    """Whether a change after the scan could leave this very ctime: it is too close to the time of the scan.

    Two ticks of the slowest usual kernel clock, or two seconds on file systems that keep whole seconds.
    """
    margin = RACY_NS if ctime_ns % NANO else COARSE_RACY_NS
    return ctime_ns >= scanned_ns - margin


def smudge(
    blob: bytearray, start: int, rows: Iterable[Row], scanned_ns: int, unsettled: Collection[bytes]
) -> None:
    """Zero the ctime of every racy one of these rows, which lie from ``start`` on, and of the unsettled names."""
    at = start
    for row in rows:
        if is_racy(row.ctime_ns, scanned_ns) or row.name in unsettled:
            blob[at + _CTIME_SECONDS_AT : at + _CTIME_SECONDS_AT + 8] = bytes(8)
            blob[at + _CTIME_NANOS_AT : at + _CTIME_NANOS_AT + 4] = bytes(4)
        at += ROW_HEADER.size + len(row.name)


class StatCache:
    """The records of one tree; immutable. They may come in pieces, which stay apart unless they are looked into."""

    def __init__(self, records: Buffer = b"", *more: Buffer, stamp: bytes = NO_STAMP) -> None:
        self.pieces: tuple[Buffer, ...] = (records, *more)
        self.stamp = stamp

    @property
    def records(self) -> Buffer:
        """All records in one."""
        if len(self.pieces) > 1:
            self.pieces = (b"".join(self.pieces),)
        return self.pieces[0]

    @property
    def root(self) -> Record | None:
        """The record of the captured directory itself."""
        return self.at(0) if self.records else None

    @property
    def head(self) -> bytes:
        """What a cache file of these records begins with: equal for equal ones."""
        sum_of_all = xxhash.xxh3_64(self.stamp)
        for piece in self.pieces:
            sum_of_all.update(piece)
        return MAGIC + self.stamp + sum_of_all.digest()

    def at(self, place: int) -> Record:
        """Return the record at a place."""
        span, path_length, rows_length, linked, *sums, tree = RECORD_HEAD.unpack_from(self.records, place)
        start = place + RECORD_HEAD.size
        rows_at = start + path_length
        inner = rows_at + rows_length
        view = memoryview(self.records)
        path, rows = bytes(view[start:rows_at]), view[rows_at:inner]
        return Record(
            place, inner, place + span, path, rows, bool(linked), Sums(*sums), TreeId(ObjectId(tree))
        )

    def children(self, record: Record) -> Iterator[Record]:
        """Yield the records of a directory's sub-directories."""
        place = record.inner
        while place < record.end:
            child = self.at(place)
            yield child
            place = child.end

    def piece(self, record: Record) -> memoryview:
        """Return the bytes of a record and all below."""
        return memoryview(self.records)[record.place : record.end]

    def everything(self) -> list[int]:
        """Return the places of all records."""
        places: list[int] = []
        waiting = [self.root] if self.root is not None else []
        while waiting:
            record = waiting.pop()
            places.append(record.place)
            waiting += self.children(record)
        return sorted(places)

    def changed(self, directory: int) -> tuple[list[int], list[int]]:
        """Compare the tree open as ``directory`` with the records: places of the changed ones, places of the linked."""
        return native.changed_records(directory, self.records, len(os.sched_getaffinity(0)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StatCache) and (self is other or self.head == other.head)

    __hash__ = None  # type: ignore[assignment]


class _Seen(NamedTuple):
    """A directory captured anew."""

    rows: Buffer
    tree: TreeId
    subdirectories: list[bytes]
    linked: bool
    own: Sums


class CacheBuilder:
    """The next cache while a capture goes on: directories captured anew, and pieces of the cache before."""

    def __init__(self, before: StatCache, stamp: bytes = NO_STAMP) -> None:
        self._before = before
        self._stamp = stamp
        self._kept: dict[bytes, Record] = {}
        self._seen: dict[bytes, _Seen] = {}

    def keep(self, record: Record) -> None:
        """Take over a record with all below."""
        self._kept[record.path] = record

    def add(
        self, path: bytes, rows: Buffer, tree: TreeId, subdirectories: list[bytes], linked: bool, own: Sums
    ) -> None:
        """Note a directory; ``own`` counts what lies right in it, itself included, but not its sub-directories."""
        self._seen[path] = _Seen(rows, tree, subdirectories, linked, own)

    def build(self) -> StatCache:
        """Return the cache."""
        pieces: list[Buffer] = []
        self._put(b"", pieces)
        return StatCache(*pieces, stamp=self._stamp)

    def _put(self, path: bytes, pieces: list[Buffer]) -> tuple[int, Sums] | None:
        """Add the records of a directory; return their length and sums, or None if nothing is known of it."""
        kept = self._kept.get(path)
        if kept is not None:
            pieces.append(self._before.piece(kept))
            return kept.end - kept.place, kept.sums
        seen = self._seen.get(path)
        if seen is None:
            return None
        place = len(pieces)
        pieces += (b"", b"")
        rows, sums, below = seen.rows, seen.own, 0
        for name in seen.subdirectories:
            found = self._put(path + b"/" + name if path else name, pieces)
            if found is None:
                rows = b""
                continue
            below += found[0]
            sums = sums.plus(found[1])
        rows = rows if len(rows) <= _MOST_ROWS else b""
        span = RECORD_HEAD.size + len(path) + len(rows) + below
        pieces[place] = RECORD_HEAD.pack(span, len(path), len(rows), seen.linked, *sums, seen.tree) + path
        pieces[place + 1] = rows
        return span, sums


def load_cache(path: bytes) -> StatCache:
    """Read a cache file; anything that is not one whole cache of this version is an empty cache."""
    try:
        with open(
            path, "rb", buffering=0
        ) as file:  # unbuffered: a buffer's rest and what follows would be joined
            head = file.read(len(MAGIC) + len(NO_STAMP) + _SUM_BYTES)
            stamp = head[len(MAGIC) : -_SUM_BYTES]
            cache = StatCache(file.read() if head.startswith(MAGIC) else b"", stamp=stamp)
    except FileNotFoundError:
        return StatCache()
    return cache if head == cache.head else StatCache()


def save_cache(path: bytes, cache: StatCache, owner: tuple[int, int] | None = None) -> None:
    """Write a cache file in place of an older one; see :func:`write_cache`."""
    write_cache(path, (cache.head, *cache.pieces), owner)


def write_cache(path: bytes, content: Iterable[Buffer], owner: tuple[int, int] | None) -> None:
    """Put a cache's bytes, in pieces, in place of the older ones, for the store's owner.

    They are not synced, since losing them costs only time. For the same reason a full or failing disk is no error here:
    what the cache belongs to is recorded already. And of several processes that write the same cache at once one does,
    and the others leave it to that one.
    """
    temporary = path + b".new"
    try:
        with open(temporary, "ab", opener=_open_private) as file:
            if not _is_mine(file.fileno(), temporary):
                return
            file.truncate(0)
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            file.writelines(content)
            file.flush()
            os.replace(temporary, path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        with suppress(OSError):
            os.unlink(temporary)


def _is_mine(descriptor: int, path: bytes) -> bool:
    """Take the lock of a file about to be written; False when another process has it, or has just put it in its place."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)

"""Filling: regular files on their way to disk, their contents read in the order of the packs and not in that of paths.

Files wait until there are many. Then each frame that holds some of their pieces is decoded once, in the order of the
packs, by one of several threads, which writes what it has just verified: whole small files by ``native.write_files``, a
directory of them at a time, and the pieces of large ones at their places. Whoever writes the last piece of a large file
gives it its attributes. Nearly all the time goes into decompression, hashing and system calls, which let go of the GIL.

What is in memory is bounded: so many waiting pieces, and one frame per thread. The first error stops everybody and is
raised where the files came from; no file that is not whole stays.

The directories of the target must exist, and nobody else may be in them; their attributes are set by the caller, later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Lock, Thread

from layerfs.checkout.attributes import Attributes
from layerfs.checkout.target import OpenDirectories, named
from layerfs.errors import MalformedObject, StoreDamaged, quote
from layerfs.ids import ExtentId, ObjectId, short
from layerfs.kernels import native
from layerfs.kernels.rows import MODE, OWNER, XATTR, FileFault
from layerfs.objects.chunking import HOLE_MIN, ONE_PIECE_LIMIT
from layerfs.objects.entry import Entry
from layerfs.objects.environment import join
from layerfs.objects.extents import iter_extents
from layerfs.objects.kinds import Kind
from layerfs.objects.source import BulkSource, ObjectSource, ReadGroup
from layerfs.progress import Progress

MOST_WAITING = 100_000
"""Pieces of files, and empty files; about 40 MB of what is known of them."""
EMPTY_AT_ONCE = 1000
MAX_THREADS = 4
BUFFERS_AT_ONCE = 512
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PRIVATE = 0o600


class _Large:
    """A file of several pieces: so many are still to come, and one more while they are being listed."""

    __slots__ = ("entry", "left", "name", "parent")

    def __init__(self, parent: bytes, name: bytes, entry: Entry) -> None:
        self.parent = parent
        self.name = name
        self.entry = entry
        self.left = 1

    @property
    def path(self) -> bytes:
        return join(self.parent, self.name)


_Small = tuple[bytes, bytes, Entry]
_Part = tuple[_Large, int, int]
_Job = Callable[[OpenDirectories], None]


class Filling:
    """Takes files of one target; ``attributes`` and ``progress`` are called by one thread at a time."""

    def __init__(self, source: ObjectSource, target: int, attributes: Attributes, progress: Progress) -> None:
        self._source = source
        self._target = target
        self._attributes = attributes
        self._progress = progress
        self._small: dict[ObjectId, list[_Small]] = {}
        self._parts: dict[ObjectId, list[_Part]] = {}
        self._empty: dict[bytes, list[native.NewFile]] = {}
        self._unfinished: dict[_Large, None] = {}
        self._waiting = 0
        self._lock = Lock()
        self._error: BaseException | None = None

    def add(self, opened: OpenDirectories, parent: bytes, name: bytes, entry: Entry) -> None:
        """Take a file that is to be made in the directory ``parent``."""
        if not entry.size:
            self._empty.setdefault(parent, []).append((name, entry, b""))
        elif entry.size < ONE_PIECE_LIMIT:
            self._small.setdefault(ObjectId(entry.ref), []).append((parent, name, entry))
        else:
            self._add_large(opened, _Large(parent, name, entry))
            return
        self._count()

    def _count(self) -> None:
        self._waiting += 1
        if self._waiting >= MOST_WAITING:
            self.flush()

    def _add_large(self, opened: OpenDirectories, large: _Large) -> None:
        """Make a large file at its length, all of it a hole, and let its pieces wait."""
        try:
            fd = os.open(large.name, _CREATE, _PRIVATE, dir_fd=opened.get(large.parent))
            self._unfinished[large] = None
            try:
                os.ftruncate(fd, large.entry.size)
            finally:
                os.close(fd)
        except OSError as error:
            raise named(error, large.path) from error
        end = 0
        for offset, (length, chunk) in iter_extents(self._source, ExtentId(ObjectId(large.entry.ref))):
            end = offset + length
            if chunk is not None:
                large.left += 1  # no thread runs while files are added
                self._parts.setdefault(chunk, []).append((large, offset, length))
                self._count()
        if end != large.entry.size:
            raise MalformedObject("malformed content: extents do not add up to the file's size")
        self._write_parts(opened, large, [])

    def flush(self) -> None:
        """Write all files that wait; when this returns they are there, and whole."""
        jobs: list[_Job] = [
            partial(self._write_small, parent, files[at : at + EMPTY_AT_ONCE])
            for parent, files in self._empty.items()
            for at in range(0, len(files), EMPTY_AT_ONCE)
        ]
        small, parts = self._small, self._parts
        wanted = small.keys() | parts.keys() if parts else small.keys()
        if isinstance(self._source, BulkSource):
            groups = self._source.read_groups(wanted)
        else:
            groups = [partial(_read_one, self._source, oid) for oid in wanted]
        jobs += [partial(self._write_group, group, small, parts) for group in groups]
        self._small, self._parts, self._empty, self._waiting = {}, {}, {}, 0
        self._work_off(jobs)

    def close(self) -> None:
        """Remove what is not whole: after an error, the large files that lack something."""
        with OpenDirectories(self._target) as opened:
            for large in self._unfinished:
                os.unlink(large.name, dir_fd=opened.get(large.parent))
        self._unfinished.clear()

    # -- what the threads do --------------------------------------------------------------------------------------

    def _work_off(self, jobs: Sequence[_Job]) -> None:
        """Do the jobs in several threads, in order as far as that goes; the caller's waits, so that signals arrive."""
        remaining = iter(jobs)
        count = min(MAX_THREADS, max(2, len(os.sched_getaffinity(0))), len(jobs))
        threads = [
            Thread(target=self._take_jobs, args=(remaining,), name="layerfs-write") for _ in range(count)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as error:
            self._stop(error)
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
        if self._error is not None:
            raise self._error

    def _stop(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error

    def _take_jobs(self, remaining: Iterator[_Job]) -> None:
        try:
            with OpenDirectories(self._target) as opened:
                while self._error is None:
                    with self._lock:
                        job = next(remaining, None)
                    if job is None:
                        return
                    job(opened)
        except BaseException as error:
            self._stop(error)

    def _write_group(
        self,
        group: ReadGroup,
        small: dict[ObjectId, list[_Small]],
        parts: dict[ObjectId, list[_Part]],
        opened: OpenDirectories,
    ) -> None:
        whole: dict[bytes, list[native.NewFile]] = {}
        pieces: dict[_Large, list[tuple[int, bytes]]] = {}
        for oid, kind, payload in group():
            if kind is not Kind.CHUNK:
                raise StoreDamaged(f"object {short(oid)} is a {kind.label}, not a chunk")
            for parent, name, entry in small.get(oid, ()):
                _check_length(payload, entry.size)
                whole.setdefault(parent, []).append((name, entry, payload))
            for large, offset, length in parts.get(oid, ()):
                _check_length(payload, length)
                pieces.setdefault(large, []).append((offset, payload))
        for parent, files in whole.items():
            self._write_small(parent, files, opened)
        for large, found in pieces.items():
            self._write_parts(opened, large, found)

    def _write_small(self, parent: bytes, files: list[native.NewFile], opened: OpenDirectories) -> None:
        faults = native.write_files(opened.get(parent), files, self._attributes.owners, HOLE_MIN)
        size = sum(len(data) for _, _, data in files)
        with self._lock:
            for fault in faults:
                self._note(fault, join(parent, files[fault.number][0]))
            if not self._attributes.owners:
                for _, (_, _, uid, gid, *_), _ in files:
                    self._attributes.note_owner(uid, gid)
            self._count_done(len(files), size)

    def _note(self, fault: FileFault, path: bytes) -> None:
        error = OSError(fault.errno, os.strerror(fault.errno), path)
        if fault.step == OWNER:
            self._attributes.cannot(path, "owner", error)
        elif fault.step == MODE:
            self._attributes.cannot(path, "mode", error)
        elif fault.step == XATTR:
            self._attributes.cannot(path, f"extended attribute {quote(fault.xattr or b'')}", error)
        else:
            raise error

    def _write_parts(self, opened: OpenDirectories, large: _Large, pieces: list[tuple[int, bytes]]) -> None:
        """Write some pieces of a large file; the last one of all (or the end of the list of them) finishes it."""
        try:
            fd = os.open(large.name, _OPEN, dir_fd=opened.get(large.parent))
            try:
                _write_pieces(fd, pieces)
                with self._lock:
                    large.left -= len(pieces) or 1
                    if large.left:
                        return
                    self._attributes.set(fd, large.entry, large.path)
                    del self._unfinished[large]
                    self._count_done(1, large.entry.size)
            finally:
                os.close(fd)
        except OSError as error:
            raise named(error, large.path) from error

    def _count_done(self, files: int, size: int) -> None:
        self._attributes.restored.files += files
        self._attributes.restored.size += size
        self._progress.advance(files, size)


def _read_one(source: ObjectSource, oid: ObjectId) -> list[tuple[ObjectId, Kind, bytes]]:
    return [(oid, Kind.CHUNK, source.read(oid, Kind.CHUNK))]


def _check_length(payload: bytes, length: int) -> None:
    if len(payload) != length:
        raise MalformedObject("malformed content: chunk does not fit the file's size")


def _write_pieces(fd: int, pieces: list[tuple[int, bytes]]) -> None:
    """Write pieces, those that touch in one call."""
    pieces.sort()
    run: list[bytes] = []
    start = end = 0
    for offset, payload in pieces:
        if run and (offset != end or len(run) == BUFFERS_AT_ONCE):
            write_run(fd, run, start)
            run = []
        if not run:
            start = offset
        run.append(payload)
        end = offset + len(payload)
    if run:
        write_run(fd, run, start)


def write_run(fd: int, buffers: Sequence[bytes | memoryview], at: int) -> None:
    """Write buffers one after the other from an offset on."""
    written = os.pwritev(fd, buffers, at)
    missing = sum(len(buffer) for buffer in buffers) - written
    if missing:
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            at += written
            written = os.pwrite(fd, rest, at)
            rest = rest[written:]

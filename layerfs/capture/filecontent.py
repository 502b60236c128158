"""One file's content: read into the store whatever its size, and whether it held still meanwhile.

Owns the reading of regular files that are not read in batches (``native.read_files``): blocks of bounded memory, holes
that the file system reports, the comparison of the file's status before and after, and how often what moves is tried
again (:func:`tries`).
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from layerfs.errors import NotFound, TornRead, quote
from layerfs.ids import ObjectId
from layerfs.objects.chunking import ONE_PIECE_LIMIT
from layerfs.objects.content import old_extents, put_blocks, put_chunk
from layerfs.objects.entry import Entry
from layerfs.objects.source import ObjectStore
from layerfs.progress import SILENT, Progress

READ_BLOCK = 4 * 1024 * 1024
TORN_TRIES = 5
TORN_PAUSE_SECONDS = 0.01
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


PutSmall = Callable[[ObjectStore, bytes, Entry | None], ObjectId]


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
    put: PutSmall = put_chunk,
) -> FileContent:
    """Read a regular file of any size into the store, with bounded memory; holes on disk are not read.

    ``earlier`` is what the store has at its place, which helps to store the difference only; ``put`` takes the content
    if it is one chunk.
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
                ref = put(store, data, earlier)
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


def tries() -> Iterator[bool]:
    """Yield, for each attempt at what must hold still, whether it is the last; pause a little longer before each next."""
    for attempt in range(TORN_TRIES):
        if attempt:
            time.sleep(TORN_PAUSE_SECONDS * attempt)
        yield attempt == TORN_TRIES - 1


def read_steady(
    directory: int,
    path: bytes,
    store: ObjectStore,
    progress: Progress = SILENT,
    earlier: Entry | None = None,
    *,
    allow_torn: bool,
    put: PutSmall = put_chunk,
) -> FileContent:
    """Read a file as often as it takes to hold still; with ``allow_torn`` take what the last try gave.

    ``path`` is how the file is called in a message; its last part is its name in ``directory``. Raises what
    :func:`read_file` raises, and TornRead.
    """
    for last in tries():
        content = read_file(directory, path.rpartition(b"/")[2], store, progress, earlier, put)
        if content.stable or (last and allow_torn):
            return content
    raise TornRead(
        f"{quote(path)} keeps changing while it is read",
        "stop what writes to it, or pass --allow-torn to record it as it was read",
    )


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

"""Bulk packs: packs written outside the lane by one big batch.

Owns a pack from its first byte to its name. It grows as ``.bulk-…`` in ``packs/`` under a kernel lock held by its writer,
so that a file whose lock is free was left by a dead process and may be removed (:func:`sweep`). Sealing writes and syncs
the pack, then its index, then gives both their number, and syncs the directory; only after that may a move name the pack.
The lock is held until that move is true, so a sealed pack that nobody registered can be told from one about to be.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from layerfs.durable.atomicfile import NEW, Files, lock_file
from layerfs.errors import StoreDamaged
from layerfs.ids import ObjectId
from layerfs.objects import frames, packs
from layerfs.objects.packindex import IndexBuilder, frame_places

TEMPORARY = b".bulk-"
TEMPORARY_INDEX = b".index-"


class BulkPack:
    """A pack being written. One thread at a time may append; any thread may read."""

    def __init__(
        self, files: Files, packs_fd: int, store_id: bytes, doubtful: Callable[[], bool] = lambda: False
    ) -> None:
        """``doubtful`` says that a move which names the pack may come true though it failed."""
        self._doubtful = doubtful
        self._files = files
        self._packs_fd = packs_fd
        self._name, self._descriptor = files.create_locked(packs_fd, TEMPORARY)
        self._index = IndexBuilder()
        self._length = packs.HEADER_BYTES
        self.number: int | None = None
        try:
            files.write(self._descriptor, packs.encode_header(packs.PackHeader(packs.BULK, store_id)), 0)
        except BaseException:
            self.abandon()
            raise

    def append(self, frame: bytes, objects: list[tuple[int, ObjectId, int]]) -> int:
        """Write a frame of these objects (kind, id, length); return its offset."""
        offset = self._length
        self._files.write(self._descriptor, frame, offset)
        self._index.add_frame(offset, objects)
        self._length += len(frame)
        return offset

    @property
    def length(self) -> int:
        """Bytes written so far."""
        return self._length

    def append_frame(self, frame: bytes) -> None:
        """Write a whole frame as it is; gaps in it and moves are not indexed."""
        head = frames.read_head(frame)
        for prefix, place in frame_places(packs.ScannedFrame(self._length, frame, head)):
            self._index.add(prefix, place)
        self._files.write(self._descriptor, frame, self._length)
        self._length += len(frame)

    def read(self, offset: int) -> bytes:
        """Return the checked frame at ``offset``."""
        return packs.read_frame(self._descriptor, offset)[0]

    def seal(self) -> int:
        """Make the pack and its index durable under a free number and return it."""
        self._files.sync(self._descriptor)
        temporary, descriptor = self._files.create_locked(self._packs_fd, TEMPORARY_INDEX)
        try:
            self._files.write(descriptor, self._index.encode(self._length), 0)
            self._files.sync(descriptor)
            self.number = publish(self._files, self._packs_fd, self._name)
            self._files.rename(self._packs_fd, temporary, packs.index_file(self.number))
        except BaseException:
            _remove_quietly(self._files, self._packs_fd, temporary)
            raise
        finally:
            os.close(descriptor)
        self._files.sync_directory(self._packs_fd)
        return self.number

    def release(self) -> None:
        """Let go of a pack that a move has registered."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def abandon(self) -> None:
        """Remove a pack that no move will ever name; where that is not sure it is left to the next sweep."""
        if self._descriptor < 0:
            return
        if self.number is None:
            _remove_quietly(self._files, self._packs_fd, self._name)
        elif not self._doubtful():
            _remove_quietly(self._files, self._packs_fd, packs.index_file(self.number))
            _remove_quietly(self._files, self._packs_fd, packs.pack_file(self.number))
        self.release()


def publish(files: Files, packs_fd: int, name: bytes) -> int:
    """Give a finished pack the next free number; several processes may do so at once."""
    taken = [number for entry in os.listdir(packs_fd) if (number := packs.file_number(os.fsencode(entry)))]
    number = max(taken, default=0) + 1
    while True:
        try:
            files.rename_new(packs_fd, name, packs.pack_file(number))
        except FileExistsError:
            number += 1
        else:
            return number


def sweep(files: Files, packs_fd: int, registered: set[int], base: int) -> list[bytes]:
    """Remove what dead writers left in ``packs/``: unfinished packs, bulk packs that no move registered, and log packs
    from before log pack ``base``, with which a replay begins, that no move keeps.

    Called inside the lane with the numbers that the database knows, the open pack included; a file whose writer lives
    is locked and stays. Returns the names removed.
    """
    removed: list[bytes] = []
    begin = (_first_sequence(files, packs_fd, base), base)
    for entry in sorted(os.listdir(packs_fd)):
        name = os.fsencode(entry)
        number = packs.file_number(name)
        if number in registered or not (
            number or name.startswith((TEMPORARY, TEMPORARY_INDEX, NEW, b".log-"))
        ):
            continue
        try:
            descriptor = files.open(packs_fd, name)
        except FileNotFoundError:
            continue
        try:
            if not lock_file(descriptor, wait=False):
                continue
            if number and not _is_superfluous(descriptor, begin):
                continue
            if number:
                _remove_quietly(files, packs_fd, packs.index_file(number))
            _remove_quietly(files, packs_fd, name)
            removed.append(name)
        finally:
            os.close(descriptor)
    return removed


def _is_superfluous(descriptor: int, begin: tuple[int, int]) -> bool:
    """Whether this is certainly a bulk pack or a log pack from before the base: any other, or a damaged one, stays."""
    try:
        header = packs.read_header(descriptor)
    except StoreDamaged:
        return False
    return header.role == packs.BULK or (header.first_sequence, header.number) < begin


def _first_sequence(files: Files, packs_fd: int, base: int) -> int:
    try:
        descriptor = files.open(packs_fd, packs.pack_file(base))
    except FileNotFoundError:
        return 0
    try:
        return packs.read_header(descriptor).first_sequence
    except StoreDamaged:
        return 0
    finally:
        os.close(descriptor)


def _remove_quietly(files: Files, packs_fd: int, name: bytes) -> None:
    try:
        files.remove(packs_fd, name)
    except FileNotFoundError:
        return

"""Leases: how writers and a collection go on beside each other without either waiting in the lane.

A batch does not store an object that the store has already. A collection that drops this very object meanwhile would
leave the batch's commit dangling. So each batch holds a *lease*, a shared kernel lock, from before it asks for the first
object until it is committed or dropped, and a collection goes in this order:

1. nobody is left who was warned by an earlier collection (wait for the lock of the warned);
2. write the file ``condemned``: the packs that are going to be dropped. Batches begun from now on read it, count what
   lies only in these packs as absent, and hold the lock of the *warned*;
3. wait, bounded, for the lock of the *unwarned*: every batch begun before is committed, so what it relied on is
   reachable, or is gone;
4. mark what is reachable now, copy it, swap packs in the lane, and remove ``condemned``.

A batch looks at ``condemned`` again once it holds its lock, so none slips between 2 and 3. Everything is held by the
kernel for live processes; a file ``condemned`` left by a dead collection makes batches store some objects twice and
nothing worse. No clock is involved.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from layerfs.durable.atomicfile import Files, lock_file, storage_error, sweep_new
from layerfs.errors import Busy, StoreDamaged

CONDEMNED = b"condemned"
UNWARNED = b"writers.lock"
WARNED = b"writers-warned.lock"
UPKEEP = b"upkeep.lock"
CONDEMNED_LIMIT = 1 << 20
POLL_SECONDS = 0.01


class Lease:
    """A batch's shared lock, and the packs it must not rely on."""

    def __init__(self, descriptor: int, condemned: frozenset[int]) -> None:
        self._descriptor = descriptor
        self.condemned = condemned

    def release(self) -> None:
        """Let go; doing so twice is harmless."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def take_lease(files: Files, root_fd: int) -> Lease:
    """Return a lease on the store's objects; waits only for the moment in which a collection passes."""
    while True:
        condemned = _read_condemned(files, root_fd)
        descriptor = _open(files, root_fd, UNWARNED if condemned is None else WARNED)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if _read_condemned(files, root_fd) == condemned:
                return Lease(descriptor, condemned or frozenset())
        except OSError as error:
            os.close(descriptor)
            raise storage_error(error, "locking a file of the store") from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextmanager
def upkeep(files: Files, root_fd: int) -> Iterator[None]:
    """Hold the lock of collection, repacking and purging, of which one at a time runs; raise Busy when one does."""
    descriptor = _open(files, root_fd, UPKEEP)
    try:
        if not lock_file(descriptor, wait=False):
            raise Busy("another collection or repack of this store is running", "wait until it is done")
        _forget(files, root_fd)
        sweep_new(files, root_fd)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def condemned(
    files: Files, root_fd: int, packs: Iterable[int], wait: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Hold packs condemned; begins once every batch that may rely on them is done, or raises Busy after ``wait``.

    The caller holds :func:`upkeep`.
    """
    deadline = clock() + wait
    _wait_for(files, root_fd, WARNED, deadline, clock)
    files.replace(root_fd, CONDEMNED, b"".join(b"%d\n" % number for number in packs))
    try:
        _wait_for(files, root_fd, UNWARNED, deadline, clock)
        yield
    finally:
        _forget(files, root_fd)


def _wait_for(files: Files, root_fd: int, name: bytes, deadline: float, clock: Callable[[], float]) -> None:
    descriptor = _open(files, root_fd, name)
    try:
        while not lock_file(descriptor, wait=False):
            if clock() >= deadline:
                raise Busy(
                    "a writer that began before is still at work on this store",
                    "run it again later; nothing was dropped",
                )
            time.sleep(POLL_SECONDS)
    finally:
        os.close(descriptor)


def _open(files: Files, root_fd: int, name: bytes) -> int:
    """Open a lock file, also where nothing can be created any more: on a full disk or a read-only mount."""
    try:
        return files.open(root_fd, name)
    except FileNotFoundError:
        return files.create(root_fd, name, exclusive=False)


def _read_condemned(files: Files, root_fd: int) -> frozenset[int] | None:
    try:
        data = files.read(root_fd, CONDEMNED, CONDEMNED_LIMIT)
    except FileNotFoundError:
        return None
    lines = data.split()
    if not all(line.isdigit() and len(line) <= 18 for line in lines):
        raise StoreDamaged("the list of condemned packs cannot be read", "'layerfs gc' makes it anew")
    return frozenset(int(line) for line in lines)


def _forget(files: Files, root_fd: int) -> None:
    try:
        files.remove(root_fd, CONDEMNED)
    except FileNotFoundError:
        return

"""The lane: the one short exclusive section of a store, held by a kernel lock.

Owns two lock files, the *gate* and the *lane*. Whoever wants the lane takes the gate first, then the lane, then lets go
of the gate. So at most one process waits for the lane itself, and one that has just left it cannot come back before that
one was in: nobody is starved, and a writer never has to retry by hand. Those at the gate wait inside flock(2), where the
kernel queues them; a helper thread does the waiting, so that the wait is bounded without signals.

Not waiting at all (0 seconds) also gives up when somebody merely stands at the gate, or has just given up waiting there.

The kernel lets go of both when a process dies, so there is never anything to unlock. Entering twice from one thread is a
bug in layerfs and raises RuntimeError. What is done inside the lane is ``store``'s.
"""

from __future__ import annotations

import _thread
import os

from layerfs.durable.atomicfile import Files, lock_file
from layerfs.errors import Busy

LANE_FILE = b"lane.lock"
GATE_FILE = b"gate.lock"
DEFAULT_TIMEOUT = 60.0


class LaneLock:
    """The lane of one store, as seen by one process; threads of the process exclude each other too."""

    def __init__(self, files: Files, dir_fd: int) -> None:
        self._files = files
        self._dir_fd = dir_fd
        self._threads = _thread.allocate_lock()
        self._owner: int | None = None
        self._held: int | None = None

    @property
    def held(self) -> bool:
        """Whether the calling thread is inside."""
        return self._owner == _thread.get_ident()

    def enter(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Enter, waiting at most ``timeout`` seconds (0: not at all); raise Busy when somebody else stays in."""
        if self.held:
            raise RuntimeError("the lane is entered twice by one thread")
        if not (self._threads.acquire(timeout=timeout) if timeout > 0 else self._threads.acquire(False)):
            raise _busy()
        try:
            self._held = self._lock(timeout)
            self._owner = _thread.get_ident()
        except BaseException:
            self._threads.release()
            raise

    def leave(self) -> None:
        """Leave; the next in line is woken by the kernel."""
        held, self._held, self._owner = self._held, None, None
        if held is not None:
            os.close(held)
        self._threads.release()

    def _lock(self, timeout: float) -> int:
        gate = self._files.create(self._dir_fd, GATE_FILE, exclusive=False)
        try:
            lane = self._files.create(self._dir_fd, LANE_FILE, exclusive=False)
        except BaseException:
            os.close(gate)
            raise
        if lock_file(gate, wait=False) and lock_file(lane, wait=False):
            os.close(gate)
            return lane
        if timeout <= 0:
            os.close(gate)
            os.close(lane)
            raise _busy()
        return _Waiter(gate, lane).wait(timeout)


class _Waiter:
    """Waits for both locks in a thread; when the caller gives up first, the thread lets go of what it gets."""

    def __init__(self, gate: int, lane: int) -> None:
        self._gate = gate
        self._lane = lane
        self._done = _thread.allocate_lock()
        self._state = _thread.allocate_lock()
        self._abandoned = False
        self._failure: BaseException | None = None

    def wait(self, timeout: float) -> int:
        self._done.acquire()
        _thread.start_new_thread(self._run, ())
        try:
            finished = self._done.acquire(timeout=timeout)
        except BaseException:
            if not self._abandon():
                os.close(self._lane)
            raise
        if not finished and self._abandon():
            raise _busy()
        if self._failure is not None:
            os.close(self._lane)
            raise self._failure
        return self._lane

    def _abandon(self) -> bool:
        """Give up; False when the locks came in the very last moment."""
        with self._state:
            if not self._done.locked():
                return False
            self._abandoned = True
            return True

    def _run(self) -> None:
        try:
            lock_file(self._gate, wait=True)
            with self._state:
                gone = self._abandoned
            if not gone:
                lock_file(self._lane, wait=True)
        except BaseException as error:
            self._failure = error
        finally:
            os.close(self._gate)
            with self._state:
                if self._abandoned:
                    os.close(self._lane)
                self._done.release()


def _busy() -> Busy:
    return Busy("store is busy: another process holds the lane", "try again, or raise the time to wait")

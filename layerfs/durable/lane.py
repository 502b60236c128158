"""The lane: the one short exclusive section of a store, held by a kernel lock.

Owns two lock files, the *gate* and the *lane*. Whoever wants the lane takes the gate first, then the lane, then lets go
of the gate. So at most one process waits for the lane itself, and one that has just left it cannot come back before that
one was in: nobody is starved, and a writer never has to retry by hand. Those at the gate wait inside flock(2), where the
kernel queues them; a helper thread does the waiting, so that the wait is bounded without signals.

Not waiting at all (0 seconds) also gives up when somebody merely stands at the gate, or has just given up waiting there.

The kernel lets go of both when a process dies, so there is never anything to unlock. The files stay open between one time
and the next; a process that was forked off opens its own, since a lock belongs to the open file and not to the process.
Entering twice from one thread is a bug in layerfs and raises RuntimeError. What is done inside the lane is ``store``'s.
"""

from __future__ import annotations

import _thread
import os

from layerfs.durable.atomicfile import Files, lock_file, unlock_file
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
        self._gate = -1
        self._lane = -1
        self._process = 0

    def close(self) -> None:
        """Close the files; the lane may be entered again, which opens them."""
        for descriptor in (self._gate, self._lane):
            if descriptor >= 0:
                os.close(descriptor)
        self._gate = self._lane = -1

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
            self._lock(timeout)
            self._owner = _thread.get_ident()
        except BaseException:
            self.close()
            self._threads.release()
            raise

    def leave(self) -> None:
        """Leave; the next in line is woken by the kernel."""
        self._owner = None
        try:
            unlock_file(self._lane)
        finally:
            self._threads.release()

    def _lock(self, timeout: float) -> None:
        self._open()
        has_gate = lock_file(self._gate, wait=False)
        if has_gate and lock_file(self._lane, wait=False):
            unlock_file(self._gate)
            return
        if timeout <= 0:
            if has_gate:
                unlock_file(self._gate)
            raise _busy()
        gate, lane = self._gate, self._lane
        self._gate = self._lane = -1
        self._lane = _Waiter(gate, lane).wait(timeout)

    def _open(self) -> None:
        if self._process != os.getpid():
            self.close()
            self._process = os.getpid()
        if self._gate < 0:
            self._gate = self._files.create(self._dir_fd, GATE_FILE, exclusive=False)
        if self._lane < 0:
            self._lane = self._files.create(self._dir_fd, LANE_FILE, exclusive=False)


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

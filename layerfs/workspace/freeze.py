"""Freezing: stop the processes that use a workspace while it is read, so that all files are from one instant.

A database and its write-ahead log captured at different moments do not fit together. Every process that stands in the
workspace or holds something of it open is sent SIGSTOP, and waited for until the kernel says that it stopped; afterwards
SIGCONT. The search is repeated until it finds nobody new twice, because a process may be started while others are
stopped; if it always finds somebody, nothing is read. The caller, its ancestors and its own children are left alone: they
wait for the commit, and stopping them would stop that.

Only processes that the caller may signal can be frozen; the others are returned, and the caller decides.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from layerfs.errors import Busy
from layerfs.workspace.busy import Holder, describe, find_holders, find_users
from layerfs.workspace.mountinfo import mount_at, read_mounts

ROUNDS = 50
QUIET_ROUNDS = 2
"""One quiet look is not enough: who was started during it by one who then ended may have been missed."""
STOP_SECONDS = 5.0


@contextmanager
def frozen(path: bytes) -> Iterator[tuple[Holder, ...]]:
    """Stop whoever uses the file system or directory at ``path`` for the length of the block; yield who was stopped.

    Raises Busy when a process cannot be stopped: then its files could still change.
    """
    stopped: dict[int, Holder] = {}
    spared = _relatives()
    try:
        quiet = 0
        for _ in range(ROUNDS):
            fresh = [one for one in _users(path) if one.pid not in spared and one.pid not in stopped]
            quiet = 0 if fresh else quiet + 1
            if quiet == QUIET_ROUNDS:
                break
            for holder in fresh:
                stopped[holder.pid] = holder
                _stop(holder)
        else:
            raise Busy(
                "processes that use the workspace start new ones faster than they can be stopped",
                "end them first",
            )
        yield tuple(stopped.values())
    finally:
        for pid in reversed(stopped):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _users(path: bytes) -> tuple[Holder, ...]:
    """Return who uses a workspace: by its own file system if it is mounted, else by the names of what is open."""
    mount = mount_at(read_mounts(), path)
    return find_users(path) if mount is None else find_holders(path, mount.device)


def _stop(holder: Holder) -> None:
    try:
        os.kill(holder.pid, signal.SIGSTOP)
    except ProcessLookupError:
        return
    except PermissionError:
        raise Busy(
            f"a process of another user writes to the workspace: {describe((holder,))}",
            "end it, or run as root",
        ) from None
    deadline = time.monotonic() + STOP_SECONDS
    while _state(holder.pid) not in "TtZX":
        if time.monotonic() > deadline:
            raise Busy(
                f"a process that uses the workspace does not stop: {describe((holder,))}", "end it first"
            )
        time.sleep(0.0005)


def _relatives() -> set[int]:
    """Return this process, its ancestors and its children."""
    parents = {pid: _parent(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
    found = {os.getpid()}
    at = os.getpid()
    while at in parents and parents[at] > 0 and parents[at] not in found:
        at = parents[at]
        found.add(at)
    return found | {1} | {pid for pid, parent in parents.items() if parent == os.getpid()}


def _stat_fields(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return [b"X", b"0"]


def _state(pid: int) -> str:
    return _stat_fields(pid)[0].decode("ascii")


def _parent(pid: int) -> int:
    return int(_stat_fields(pid)[1])

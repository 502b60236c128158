"""Claims: one process at a time attaches, heals or takes away a workspace, and no name is taken twice.

Two mounts of one upper would ruin it, so whoever is about to mount, or to remove what is mounted, holds a kernel lock on
the workspace's own directory; it goes with the process. The record is looked at again once the lock is held. A workspace
that a living ``run`` has in its own namespace cannot be seen from outside, and is known by its process and its lock.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from layerfs.errors import Busy, quote
from layerfs.store import Store
from layerfs.workspace.places import make_workspace_directory, workspace_directory
from layerfs.workspace.records import WorkspaceRecord, names_like

RUN_LOCK = b"in-use"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def hold(store: Store, name: str) -> Iterator[None]:
    """Hold a workspace, its directory made if need be; waits for whoever is at it."""
    fd = _locked(store, name, wait=True)
    assert fd is not None
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def claim_name(store: Store, wanted: str) -> Iterator[str]:
    """Hold ``wanted``, or ``wanted.2``, ``wanted.3``, …: the first name no workspace has and nobody is about to take."""
    for name in names_like(wanted):
        if store.refs.workspace(name) is not None:
            continue
        fd = _locked(store, name, wait=False)
        if fd is None:
            continue
        try:
            if store.refs.workspace(name) is None:
                yield name
                return
        finally:
            os.close(fd)


def _locked(store: Store, name: str, wait: bool) -> int | None:
    """Return a descriptor of the workspace's directory with its lock; None if it is taken and nobody is to wait."""
    while True:
        path = make_workspace_directory(store, name)
        try:
            fd = os.open(path, _DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_still(fd, path):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        os.close(fd)


def _is_still(fd: int, path: bytes) -> bool:
    """Whether the directory is still the one at its path; who held it before may have removed it."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def runs(store: Store, record: WorkspaceRecord) -> bool:
    """Whether a ``run`` that uses the workspace is alive."""
    from layerfs.workspace.supervise import is_in_use

    if is_in_use(os.path.join(workspace_directory(store, record.name), RUN_LOCK)):
        return True
    return record.attached and not record.path and is_alive_run(record)


def is_alive_run(record: WorkspaceRecord) -> bool:
    """Whether the process that made a private workspace is still there."""
    from layerfs.workspace.layercache import boot_id

    if record.boot_id != boot_id() or not record.pid:
        return False
    try:
        with open(f"/proc/{record.pid}/comm", "rb"):
            return True
    except OSError:
        return False


def refuse_running(store: Store, record: WorkspaceRecord) -> None:
    """Raise Busy for a workspace in which a run is going on."""
    if runs(store, record):
        pid = f" (pid {record.pid})" if record.pid else ""
        raise Busy(f"workspace {quote(record.name)} is in use by a run{pid}", "wait for it, or end it")

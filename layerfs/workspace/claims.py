"""Claims: one process at a time attaches, heals or takes away a workspace, and no name is taken twice.

Two mounts of one upper would ruin it, so whoever is about to mount, or to remove what is mounted, holds a kernel lock on
the workspace's own directory; it goes with the process. The record is looked at again once the lock is held.

What somebody has in another mount namespace is not in one's own mount table, and process ids mean nothing there. A living
``run`` is known by a kernel lock, which it has from before its record says so; a mount by the kernel's own mark on its
upper (:func:`~layerfs.workspace.overlay.is_upper_in_use`).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from layerfs.errors import Busy, quote
from layerfs.store.places import make_workspace_directory, upper_directory, workspace_directory
from layerfs.store.store import Store
from layerfs.store.workspacerecords import Engine, WorkspaceRecord, names_like

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


@contextmanager
def using(store: Store, name: str) -> Iterator[None]:
    """Hold the lock of a run, from before its record says that there is one until its command holds it."""
    from layerfs.workspace.supervise import lock_shared

    fd = lock_shared(os.path.join(make_workspace_directory(store, name), RUN_LOCK))
    try:
        yield
    finally:
        os.close(fd)


def runs(store: Store, record: WorkspaceRecord) -> bool:
    """Whether somebody has the workspace where this process may not see it: a run, or a mount in another namespace."""
    from layerfs.workspace.supervise import is_in_use

    if is_in_use(os.path.join(workspace_directory(store, record.name), RUN_LOCK)):
        return True
    return is_mounted_elsewhere(store, record)


def is_mounted_elsewhere(store: Store, record: WorkspaceRecord) -> bool:
    """Whether a workspace is not mounted here, but in a mount namespace that this process cannot look into."""
    from layerfs.workspace import overlay

    if record.engine is not Engine.OVERLAY or not record.attached or not record.path:
        return False
    if overlay.is_mounted(record.path, overlay.source_name(store.format.store_id.hex(), record.name)):
        return False
    return overlay.is_upper_in_use(upper_directory(store, record.name))


def refuse_running(store: Store, record: WorkspaceRecord) -> None:
    """Raise Busy for a workspace in which a run is going on, or that another namespace has mounted."""
    if is_mounted_elsewhere(store, record):
        raise Busy(
            f"workspace {quote(record.name)} is mounted where it cannot be seen from here, in another mount namespace",
            "do it there, or end the processes that have it",
        )
    if runs(store, record):
        pid = f" (pid {record.pid})" if record.pid else ""
        raise Busy(f"workspace {quote(record.name)} is in use by a run{pid}", "wait for it, or end it")

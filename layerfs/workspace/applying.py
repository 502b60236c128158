"""Applying: the mark on a workspace whose files are being changed, and clearing away what a killed change left.

A changed file is written under a temporary name and renamed. A process that dies in between leaves that name, and the
next commit would take it for work. So a mark in the store says which process is at it, held with a kernel lock; a mark
that nobody holds makes the next look at the workspace remove that process's temporary names first.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from layerfs.checkout.writer import temporary_prefix
from layerfs.errors import Busy, quote
from layerfs.store.places import make_workspace_directory, upper_directory, workspace_directory
from layerfs.store.store import Store
from layerfs.store.workspacerecords import Engine, WorkspaceRecord, attached_path

MARK = b"applying"
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def applying(store: Store, record: WorkspaceRecord) -> Iterator[None]:
    """Mark a workspace while its files are changed; a change that fails leaves the mark, as a killed one does."""
    path = os.path.join(make_workspace_directory(store, record.name), MARK)
    fd = os.open(path, _FLAGS | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(
                f"the files of workspace {quote(record.name)} are being changed by another process"
            ) from None
        if store.files.owner is not None:
            os.fchown(fd, *store.files.owner)
        os.pwrite(fd, b"%-20d" % os.getpid(), 0)
        yield
        os.unlink(path)
    finally:
        os.close(fd)


def clear_remains(store: Store, record: WorkspaceRecord) -> None:
    """Remove the temporary names of a process that died while it changed a workspace; does nothing while one lives."""
    path = os.path.join(workspace_directory(store, record.name), MARK)
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        top = _where(store, record)
        if top is None:
            return
        digits = os.pread(fd, 20, 0).strip()
        if digits.isdigit():
            _remove_names(top, temporary_prefix(int(digits)))
        os.unlink(path)
    except BlockingIOError:
        return
    finally:
        os.close(fd)


def _where(store: Store, record: WorkspaceRecord) -> bytes | None:
    """Return where the files are: the path, or the upper of a mount that is gone; None if only others see them."""
    if record.engine is not Engine.OVERLAY:
        return record.path
    from layerfs.workspace import overlay

    path = attached_path(store.format.source, record)
    if overlay.is_mounted(path, overlay.source_name(store.format.store_id.hex(), record.name)):
        return path
    return upper_directory(store, record.name) if record.path else None


def _remove_names(top: bytes, prefix: bytes) -> None:
    for _, _, names, directory in os.fwalk(top, follow_symlinks=False):
        for name in names:
            if name.startswith(prefix):
                os.unlink(name, dir_fd=directory)

"""The reserve: a file of zeros that keeps some room for those who want to free more.

On a full disk even deleting a branch or collecting needs a few kilobytes, for the log and the database. The reserve is
given up the first time that room is missing, so these still work, and made again when there is room.
"""

from __future__ import annotations

import os

from layerfs.durable.atomicfile import Files, storage_errors
from layerfs.errors import NoSpace

RESERVE_FILE = b"reserve"
LARGEST = 2 * 1024 * 1024
SHARE = 16
"""The reserve takes at most one part in so many of the file system."""


def free_bytes(root_fd: int) -> int:
    """Return the room there is for this user."""
    with storage_errors("asking for free space"):
        found = os.fstatvfs(root_fd)
    return found.f_bavail * found.f_frsize


def is_there(root_fd: int) -> bool:
    """Whether the reserve takes room."""
    try:
        return os.stat(RESERVE_FILE, dir_fd=root_fd, follow_symlinks=False).st_size > 0
    except FileNotFoundError:
        return False


def restore(files: Files, root_fd: int) -> bool:
    """Make the reserve if it is not there and there is room for two of it; return whether it is there."""
    with storage_errors("asking for free space"):
        found = os.fstatvfs(root_fd)
    size = min(LARGEST, found.f_blocks * found.f_frsize // SHARE) & ~4095
    if is_there(root_fd):
        return True
    if not size or found.f_bavail * found.f_frsize < 2 * size:
        return False
    descriptor = files.create(root_fd, RESERVE_FILE, exclusive=False)
    try:
        with storage_errors("reserving space"):
            os.posix_fallocate(descriptor, 0, size)
    except NoSpace:
        files.truncate(descriptor, 0)
        return False
    finally:
        os.close(descriptor)
    return True


def release(files: Files, root_fd: int) -> bool:
    """Give the reserve up; return whether that made room. The file stays, so that this needs no room itself."""
    try:
        descriptor = files.open(root_fd, RESERVE_FILE, write=True)
    except FileNotFoundError:
        return False
    try:
        if not os.fstat(descriptor).st_size:
            return False
        files.truncate(descriptor, 0)
        files.sync(descriptor)
        return True
    finally:
        os.close(descriptor)

"""Places of a workspace inside its store: ``workspaces/NAME`` with the upper, the work directory and the stat caches.

A workspace's name becomes one directory name: ``/`` of branch names is written ``%2F``. Directories are made 0700 and
belong to the store's owner; removing one never follows a link out of it and never crosses a mount.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from layerfs.errors import Refused, UsageError, quote
from layerfs.store.layout import MOUNTS, WORKSPACES
from layerfs.store.store import Store

UPPER = b"upper"
GOING = b".going-"
WORK = b"work"
STAT_CACHE = b"stat-cache"
UPPER_CACHE = b"upper-cache"
_ALL_OF_OWNER = 0o700
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def directory_name(workspace: str) -> bytes:
    """Return the directory name of a workspace."""
    name = os.fsencode(workspace.replace("%", "%25").replace("/", "%2F"))
    if name in (b"", b".", b".."):
        raise UsageError(f"not a name for a workspace: {quote(workspace)}")
    return name


def workspace_directory(store: Store, workspace: str) -> bytes:
    """Return the absolute path of a workspace's directory."""
    return os.path.join(store.path, WORKSPACES, directory_name(workspace))


def going_directory(store: Store) -> bytes:
    """Return a new name for a workspace's directory that is about to be removed; no workspace has one like it."""
    return os.path.join(store.path, WORKSPACES, GOING + os.urandom(8).hex().encode("ascii"))


def default_mount_point(store: Store, workspace: str) -> bytes:
    """Return where a workspace is mounted when nobody says otherwise."""
    return os.path.join(store.path, MOUNTS, directory_name(workspace))


def upper_directory(store: Store, workspace: str) -> bytes:
    """Return the path of a workspace's upper."""
    return os.path.join(workspace_directory(store, workspace), UPPER)


def work_directory(store: Store, workspace: str) -> bytes:
    """Return the path of overlayfs's work directory."""
    return os.path.join(workspace_directory(store, workspace), WORK)


def cache_file(store: Store, workspace: str) -> bytes:
    """Return the path of a workspace's stat cache."""
    return os.path.join(workspace_directory(store, workspace), STAT_CACHE)


def upper_cache_file(store: Store, workspace: str) -> bytes:
    """Return the path of a workspace's cache of upper entries."""
    return os.path.join(workspace_directory(store, workspace), UPPER_CACHE)


def make_workspace_directory(store: Store, workspace: str, *inside: bytes) -> bytes:
    """Make a workspace's directory and the named ones in it; return its path. Existing ones are kept."""
    path = workspace_directory(store, workspace)
    for directory in (path, *(os.path.join(path, name) for name in inside)):
        try:
            store.files.make_directory(directory)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(directory).st_mode):
                raise Refused(f"{quote(directory)} is not a directory") from None
    return path


def remove_empty(path: bytes) -> bool:
    """Remove the directory of a workspace; return False if files or a mount are in it, which are somebody's."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EBUSY):
            raise
        return False
    return True


def remove_tree(path: bytes) -> None:
    """Remove a directory of the store and all it holds; never follows a link, never leaves its file system."""
    try:
        fd = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return
    try:
        empty_directory(fd)
    finally:
        os.close(fd)
    os.rmdir(path)


def empty_directory(fd: int) -> None:
    """Remove all that an open directory holds, in the same way."""
    _empty(fd, os.fstat(fd).st_dev)


def _empty(fd: int, device: int) -> None:
    with os.scandir(fd) as entries:
        names = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in names:
        if not is_directory:
            os.unlink(name, dir_fd=fd)
            continue
        inner = _open_for_removal(fd, name)
        try:
            if os.fstat(inner).st_dev != device:
                raise Refused(f"{quote(name)} is a mount point; nothing on it is removed", "unmount it first")
            _empty(inner, device)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=fd)


def _open_for_removal(fd: int, name: bytes) -> int:
    try:
        inner = os.open(name, _DIRECTORY, dir_fd=fd)
    except PermissionError:
        os.chmod(name, _ALL_OF_OWNER, dir_fd=fd)
        inner = os.open(name, _DIRECTORY, dir_fd=fd)
    if os.geteuid() and os.fstat(inner).st_mode & _ALL_OF_OWNER != _ALL_OF_OWNER:
        with suppress(PermissionError):  # somebody else's: perhaps it is empty
            os.fchmod(inner, _ALL_OF_OWNER)
    return inner

"""Targets: the directory that a state is written into, and the directories below it.

Owns the rule that nothing is ever written outside of a target: every directory is opened name by name relative to the
one above it, without following links, and a component that is a symlink stops the operation. What is written is
elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict

from layerfs.errors import Refused, quote
from layerfs.objects.environment import path_key, split

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PRIVATE_DIRECTORY = 0o700
KEPT_OPEN = 128


def named(error: OSError, path: bytes) -> OSError:
    """Return the same error saying which path of the state it was about."""
    return OSError(error.errno, error.strerror, path)


class OpenDirectory:
    """A directory below an open one, reached name by name without following a link; a context manager of its fd."""

    def __init__(self, top: int, path: bytes) -> None:
        self._top = top
        self._path = path
        self._fd = -1

    def __enter__(self) -> int:
        fd = os.open(b".", DIRECTORY, dir_fd=self._top)
        try:
            for name in path_key(self._path):
                inner = os.open(name, DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = inner
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise Refused(
                    f"{quote(self._path)} leads through something that is not a directory",
                    "layerfs writes through no symbolic link; move it away and try again",
                ) from None
            raise
        self._fd = fd
        return fd

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)


class OpenDirectories:
    """Directories below a target, kept open while files are written into them; a context manager."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def __enter__(self) -> OpenDirectories:
        return self

    def __exit__(self, *exc: object) -> None:
        for fd in self._open.values():
            os.close(fd)

    def get(self, path: bytes) -> int:
        """Return a descriptor of a directory, good until the next call."""
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
            return fd
        parent, name = split(path)
        if path:
            fd = _open_real(name, self.get(parent), path)
        else:
            fd = os.open(b".", DIRECTORY, dir_fd=self._target)
        self._open[path] = fd
        if len(self._open) > KEPT_OPEN:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)
        return fd


def _open_real(name: bytes, directory: int, path: bytes) -> int:
    try:
        return os.open(name, DIRECTORY, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Refused(
                f"{quote(path)} is no directory any more", "leave the target alone while it is written"
            ) from None
        raise


def prepare_target(path: bytes) -> bool:
    """Make ``path`` a directory to check out into and return whether it is new.

    One that holds anything is refused, and so is a symlink.
    """
    try:
        os.mkdir(path, PRIVATE_DIRECTORY)
    except FileExistsError:
        refuse_unless_empty(path, "name a new or an empty directory")
        return False
    return True


def open_target(path: bytes) -> tuple[int, bool]:
    """Make ``path`` a directory to check out into; return it open, and whether it is new.

    What was opened is looked at again: somebody may have put another directory there meanwhile, and whoever fails to
    fill a target empties it.
    """
    new = prepare_target(path)
    directory = os.open(path, DIRECTORY)
    with os.scandir(directory) as entries:
        is_empty = next(entries, None) is None
    if not is_empty:
        os.close(directory)
        raise Refused(f"{quote(path)} is not empty", "name a new or an empty directory")
    return directory, new


def refuse_unless_empty(path: bytes, hint: str) -> None:
    """Refuse what is at ``path`` unless it is an empty directory; ``hint`` says what to do about files in it."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise Refused(f"{quote(path)} is not a directory", "name a new or an empty directory")
    with os.scandir(path) as entries:
        if next(entries, None) is not None:
            raise Refused(f"{quote(path)} is not empty", hint)

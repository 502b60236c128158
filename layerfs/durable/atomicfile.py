"""Durable files: the one place that creates, appends, syncs, renames and removes files of a store.

Owns the system calls behind every promise of durability, through one class, :class:`Files`, whose methods are relative to
an open directory and never follow a symbolic link in the last component. A test replaces the object by a subclass that
fails the n-th call or drops what was never synced; nothing else in layerfs calls ``fsync`` or ``rename`` on a store.

Invariants: a file made here is 0600 and a directory 0700; when root works on somebody's store it belongs to the store's
owner; :meth:`Files.replace` leaves the old content or the new one, never a mixture; an ``OSError`` leaves as NoSpace or
StoreIoFailed, except FileNotFoundError and FileExistsError, which callers decide on. After a failed sync nothing is
retried: the kernel may already have dropped the dirty pages, so the caller must treat the bytes as lost.

Reading pack contents is elsewhere (``objects/packs``), and SQLite's own files are SQLite's (``metadb``).
"""

from __future__ import annotations

import errno
import fcntl
import os

from layerfs.errors import LayerfsError, NoSpace, StoreIoFailed, quote

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
NEW = b".new-"
"""How names of files begin that are about to replace others."""

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def storage_error(error: OSError, doing: str) -> LayerfsError:
    """Return the layerfs error for a failed system call on a store; the caller raises it."""
    if error.errno in NO_SPACE:
        return NoSpace(f"no space left while {doing}", "free some space and try again; nothing was published")
    return StoreIoFailed(f"i/o error while {doing}: {(error.strerror or str(error)).lower()}")


class storage_errors:
    """Turn an OSError of the body into NoSpace or StoreIoFailed; a missing or existing file passes through.

    Written out as a class: it stands around every system call, and a generator would cost as much as the call.
    """

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, (FileNotFoundError, FileExistsError)):
            raise storage_error(error, self._doing) from error


class Files:
    """The system calls of a store. ``owner`` is (uid, gid) when files must be given to somebody else."""

    def __init__(self, owner: tuple[int, int] | None = None, durable: bool = True) -> None:
        self.owner = owner
        self.durable = durable

    def open_directory(self, path: bytes, dir_fd: int | None = None) -> int:
        """Open a directory for the calls below; its last component must not be a symbolic link."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with storage_errors(f"opening directory {quote(path)}"):
            return os.open(path, flags, dir_fd=dir_fd)

    def make_directory(self, path: bytes, dir_fd: int | None = None) -> None:
        """Create a 0700 directory whatever the umask."""
        with storage_errors(f"creating directory {quote(path)}"):
            os.mkdir(path, DIRECTORY_MODE, dir_fd=dir_fd)
            descriptor = self.open_directory(path, dir_fd)
            try:
                os.fchmod(descriptor, DIRECTORY_MODE)
                if self.owner is not None:
                    os.fchown(descriptor, *self.owner)
            finally:
                os.close(descriptor)

    def create(self, dir_fd: int, name: bytes, exclusive: bool = True) -> int:
        """Create a file for reading and writing; without ``exclusive`` an existing one is opened as it is."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_EXCL if exclusive else 0)
        with storage_errors(f"creating {quote(name)}"):
            descriptor = os.open(name, flags, FILE_MODE, dir_fd=dir_fd)
            if self.owner is not None:
                os.fchown(descriptor, *self.owner)
            return descriptor

    def create_locked(self, dir_fd: int, prefix: bytes) -> tuple[bytes, int]:
        """Create a file with a new name that begins so; return name and descriptor.

        It is locked as long as the descriptor is open, so that a sweep can tell what a dead process left,
        whatever process ids mean to it.
        """
        while True:
            name = prefix + b"%d-" % os.getpid() + os.urandom(6).hex().encode("ascii")
            descriptor = self.create(dir_fd, name)
            try:
                lock_file(descriptor, wait=True)
                if os.fstat(descriptor).st_nlink:
                    return name, descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def open(self, dir_fd: int, name: bytes, write: bool = False) -> int:
        """Open an existing file."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
        with storage_errors(f"opening {quote(name)}"):
            return os.open(name, flags, dir_fd=dir_fd)

    def write(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of ``data`` at ``offset``."""
        with storage_errors("writing to the store"):
            done = os.pwrite(descriptor, data, offset)
            if done < len(data):
                view = memoryview(data)
                while done < len(view):
                    done += os.pwrite(descriptor, view[done:], offset + done)

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut a file to ``length``."""
        with storage_errors("truncating a file of the store"):
            os.ftruncate(descriptor, length)

    def sync(self, descriptor: int) -> None:
        """Make a file's content and length durable (nothing in a disposable store)."""
        if self.durable:
            with storage_errors("syncing a file of the store"):
                os.fdatasync(descriptor)

    def sync_directory(self, dir_fd: int) -> None:
        """Make names in a directory durable (nothing in a disposable store)."""
        if self.durable:
            with storage_errors("syncing a directory of the store"):
                os.fsync(dir_fd)

    def rename(self, dir_fd: int, old: bytes, new: bytes) -> None:
        """Rename within a directory, replacing."""
        with storage_errors(f"renaming {quote(old)}"):
            os.rename(old, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def rename_new(self, dir_fd: int, old: bytes, new: bytes) -> None:
        """Rename within a directory, never replacing: FileExistsError when the new name is taken."""
        with storage_errors(f"renaming {quote(old)}"):
            os.link(old, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
            os.unlink(old, dir_fd=dir_fd)

    def remove(self, dir_fd: int, name: bytes) -> None:
        """Remove a file."""
        with storage_errors(f"removing {quote(name)}"):
            os.unlink(name, dir_fd=dir_fd)

    def replace(self, dir_fd: int, name: bytes, data: bytes | bytearray) -> None:
        """Set a small file's whole content, durably: old or new after any crash."""
        temporary, descriptor = self.create_locked(dir_fd, NEW + name + b"-")
        try:
            self.write(descriptor, data, 0)
            self.sync(descriptor)
            self.rename(dir_fd, temporary, name)
        except BaseException:
            with storage_errors("removing a temporary file"):
                os.unlink(temporary, dir_fd=dir_fd)
            raise
        finally:
            os.close(descriptor)
        self.sync_directory(dir_fd)

    def read(self, dir_fd: int, name: bytes, limit: int) -> bytes:
        """Read a small file; one longer than ``limit`` is refused, not read."""
        descriptor = self.open(dir_fd, name)
        try:
            if os.fstat(descriptor).st_size > limit:
                raise StoreIoFailed(f"file is too long: {quote(name)}")
            with storage_errors(f"reading {quote(name)}"):
                return os.read(descriptor, limit)
        finally:
            os.close(descriptor)


def lock_file(descriptor: int, wait: bool) -> bool:
    """Take the kernel's exclusive lock on an open file; without ``wait`` return False when somebody holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        raise storage_error(error, "locking a file of the store") from error
    return True


def unlock_file(descriptor: int) -> None:
    """Let go of the lock that :func:`lock_file` took; the file stays open."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError as error:
        raise storage_error(error, "unlocking a file of the store") from error


def sweep_new(files: Files, dir_fd: int) -> None:
    """Remove what processes that died in :meth:`Files.replace` left in a directory."""
    for entry in os.listdir(dir_fd):
        name = os.fsencode(entry)
        if not name.startswith(NEW):
            continue
        try:
            descriptor = files.open(dir_fd, name)
        except FileNotFoundError:
            continue
        try:
            if lock_file(descriptor, wait=False):
                files.remove(dir_fd, name)
        except FileNotFoundError:
            continue
        finally:
            os.close(descriptor)

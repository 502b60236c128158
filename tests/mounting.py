"""Shared ground of the workspace tests: a private mount namespace, random operations, a plain capture to compare with.

The capture walks what a mount shows, stats and reads everything, and knows nothing of overlays: it is the judge of the
upper reader. Content ids are BLAKE3 of the whole content, which is all the trees need.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from layerfs.objects.entry import Entry, EntryKind, device_ref
from layerfs.objects.environment import edit_paths, walk
from layerfs.objects.memory import MemoryObjects
from layerfs.objects.trees import build_tree
from layerfs.workspace import kernel
from layerfs.workspace.overlay import Layers, mount_overlay, unmount
from layerfs.workspace.upper import Content, UpperScan, scan_upper
from layerfs.workspace.uppercache import UpperCache

SOURCE = b"layerfs:test:ws"
FAR_FUTURE = 1 << 62

_KINDS = {
    stat.S_IFREG: EntryKind.FILE,
    stat.S_IFDIR: EntryKind.DIR,
    stat.S_IFLNK: EntryKind.SYMLINK,
    stat.S_IFIFO: EntryKind.FIFO,
    stat.S_IFSOCK: EntryKind.SOCKET,
    stat.S_IFCHR: EntryKind.CHARDEV,
    stat.S_IFBLK: EntryKind.BLOCKDEV,
}

_entered = False


def enter_private_namespace() -> None:
    """Move this process, once, to a mount namespace that ends with it, so that no test can leave a mount behind."""
    global _entered
    if not _entered:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.make_private()
        _entered = True


def content_ref(data: bytes) -> bytes:
    return blake3(data).digest() if data else b""


def xattrs_of(path: bytes) -> tuple[tuple[bytes, bytes], ...]:
    names = sorted(os.fsencode(name) for name in os.listxattr(path, follow_symlinks=False))
    return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)


def capture(store: MemoryObjects, top: bytes) -> Entry:
    """Make the tree of what is at ``top``, in the plainest possible way."""
    names: dict[tuple[int, int], list[bytes]] = {}
    for directory, dirs, files in os.walk(top):
        for name in dirs + files:
            seen = os.lstat(os.path.join(directory, name))
            if not stat.S_ISDIR(seen.st_mode):
                names.setdefault((seen.st_dev, seen.st_ino), []).append(os.path.join(directory, name))
    groups = {
        path: int.from_bytes(blake3(min(paths)).digest(8), "little")
        for paths in names.values()
        if len(paths) > 1
        for path in paths
    }
    return _capture(store, top, groups)


def _capture(store: MemoryObjects, path: bytes, groups: Mapping[bytes, int]) -> Entry:
    seen = os.lstat(path)
    kind = _KINDS[stat.S_IFMT(seen.st_mode)]
    ref, size = b"", 0
    if kind is EntryKind.DIR:
        below = ((name, _capture(store, os.path.join(path, name), groups)) for name in sorted(os.listdir(path)))
        ref = build_tree(store, list(below))
    elif kind is EntryKind.FILE:
        data = Path(os.fsdecode(path)).read_bytes()
        ref, size = content_ref(data), len(data)
    elif kind is EntryKind.SYMLINK:
        ref = os.readlink(path)
    elif kind in (EntryKind.CHARDEV, EntryKind.BLOCKDEV):
        ref = device_ref(os.major(seen.st_rdev), os.minor(seen.st_rdev))
    mode = stat.S_IMODE(seen.st_mode)
    group = groups.get(path, 0)
    return Entry(kind, mode, seen.st_uid, seen.st_gid, seen.st_mtime_ns, size, ref, xattrs_of(path), group)


def flat(store: MemoryObjects, root: Entry) -> dict[bytes, Entry]:
    """Return path → entry without tree ids; link groups become the set of names that share the file."""
    entries = dict(walk(store, root))
    members: dict[int, list[bytes]] = {}
    for path, entry in entries.items():
        if entry.link_group:
            members.setdefault(entry.link_group, []).append(path)
    canonical = {group: hash(tuple(sorted(paths))) if len(paths) > 1 else 0 for group, paths in members.items()}
    return {
        path: entry._replace(
            ref=b"" if entry.kind is EntryKind.DIR else entry.ref, link_group=canonical.get(entry.link_group, 0)
        )
        for path, entry in entries.items()
    }


class Stand(NamedTuple):
    """A directory with lowers, an upper, a work directory and a mount point, named by number."""

    top: bytes

    def path(self, name: bytes) -> bytes:
        path = os.path.join(self.top, name)
        os.makedirs(path, exist_ok=True)
        return path

    @property
    def target(self) -> bytes:
        return self.path(b"merged")


def copy_root_attributes(source: bytes, target: bytes) -> None:
    seen = os.stat(source)
    os.chown(target, seen.st_uid, seen.st_gid)
    for name, value in xattrs_of(source):
        if not name.startswith(b"trusted.overlay."):
            os.setxattr(target, name, value)
    os.chmod(target, stat.S_IMODE(seen.st_mode))
    os.utime(target, ns=(seen.st_mtime_ns, seen.st_mtime_ns))


@contextlib.contextmanager
def mounted(layers: Layers, target: bytes, *, volatile: bool = True) -> Iterator[None]:
    mount_overlay(layers, target, source=SOURCE, volatile=volatile)
    try:
        yield
    finally:
        unmount(target, SOURCE)


def read_upper(
    store: MemoryObjects, base: Entry, upper: bytes, cache: UpperCache | None = None, started_ns: int = FAR_FUTURE
) -> tuple[Entry, UpperScan, int]:
    """Return the tree the upper makes of the base, the settled scan, and how many files had to be read."""
    fd = os.open(upper, os.O_RDONLY | os.O_DIRECTORY)
    try:
        scan = scan_upper(fd, store, base, started_ns=started_ns, cache=cache)
    finally:
        os.close(fd)
    contents: dict[bytes, Content] = {}
    for entry in scan.pending():
        assert entry.row is not None
        data = Path(os.fsdecode(os.path.join(upper, entry.path))).read_bytes()
        contents[entry.path] = Content(content_ref(data), len(data), entry.row.mtime_ns, entry.row.ctime_ns)
    settled = scan.settle(contents)
    return edit_paths(store, base, settled.edits()), settled, len(contents)


RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)


def renameat2(old: bytes, new: bytes, flags: int) -> None:
    if _libc.renameat2(-100, old, -100, new, flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), old)


class Pick(NamedTuple):
    """An existing path: the n-th below the top, counted round."""

    number: int


class New(NamedTuple):
    """A name, perhaps taken, in the n-th existing directory."""

    number: int
    name: bytes


Operation = tuple[object, ...]


def apply_operations(top: bytes, operations: list[Operation]) -> int:
    """Do each operation below ``top``; what the file system refuses is left undone. Returns how many were done."""
    done = 0
    for name, *arguments in operations:
        try:
            ACTIONS[str(name)](*(_resolve(top, argument) for argument in arguments))
        except OSError:
            continue
        done += 1
    return done


def _resolve(top: bytes, argument: object) -> object:
    if not isinstance(argument, Pick | New):
        return argument
    dirs, others = [], []
    for directory, below, files in os.walk(top):
        dirs.append(directory)
        paths = (os.path.join(directory, name) for name in files + below)
        others += [path for path in paths if os.path.islink(path) or not os.path.isdir(path)]
    dirs.sort()
    if isinstance(argument, New):
        return os.path.join(dirs[argument.number % len(dirs)], argument.name)
    paths = sorted(dirs[1:] + others) or [os.path.join(top, b"missing")]
    return paths[argument.number % len(paths)]


def _write(path: bytes, data: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(path, flags, 0o644), "wb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.write(data.encode())


def _append(path: bytes, data: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK), "ab") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.write(data.encode())


def _truncate(path: bytes, size: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.ftruncate(fd, size)
    finally:
        os.close(fd)


def _open_truncating(path: bytes) -> None:
    if stat.S_ISREG(os.lstat(path).st_mode):
        os.close(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW))


def _write_same(path: bytes) -> None:
    """Copy a file up without changing it, mtime included."""
    seen = os.lstat(path)
    if stat.S_ISREG(seen.st_mode):
        os.close(os.open(path, os.O_RDWR | os.O_NOFOLLOW))
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def _rmtree(path: bytes) -> None:
    os.listdir(path)  # raises for what is no directory; rmtree itself would open a FIFO and wait
    shutil.rmtree(path)


def _recreate(path: bytes) -> None:
    """Delete a directory and make it again with the same files, as ``npm ci`` does."""
    files = {}
    for name in os.listdir(path):
        inside = os.path.join(path, name)
        seen = os.lstat(inside)
        if stat.S_ISREG(seen.st_mode):
            files[inside] = (Path(os.fsdecode(inside)).read_bytes(), seen)
    shutil.rmtree(path)
    os.mkdir(path)
    for inside, (data, seen) in files.items():
        Path(os.fsdecode(inside)).write_bytes(data)
        os.utime(inside, ns=(seen.st_mtime_ns, seen.st_mtime_ns))


def _set_xattr(path: bytes, name: str, value: str) -> None:
    os.setxattr(path, name, value.encode(), follow_symlinks=False)


ACTIONS: dict[str, Callable[..., object]] = {
    "write": _write,
    "append": _append,
    "truncate": _truncate,
    "open_truncating": _open_truncating,
    "write_same": _write_same,
    "unlink": os.unlink,
    "rename": os.rename,
    "exchange": lambda old, new: renameat2(old, new, RENAME_EXCHANGE),
    "noreplace": lambda old, new: renameat2(old, new, RENAME_NOREPLACE),
    "mkdir": os.mkdir,
    "rmdir": os.rmdir,
    "rmtree": _rmtree,
    "recreate": _recreate,
    "chmod": lambda path, mode: None if os.path.islink(path) else os.chmod(path, mode),
    "chown": lambda path, uid: os.chown(path, uid, uid, follow_symlinks=False),
    "utime": lambda path, ns: os.utime(path, ns=(ns, ns), follow_symlinks=False),
    "setxattr": _set_xattr,
    "removexattr": lambda path, name: os.removexattr(path, name, follow_symlinks=False),
    "symlink": os.symlink,
    "link": lambda old, new: os.link(old, new, follow_symlinks=False),
    "mkfifo": os.mkfifo,
    "mknod": lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3)),
}

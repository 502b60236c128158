"""System calls that Python has no function for: mounts, namespaces, and a few around them.

Owns every ``ctypes`` call of the project. Each function is one system call with typed arguments; a refusal is always an
OSError with the call's name, errno and path, never a return value to forget. The calls added to Linux since 5.2 have
one number on every architecture and go through ``syscall(2)``; the older ones go through the C library. What to mount
and in which order is decided in ``overlay`` and ``namespace``.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from typing import Any

MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

MNT_DETACH = 0x2
UMOUNT_NOFOLLOW = 0x8

CLONE_NEWNS = 0x20000
CLONE_NEWUSER = 0x10000000

FSOPEN_CLOEXEC = 0x1
FSCONFIG_SET_FLAG = 0
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
FSMOUNT_CLOEXEC = 0x1
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
OPEN_TREE_CLONE = 0x1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
AT_RECURSIVE = 0x8000
AT_FDCWD = -100

RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

SFD_CLOEXEC = os.O_CLOEXEC
SI_KERNEL = 0x80
"""A signal's code when the kernel itself sent it: what a terminal sends comes so, and reaches the whole process group."""

SYNC_FILE_RANGE_WAIT_BEFORE = 1
SYNC_FILE_RANGE_WRITE = 2

_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_FSOPEN = 430
_SYS_FSCONFIG = 431
_SYS_FSMOUNT = 432
_SYS_OPENAT2 = 437

MOUNT_DATA_LIMIT = os.sysconf("SC_PAGE_SIZE") - 1
"""What mount(2) takes as options, in bytes; the kernel silently cuts a longer string, so it must never be given one."""

FSCONFIG_STRING_LIMIT = 255
"""What fsconfig(2) takes as one value, in bytes."""

_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _failed(call: str, path: bytes | None = None, detail: str = "") -> OSError:
    number = ctypes.get_errno()
    text = f"{call}: {os.strerror(number)}" + (f" ({detail})" if detail else "")
    return OSError(number, text, path) if path is not None else OSError(number, text)


def _syscall(call: str, number: int, *args: object, path: bytes | None = None) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *args))
    if result < 0:
        raise _failed(call, path)
    return result


def mount(source: bytes, target: bytes, fstype: bytes, flags: int = 0, data: bytes = b"") -> None:
    """mount(2); ``data`` longer than the kernel reads is refused here, because the kernel would cut it silently."""
    if len(data) > MOUNT_DATA_LIMIT:
        raise ValueError("mount options do not fit into one page")
    if _libc.mount(source, target, fstype, ctypes.c_ulong(flags), data):
        raise _failed("mount", target)


def umount(target: bytes, flags: int = UMOUNT_NOFOLLOW) -> None:
    """umount2(2), never following a symlink unless the flags say otherwise."""
    if _libc.umount2(target, ctypes.c_int(flags)):
        raise _failed("umount", target)


def unshare(flags: int) -> None:
    """unshare(2) of the calling thread."""
    if _libc.unshare(ctypes.c_int(flags)):
        raise _failed("unshare")


def setns(fd: int, kind: int) -> None:
    """setns(2): enter the namespace behind ``fd``; ``kind`` is the CLONE_NEW* flag it must be of."""
    if _libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)):
        raise _failed("setns")


def make_private() -> None:
    """Stop every mount of this mount namespace from exchanging mounts with others."""
    mount(b"none", b"/", b"", MS_REC | MS_PRIVATE)


def syncfs(fd: int) -> None:
    """syncfs(2): write back the whole file system that holds ``fd``."""
    if _libc.syncfs(ctypes.c_int(fd)):
        raise _failed("syncfs")


def set_parent_death_signal(number: int) -> None:
    """Have the kernel send this process ``number`` when the *thread* that forked it ends; 0 switches it off."""
    if _libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0):
        raise _failed("prctl")


def signalfd(numbers: Iterable[int]) -> int:
    """signalfd(2): return a descriptor from which the given signals, which the caller has blocked, are read."""
    mask = sum(1 << (number - 1) for number in numbers)
    buffer = (ctypes.c_uint64 * 16)(mask)
    fd = int(_libc.signalfd(ctypes.c_int(-1), ctypes.byref(buffer), ctypes.c_int(SFD_CLOEXEC)))
    if fd < 0:
        raise _failed("signalfd")
    return fd


_SIGNAL_INFO = struct.Struct("=IiiI112x")


def read_signal(fd: int) -> tuple[int, int]:
    """Read one signal from a signalfd; return its number and its code (:data:`SI_KERNEL`, or 0 for kill(2))."""
    number, _, code, _ = _SIGNAL_INFO.unpack(os.read(fd, _SIGNAL_INFO.size))
    return number, code


def fsopen(fstype: bytes) -> int:
    """fsopen(2): return the descriptor of a new, unconfigured file system."""
    return _syscall("fsopen", _SYS_FSOPEN, ctypes.c_char_p(fstype), ctypes.c_uint(FSOPEN_CLOEXEC))


def fsconfig_string(fd: int, key: bytes, value: bytes) -> None:
    """Give a configured file system one ``key=value``; the error carries the kernel's own words."""
    if len(value) > FSCONFIG_STRING_LIMIT:
        raise ValueError("a mount parameter is too long")
    _fsconfig(fd, FSCONFIG_SET_STRING, ctypes.c_char_p(key), ctypes.c_char_p(value))


def fsconfig_flag(fd: int, key: bytes) -> None:
    """Give a configured file system a parameter that has no value."""
    _fsconfig(fd, FSCONFIG_SET_FLAG, ctypes.c_char_p(key), None)


def fsconfig_create(fd: int) -> None:
    """Create the file system from what was configured."""
    _fsconfig(fd, FSCONFIG_CMD_CREATE, None, None)


def _fsconfig(fd: int, command: int, key: object, value: object) -> None:
    if (
        _libc.syscall(ctypes.c_long(_SYS_FSCONFIG), ctypes.c_int(fd), ctypes.c_uint(command), key, value, 0)
        < 0
    ):
        number = ctypes.get_errno()
        words = _log_of(fd)
        raise OSError(number, "fsconfig: " + os.strerror(number) + (f" ({words})" if words else ""))


def _log_of(fd: int) -> str:
    """Return what the kernel wrote about the last failure; it keeps one message per read."""
    lines: list[str] = []
    while True:
        try:
            line = os.read(fd, 4096)
        except OSError:
            break
        if not line:
            break
        lines.append(line.decode("utf-8", "replace").strip().removeprefix("e overlay: ").removeprefix("e "))
    return "; ".join(lines)


def fsmount(fd: int) -> int:
    """fsmount(2): return the descriptor of a detached mount of a created file system."""
    return _syscall(
        "fsmount", _SYS_FSMOUNT, ctypes.c_int(fd), ctypes.c_uint(FSMOUNT_CLOEXEC), ctypes.c_uint(0)
    )


def open_tree_clone(path: bytes) -> int:
    """Return the descriptor of a detached copy of the mount at ``path`` with all that is mounted below it."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE
    return _syscall(
        "open_tree",
        _SYS_OPEN_TREE,
        ctypes.c_int(AT_FDCWD),
        ctypes.c_char_p(path),
        ctypes.c_uint(flags),
        path=path,
    )


def move_mount(mount_fd: int, target_fd: int) -> None:
    """Attach a detached mount at the directory ``target_fd`` is open on, whatever its path says by now."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    empty = ctypes.c_char_p(b"")
    _syscall(
        "move_mount",
        _SYS_MOVE_MOUNT,
        ctypes.c_int(mount_fd),
        empty,
        ctypes.c_int(target_fd),
        empty,
        ctypes.c_uint(flags),
    )


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(directory: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open ``path`` below a directory without following any symlink and without ever leaving the directory."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    name = ctypes.c_char_p(path)
    return _syscall(
        "openat2", _SYS_OPENAT2, ctypes.c_int(directory), name, ctypes.byref(how), size, path=path
    )

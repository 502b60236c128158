"""A directory with every kind of entry and every oddity that captures lose, and a faithful description of one.

Used by the tests of capture, checkout, workspaces and the whole product. :func:`describe` walks a directory with plain
system calls and shares no code with layerfs, so that the two cannot be wrong together.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
from pathlib import Path

USER_CAPABILITY = struct.pack("<IIIII", 0x02000000 | 1, 1 << 13, 0, 0, 0)
ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, permissions, who)
    for tag, permissions, who in (
        (1, 7, 0xFFFFFFFF),
        (2, 5, 12345),
        (4, 5, 0xFFFFFFFF),
        (16, 7, 0xFFFFFFFF),
        (32, 0, 0xFFFFFFFF),
    )
)


def build_odd_tree(top: Path, *, root: bool) -> None:
    """Create the tree below ``top`` (which exists and is empty); ``root`` adds what only root can make."""
    base = os.fsencode(top)

    def write(name: bytes, data: bytes, mode: int = 0o644) -> bytes:
        path = os.path.join(base, name)
        with open(path, "wb") as file:
            file.write(data)
        os.chmod(path, mode)
        return path

    for name in (b"dir", b"dir/deep", b"dir/deep/er", b"empty", b"\xfe", b"sticky", b"closed"):
        os.mkdir(os.path.join(base, name))
    write(b"plain", b"hello\n")
    write(b"executable", b"#!/bin/sh\nexit 0\n", 0o755)
    write(b"empty file", b"")
    write(b"a\xff", b"not utf-8\n")
    write(b"line\nbreak", b"newline in name\n")
    write(b"tab\there", b"tab\n")
    write(b" leading and trailing ", b"spaces\n")
    write(b"-rf", b"dash\n")
    write(b"'quote\"", b"quotes\n")
    write(b"n" * 255, b"longest name\n")
    write(b"\xfe/inner", b"in a directory that is not utf-8\n")
    write(b"dir/deep/er/file", b"deep\n")
    write(b"setuid", b"x", 0o6755)
    write(b"exactly 128k", os.urandom(128 * 1024))
    write(b"just below", os.urandom(128 * 1024 - 1))
    write(b"large", os.urandom(3_000_017))
    write(b"zeros", bytes(300_000))
    first = write(b"link one", b"three names\n")
    os.link(first, os.path.join(base, b"link two"))
    os.link(first, os.path.join(base, b"dir/link three"))
    with open(os.path.join(base, b"sparse"), "wb") as file:
        file.seek(40 * 1024 * 1024)
        file.write(os.urandom(100_000))
        file.truncate(200 * 1024 * 1024 + 1)
    with open(os.path.join(base, b"small sparse"), "wb") as file:
        file.truncate(100_000)
    os.symlink(b"plain", os.path.join(base, b"symlink"))
    os.symlink(b"/nowhere/\xff\n", os.path.join(base, b"dangling"))
    os.symlink(b"t" * 4000, os.path.join(base, b"long target"))
    os.mkfifo(os.path.join(base, b"fifo"), 0o640)
    listener = socket.socket(socket.AF_UNIX)
    here = os.open(".", os.O_RDONLY)
    os.chdir(base)
    listener.bind("socket")
    os.fchdir(here)
    os.close(here)
    listener.close()
    os.setxattr(os.path.join(base, b"plain"), b"user.note", b"\0binary\xff")
    os.setxattr(os.path.join(base, b"dir"), b"user.empty", b"")
    os.setxattr(os.path.join(base, b"dir/deep"), b"user.overlay.opaque", b"y")
    os.setxattr(os.path.join(base, b"plain"), b"system.posix_acl_access", ACL)
    os.setxattr(os.path.join(base, b"dir"), b"system.posix_acl_default", ACL)
    os.chmod(os.path.join(base, b"sticky"), 0o1777)
    write(b"closed/file", b"inside a closed directory\n")
    if root:
        write(b"unreadable", b"mode 000\n", 0o000)
        os.mknod(os.path.join(base, b"null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(os.path.join(base, b"block"), stat.S_IFBLK | 0o600, os.makedev(7, 200))
        os.lchown(os.path.join(base, b"symlink"), 1234, 5678)
        os.chown(os.path.join(base, b"executable"), 1234, 5678)
        path = write(b"capable", b"needs a capability\n", 0o755)
        os.chown(path, 1, 1)
        os.setxattr(path, b"security.capability", USER_CAPABILITY)
        os.setxattr(os.path.join(base, b"plain"), b"trusted.layerfs-test", b"t")
        os.chown(os.path.join(base, b"setuid"), 1, 1)
        os.chmod(os.path.join(base, b"setuid"), 0o6755)
    for number, (directory, names, files) in enumerate(os.walk(base, topdown=False)):
        for offset, name in enumerate(files):
            stamp = 1_500_000_000_123_456_789 + number * 1_000_000_007 + offset
            os.utime(os.path.join(directory, name), ns=(stamp, stamp), follow_symlinks=False)
        for name in names:
            stamp = 1_400_000_000_987_654_321 + number
            os.utime(os.path.join(directory, name), ns=(stamp, stamp), follow_symlinks=False)
    os.utime(os.path.join(base, b"large"), ns=(-5_000_000_001, -5_000_000_001))
    os.chmod(os.path.join(base, b"closed"), 0o555)
    os.utime(os.path.join(base, b"closed"), ns=(77, 77))
    os.utime(base, ns=(1_300_000_000_111_222_333, 1_300_000_000_111_222_333))


def describe(top: Path, *, owners: bool = True, times: bool = True) -> dict[bytes, tuple[object, ...]]:
    """Return everything that must survive, by path: type, mode, owner, time, attributes, links, holes and content."""
    base = os.fsencode(top)
    found: dict[bytes, tuple[object, ...]] = {}
    inodes: dict[tuple[int, int], list[bytes]] = {}

    def visit(path: bytes, relative: bytes) -> None:
        info = os.lstat(path)
        kind = stat.S_IFMT(info.st_mode)
        detail: object = None
        if kind == stat.S_IFREG:
            detail = (info.st_size, _digest(path), _is_sparse(info))
            inodes.setdefault((info.st_dev, info.st_ino), []).append(relative)
        elif kind == stat.S_IFLNK:
            detail = os.readlink(path)
        elif kind in (stat.S_IFCHR, stat.S_IFBLK):
            detail = info.st_rdev
        xattrs = tuple(
            sorted(
                (name, os.getxattr(path, name, follow_symlinks=False))
                for name in os.listxattr(path, follow_symlinks=False)
            )
        )
        found[relative] = (
            kind,
            stat.S_IMODE(info.st_mode),
            (info.st_uid, info.st_gid) if owners else None,
            info.st_mtime_ns if times else None,
            xattrs,
            detail,
        )
        if kind == stat.S_IFDIR:
            for name in sorted(os.listdir(path)):
                visit(os.path.join(path, name), os.path.join(relative, name) if relative else name)

    visit(base, b"")
    for paths in inodes.values():
        for path in paths:
            found[path] += (tuple(sorted(paths)),)
    return found


def _digest(path: bytes) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _is_sparse(info: os.stat_result) -> bool:
    return info.st_size > 1 << 20 and info.st_blocks * 512 < info.st_size // 2

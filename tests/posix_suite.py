"""A suite of file system behaviour: each check does something in a directory and returns what it observed.

It knows nothing of layerfs. :func:`prepare` makes the files that the checks find there (so in a workspace they come from
its base), and :func:`observe` runs every check and returns name → observations, which a test compares between a plain
directory and a workspace. Run as a program it prints them as JSON, for places that only another process can see.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOREPLACE, EXCHANGE = 1, 2
PAST = 1_600_000_000_123_456_789
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
NOBODY = 65534
CAPABILITY = bytes.fromhex("0100000200040000") + bytes(12)
NOT_NAMED = 0xFFFFFFFF
_libc = ctypes.CDLL(None, use_errno=True)

CHECKS: dict[str, Callable[[Path], Any]] = {}


def check(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    CHECKS[function.__name__.replace("_", "-")] = function
    return function


def prepare(top: Path) -> None:
    """Make one directory of files for each check."""
    for name in CHECKS:
        place = top / name
        (place / "dir/inner").mkdir(parents=True)
        (place / "other").mkdir()
        (place / "empty").mkdir()
        (place / "file").write_bytes(b"base content\n" * 1000)
        (place / "small").write_bytes(b"small\n")
        (place / "dir/one").write_bytes(b"one\n")
        (place / "dir/inner/two").write_bytes(b"two\n")
        (place / "link").symlink_to("file")
        (place / "group1").write_bytes(b"linked\n")
        os.link(place / "group1", place / "group2")
        (place / "script").write_text("#!/bin/sh\necho ran\n")
        os.chmod(place / "script", 0o755)
        for file in ("file", "small", "dir/one", "dir", "."):
            os.utime(place / file, ns=(PAST, PAST))
    many = top / "listing-while-deleting/many"
    many.mkdir()
    for number in range(500):
        (many / f"n{number:03}").touch()


def observe(top: Path) -> dict[str, Any]:
    """Run every check below ``top``; an exception nobody expected is an observation too."""
    found: dict[str, Any] = {}
    for name, function in CHECKS.items():
        os.chmod(top / name, 0o755)
        try:
            found[name] = function(top / name)
        except OSError as error:
            found[name] = f"unexpected {errno.errorcode.get(error.errno or 0)}: {error}".replace(str(top), "")
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def outcome(action: Callable[[], object]) -> str:
    """Return the error's name, or ok."""
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def renameat2(old: Path, new: Path, flags: int) -> None:
    if _libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def in_child(work: Callable[[], object]) -> str:
    """Run something in another process; return its outcome."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(writing, outcome(work).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    return text


def as_nobody(work: Callable[[], object]) -> str:
    def become() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        work()

    return in_child(become)


@check
def file_types(p: Path) -> Any:
    os.mkfifo(p / "fifo", 0o640)
    (p / "dangling").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(p)
        server.bind("socket")
        server.listen(1)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("socket")
        os.chdir("/")
    kinds = {n: stat.S_IFMT(os.lstat(p / n).st_mode) for n in ("fifo", "dangling", "socket", "dir", "file", "link")}
    device = outcome(lambda: os.mknod(p / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3)))
    return kinds, device if os.geteuid() == 0 else "", os.readlink(p / "link"), os.path.lexists(p / "dangling")


@check
def fifo_between_processes(p: Path) -> Any:
    os.mkfifo(p / "fifo")
    said = in_child(lambda: None)
    pid = os.fork()
    if not pid:
        (p / "fifo").write_bytes(b"through")
        os._exit(0)
    got = (p / "fifo").read_bytes()
    os.waitpid(pid, 0)
    return said, got.decode()


@check
def permissions(p: Path) -> Any:
    seen = []
    for mode in (0o000, 0o400, 0o755, 0o4755, 0o2755, 0o1777, 0o644):
        os.chmod(p / "file", mode)
        seen.append(stat.S_IMODE(os.stat(p / "file").st_mode))
    old = os.umask(0o027)
    fd = os.open(p / "made", os.O_CREAT | os.O_WRONLY, 0o666)
    os.close(fd)
    os.mkdir(p / "made-dir")
    os.umask(old)
    made = [stat.S_IMODE(os.stat(p / name).st_mode) for name in ("made", "made-dir")]
    os.chmod(p / "small", 0o600)
    os.chmod(p / "dir", 0o700)
    refused = [
        as_nobody((p / "small").read_bytes),
        as_nobody(lambda: os.listdir(p / "dir")),
        as_nobody((p / "new").touch),
        as_nobody(lambda: os.chmod(p / "file", 0o777)),
    ]
    return seen, made, refused if os.geteuid() == 0 else None


@check
def setuid_is_dropped_on_write(p: Path) -> Any:
    os.chmod(p / "file", 0o6777)

    def write() -> None:
        with open(p / "file", "r+b") as file:
            file.write(b"x")

    said = as_nobody(write)
    return said, stat.S_IMODE(os.stat(p / "file").st_mode) if os.geteuid() == 0 else None


@check
def setgid_directory(p: Path) -> Any:
    if os.geteuid() == 0:
        os.chown(p / "dir", -1, 1234)
    os.chmod(p / "dir", 0o2775)
    (p / "dir/inherits").touch()
    (p / "dir/inherits-dir").mkdir()
    group = os.stat(p / "dir").st_gid
    names = ("dir/inherits", "dir/inherits-dir")
    return [(os.stat(p / n).st_gid == group, os.stat(p / n).st_mode & stat.S_ISGID) for n in names]


@check
def sticky_directory(p: Path) -> Any:
    os.chmod(p / "dir", 0o1777)
    os.chmod(p, 0o755)
    said = as_nobody(lambda: os.unlink(p / "dir/one"))
    return said if os.geteuid() == 0 else None


@check
def giving_a_file_away(p: Path) -> Any:
    """Only root may; the error is another where no other users exist."""
    return outcome(lambda: os.chown(p / "file", 1234, -1)) if os.geteuid() else None


@check
def owners(p: Path) -> Any:
    if os.geteuid():
        return None
    os.chown(p / "file", 1234, 4321)
    os.lchown(p / "link", 1, 2)
    file, link = os.stat(p / "file"), os.lstat(p / "link")
    return file.st_uid, file.st_gid, link.st_uid, link.st_gid


@check
def rename_files(p: Path) -> Any:
    return [
        outcome(lambda: os.rename(p / "file", p / "renamed")),
        outcome(lambda: os.rename(p / "small", p / "renamed")),
        (p / "renamed").read_bytes() == b"small\n",
        os.path.exists(p / "file"),
        outcome(lambda: os.rename(p / "missing", p / "x")),
        outcome(lambda: os.rename(p / "renamed", p / "dir")),
        outcome(lambda: os.rename(p / "dir", p / "renamed")),
        outcome(lambda: os.rename(p / "renamed", p / "dir/moved")),
        sorted(os.listdir(p / "dir")),
        outcome(lambda: os.rename(p / "group1", p / "group2")),
        os.path.exists(p / "group2"),
    ]


@check
def rename_of_two_names_of_one_file(p: Path) -> Any:
    """rename(2) of two hard links of one file does nothing; both stay."""
    (p / "a").write_bytes(b"x")
    os.link(p / "a", p / "b")
    os.rename(p / "a", p / "b")
    return os.path.exists(p / "a"), os.path.exists(p / "b")


@check
def rename_of_two_names_of_a_base_file(p: Path) -> Any:
    os.rename(p / "group1", p / "group2")
    return os.path.exists(p / "group1"), os.path.exists(p / "group2")


@check
def rename_noreplace_and_exchange(p: Path) -> Any:
    return [
        outcome(lambda: renameat2(p / "file", p / "small", NOREPLACE)),
        outcome(lambda: renameat2(p / "file", p / "fresh", NOREPLACE)),
        outcome(lambda: renameat2(p / "fresh", p / "small", EXCHANGE)),
        (p / "fresh").read_bytes() == b"small\n",
        outcome(lambda: renameat2(p / "fresh", p / "nowhere", EXCHANGE)),
        outcome(lambda: renameat2(p / "fresh", p / "small", EXCHANGE | NOREPLACE)),
    ]


@check
def rename_new_directory(p: Path) -> Any:
    (p / "new/below").mkdir(parents=True)
    return [
        outcome(lambda: os.rename(p / "new", p / "moved")),
        outcome(lambda: os.rename(p / "moved", p / "moved/below/inside")),
        outcome(lambda: os.rename(p / "moved", p / "empty")),
        outcome(lambda: renameat2(p / "empty", p / "small", EXCHANGE)),
        sorted(os.listdir(p)),
    ]


@check
def rename_base_directory(p: Path) -> Any:
    return [
        outcome(lambda: os.rename(p / "dir", p / "moved")),
        outcome(lambda: os.rename(p / "other", p / "empty")),
    ]


@check
def directory_not_empty(p: Path) -> Any:
    (p / "full").mkdir()
    (p / "full/x").touch()
    (p / "new").mkdir()
    return [
        outcome(lambda: os.rename(p / "new", p / "full")),
        outcome(lambda: os.rename(p / "new", p / "dir")),
        outcome(lambda: os.rmdir(p / "dir")),
        outcome(lambda: os.unlink(p / "dir/one")),
        outcome(lambda: os.unlink(p / "dir/inner/two")),
        outcome(lambda: os.rmdir(p / "dir/inner")),
        outcome(lambda: os.rmdir(p / "dir")),
        outcome(lambda: os.mkdir(p / "dir")),
        os.listdir(p / "dir"),
        outcome(lambda: os.unlink(p / "full")),
        outcome(lambda: os.rmdir(p / "small")),
    ]


@check
def hard_links(p: Path) -> Any:
    os.link(p / "file", p / "twin")
    with open(p / "twin", "r+b") as file:
        file.write(b"WRITTEN")
    one, two = os.stat(p / "file"), os.stat(p / "twin")
    names = [one.st_nlink, two.st_nlink, (p / "file").read_bytes()[:7] == b"WRITTEN"]
    os.unlink(p / "file")
    os.link(p / "link", p / "link-twin", follow_symlinks=False)
    return names, os.stat(p / "twin").st_nlink, os.path.islink(p / "link-twin"), outcome(
        lambda: os.link(p / "dir", p / "dir-twin")
    )


@check
def inode_number_of_a_new_name_of_a_base_file(p: Path) -> Any:
    os.link(p / "file", p / "twin")
    return os.stat(p / "file").st_ino == os.stat(p / "twin").st_ino


@check
def inode_number_of_a_new_name_of_a_new_file(p: Path) -> Any:
    (p / "new").touch()
    os.link(p / "new", p / "twin")
    return os.stat(p / "new").st_ino == os.stat(p / "twin").st_ino


@check
def hard_link_group_of_the_base(p: Path) -> Any:
    before = os.stat(p / "group1").st_nlink, os.stat(p / "group1").st_ino == os.stat(p / "group2").st_ino
    (p / "group1").write_bytes(b"changed\n")
    return before, (p / "group2").read_bytes().decode(), os.stat(p / "group2").st_nlink


@check
def open_but_unlinked(p: Path) -> Any:
    fd = os.open(p / "file", os.O_RDWR)
    reader = os.open(p / "small", os.O_RDONLY)
    os.unlink(p / "file")
    os.unlink(p / "small")
    os.pwrite(fd, b"still here", 0)
    seen = [os.pread(fd, 10, 0).decode(), os.fstat(fd).st_nlink, os.fstat(fd).st_size, os.read(reader, 99).decode()]
    (p / "file").write_bytes(b"another")
    seen.append(os.pread(fd, 10, 0).decode())
    os.ftruncate(fd, 3)
    seen += [os.fstat(fd).st_size, (p / "file").read_bytes().decode()]
    os.close(fd)
    os.close(reader)
    return seen


@check
def open_but_replaced(p: Path) -> Any:
    with open(p / "file", "rb") as file:
        (p / "fresh").write_bytes(b"fresh")
        os.rename(p / "fresh", p / "file")
        return file.read(4).decode(), (p / "file").read_bytes().decode()


@check
def removed_working_directory(p: Path) -> Any:
    os.chdir(p / "empty")
    os.rmdir(p / "empty")
    said = [outcome(lambda: Path("x").touch()), outcome(os.getcwd), os.listdir(".")]
    os.chdir("/")
    return said


@check
def truncation(p: Path) -> Any:
    os.truncate(p / "file", 5)
    seen = [(p / "file").read_bytes().decode()]
    os.truncate(p / "file", 8)
    seen.append((p / "file").read_bytes().hex())
    with open(p / "small", "wb"):
        pass
    seen.append(str(os.stat(p / "small").st_size))
    os.truncate(p / "small", 1 << 33)
    seen.append(str(os.stat(p / "small").st_size))
    seen.append(outcome(lambda: os.truncate(p / "dir", 0)))
    return seen


@check
def holes(p: Path) -> Any:
    with open(p / "sparse", "wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    fd = os.open(p / "sparse", os.O_RDWR)
    seen = [os.lseek(fd, 0, os.SEEK_DATA) >= (1 << 20) - 4096, os.lseek(fd, 0, os.SEEK_HOLE), os.stat(fd).st_blocks < 99]
    seen.append(outcome(lambda: os.posix_fallocate(fd, 0, 8192)))
    os.close(fd)
    return seen


@check
def times(p: Path) -> Any:
    seen: list[Any] = [os.stat(p / "file").st_mtime_ns]
    for atime, mtime in ((PAST + 7, PAST + 9), (1, 999_999_999), (-1_000_000_000, 4_000_000_000_000_000_001)):
        os.utime(p / "file", ns=(atime, mtime))
        info = os.stat(p / "file")
        seen.append((info.st_mtime_ns, info.st_atime_ns))
    os.utime(p / "link", ns=(5, 5), follow_symlinks=False)
    seen.append((os.lstat(p / "link").st_mtime_ns, os.stat(p / "file").st_mtime_ns != 5))
    before = time.time_ns() - 1_000_000_000

    def moved(path: Path) -> tuple[bool, bool]:
        info = os.lstat(path)
        return info.st_mtime_ns > before, info.st_ctime_ns > before

    with open(p / "small", "r+b") as file:
        file.write(b"x")
    seen.append(moved(p / "small"))
    os.chmod(p / "dir/one", 0o600)
    seen.append(moved(p / "dir/one"))
    os.utime(p / "dir", ns=(PAST, PAST))
    (p / "dir/new").touch()
    seen.append(moved(p / "dir"))
    os.utime(p / "dir", ns=(PAST, PAST))
    os.unlink(p / "dir/one")
    seen.append(moved(p / "dir"))
    return seen


@check
def times_now_and_omit(p: Path) -> Any:
    def utimensat(name: bytes, atime: int, mtime: int) -> None:
        both = struct.pack("4q", 0, atime, 0, mtime)
        assert _libc.utimensat(-100, os.fsencode(p) + b"/" + name, both, 0) == 0

    utimensat(b"file", UTIME_OMIT, UTIME_NOW)
    one = os.stat(p / "file")
    utimensat(b"small", UTIME_NOW, UTIME_OMIT)
    two = os.stat(p / "small")
    return one.st_mtime_ns > PAST, two.st_mtime_ns == PAST, two.st_atime_ns > PAST


@check
def attributes(p: Path) -> Any:
    file = p / "file"
    seen: list[Any] = [
        outcome(lambda: os.setxattr(file, "user.one", b"1")),
        outcome(lambda: os.setxattr(file, "user.one", b"2", os.XATTR_CREATE)),
        outcome(lambda: os.setxattr(file, "user.two", b"2", os.XATTR_REPLACE)),
        outcome(lambda: os.setxattr(file, "user.big", b"x" * 2000)),
        outcome(lambda: os.setxattr(p / "dir", "user.dir", b"d")),
        outcome(lambda: os.setxattr(p / "link", "user.x", b"", follow_symlinks=False)),
        outcome(lambda: os.getxattr(file, "user.missing")),
        sorted(os.listxattr(file)),
        os.getxattr(file, "user.one").decode(),
        outcome(lambda: os.removexattr(file, "user.one")),
        outcome(lambda: os.removexattr(file, "user.one")),
        outcome(lambda: os.setxattr(file, "nonsense.x", b"")),
        sorted(os.listxattr(file)),
    ]
    if os.geteuid() == 0:
        seen.append(outcome(lambda: os.setxattr(file, "trusted.one", b"1")))
        seen.append(outcome(lambda: os.setxattr(file, "security.capability", CAPABILITY)))
    return seen


@check
def access_control_lists(p: Path) -> Any:
    acl = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, perm, who)
        for tag, perm, who in (
            (1, 6, NOT_NAMED), (2, 4, os.geteuid()), (4, 4, NOT_NAMED), (16, 4, NOT_NAMED), (32, 0, NOT_NAMED)
        )
    )
    said = outcome(lambda: os.setxattr(p / "file", "system.posix_acl_access", acl))
    default = outcome(lambda: os.setxattr(p / "dir", "system.posix_acl_default", acl))
    (p / "dir/inherits").touch()
    held = "system.posix_acl_access" in os.listxattr(p / "dir/inherits")
    return said, default, held, oct(os.stat(p / "file").st_mode)


@check
def attributes_with_the_names_of_overlayfs(p: Path) -> Any:
    name = "trusted.overlay.mine" if os.geteuid() == 0 else "user.overlay.mine"
    said = outcome(lambda: os.setxattr(p / "file", name, b"1"))
    return said, name in os.listxattr(p / "file")


@check
def whole_file_locks(p: Path) -> Any:
    with open(p / "file", "rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)

        def second(kind: int, mode: str) -> None:
            with open(p / "file", mode) as file:
                fcntl.flock(file, kind | fcntl.LOCK_NB)

        seen = [in_child(lambda: second(fcntl.LOCK_EX, "rb")), in_child(lambda: second(fcntl.LOCK_SH, "r+b"))]
    seen.append(in_child(lambda: second(fcntl.LOCK_EX, "r+b")))
    return seen


@check
def byte_locks(p: Path) -> Any:
    with open(p / "file", "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 0)

        def second(start: int) -> None:
            with open(p / "file", "r+b") as other:
                fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, start)

        seen = [in_child(lambda: second(5)), in_child(lambda: second(10))]
        with open(p / "file", "rb"):
            pass  # closing any descriptor of the file gives the locks of this process up, as POSIX has it
        seen.append(in_child(lambda: second(0)))
    return seen


@check
def shared_mapping(p: Path) -> Any:
    with open(p / "file", "r+b") as file, mmap.mmap(file.fileno(), 4096) as view:
        view[0:6] = b"MAPPED"
        seen = [(p / "file").read_bytes()[:6].decode()]
        os.pwrite(file.fileno(), b"WROTE!", 0)
        seen.append(view[0:6].decode())
        view.flush()

        def other() -> None:
            with open(p / "file", "r+b") as twin, mmap.mmap(twin.fileno(), 4096) as theirs:
                theirs[6:12] = b"others"

        seen += [in_child(other), view[0:12].decode()]
    with open(p / "small", "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as view:
        seen.append(view[:].decode())
    return seen


@check
def a_reader_opened_before_the_first_write(p: Path) -> Any:
    """POSIX: one file, one content, whoever has it open since when."""
    with open(p / "file", "rb", buffering=0) as reader:
        with open(p / "file", "r+b") as writer:
            writer.write(b"NEW")
        return reader.read(3).decode()


@check
def a_mapping_made_before_the_first_write(p: Path) -> Any:
    with open(p / "file", "rb") as reader, mmap.mmap(reader.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as view:
        with open(p / "file", "r+b") as writer:
            writer.write(b"NEW")
        return view[:3].decode()


@check
def a_reader_of_a_new_file_sees_every_write(p: Path) -> Any:
    (p / "new").write_bytes(b"old")
    with open(p / "new", "rb", buffering=0) as reader:
        with open(p / "new", "r+b") as writer:
            writer.write(b"NEW")
        return reader.read(3).decode()


@check
def inode_numbers(p: Path) -> Any:
    """Numbers stay when a base file, directory or symlink is changed for the first time, and listings agree with stat."""
    names = ("file", "dir", "link", "script")
    before = {name: os.lstat(p / name).st_ino for name in names}
    with open(p / "file", "r+b") as file:
        file.write(b"x")
    (p / "dir/new").touch()
    os.utime(p / "link", ns=(1, 1), follow_symlinks=False)
    os.chmod(p / "script", 0o700)
    after = {name: os.lstat(p / name).st_ino for name in names}
    with os.scandir(p) as entries:
        listed = {entry.name: entry.inode() for entry in entries}
    return before == after, all(listed[name] == os.lstat(p / name).st_ino for name in listed)


@check
def device_numbers(p: Path) -> Any:
    """All files of one file system have one st_dev, before and after the first change."""
    (p / "new").touch()
    names = ("file", "dir", "link", "new", ".", "small", "dir/one")
    before = {os.lstat(p / name).st_dev for name in names}
    os.chmod(p / "file", 0o600)
    return len(before | {os.lstat(p / name).st_dev for name in names})


@check
def link_count_of_directories(p: Path) -> Any:
    """On ext4 two and one for each sub-directory; programs must not rely on it (btrfs always says one)."""
    return os.stat(p / "dir").st_nlink


@check
def names(p: Path) -> Any:
    odd = [b"\xff\xfe", b"new\nline", b" ", b"-", "ü".encode(), b"a:b,c\\d", b"x" * 255, b".wh.file"]
    top = os.fsencode(p)
    for name in odd:
        with open(os.path.join(top, name), "wb") as file:
            file.write(name)
    kept = all(Path(os.fsdecode(os.path.join(top, name))).read_bytes() == name for name in odd)
    (p / "loop").symlink_to("loop")
    return [
        kept,
        outcome((p / ("y" * 256)).touch),
        outcome((p / "loop").read_bytes),
        outcome((p / "file/x").touch),
        outcome((p / "missing/x").touch),
        outcome(lambda: os.mkdir(p / "dir")),
        outcome(lambda: os.open(p / "link", os.O_RDONLY | os.O_NOFOLLOW)),
        outcome(lambda: os.open(p / "dir", os.O_WRONLY)),
        outcome(lambda: os.open(p / "file", os.O_CREAT | os.O_EXCL)),
        sorted(os.fsencode(name).hex() for name in os.listdir(p))[:5],
    ]


@check
def unnamed_files(p: Path) -> Any:
    fd = os.open(p, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b"unnamed")
    said = outcome(lambda: os.link(f"/proc/self/fd/{fd}", p / "named", follow_symlinks=True))
    os.close(fd)
    return said, (p / "named").read_bytes().decode() if said == "ok" else None


@check
def direct_io(p: Path) -> Any:
    with mmap.mmap(-1, 8192) as page:
        page[:4096] = b"d" * 4096
        fd = os.open(p / "direct", os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
        said = [os.pwritev(fd, [memoryview(page)[:4096]], 0), os.preadv(fd, [memoryview(page)[4096:]], 0)]
        said.append(outcome(lambda: os.pwrite(fd, b"odd", 1)))
        os.close(fd)
        fd = os.open(p / "file", os.O_RDONLY | os.O_DIRECT)
        said.append(os.preadv(fd, [memoryview(page)[4096:]], 0))
        os.close(fd)
        return said, bytes(page[4096:4108]).decode()


@check
def appending(p: Path) -> Any:
    """Appends of several processes never overwrite each other."""
    def append(letter: bytes) -> None:
        fd = os.open(p / "small", os.O_WRONLY | os.O_APPEND)
        for _ in range(200):
            os.write(fd, letter * 10)
        os.close(fd)

    pids = []
    for letter in (b"a", b"b", b"c"):
        pid = os.fork()
        if not pid:
            append(letter)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    data = (p / "small").read_bytes()
    return len(data), [data.count(letter) for letter in (b"a", b"b", b"c")]


@check
def listing_while_deleting(p: Path) -> Any:
    many = p / "many"
    seen = []
    with os.scandir(many) as entries:
        for number, entry in enumerate(entries):
            seen.append(entry.name)
            if number % 2:
                os.unlink(entry.path)
    return len(seen), len(set(seen)), len(os.listdir(many))


@check
def names_made_while_listing(p: Path) -> Any:
    for number in range(100):
        (p / f"dir/x{number}").touch()
    with os.scandir(p / "dir") as entries:
        first = next(entries).name
        os.unlink(p / "dir/x5")
        rest = [entry.name for entry in entries]
    return len({first, *rest} - {"x5"}), (p / "dir/x5").exists()


@check
def execution(p: Path) -> Any:
    shutil.copy("/bin/true", p / "binary")
    said = [subprocess.run([p / name], capture_output=True, check=False).returncode for name in ("script", "binary")]
    child = subprocess.Popen(["/bin/sleep", "20"])
    shutil.copy("/bin/sleep", p / "sleeps")
    child.kill()
    child.wait()
    child = subprocess.Popen([p / "sleeps", "20"])
    time.sleep(0.1)
    busy = outcome(lambda: os.open(p / "sleeps", os.O_WRONLY))
    child.kill()
    child.wait()
    return said, busy


@check
def copying_in_the_kernel(p: Path) -> Any:
    with open(p / "file", "rb") as source, open(p / "copied", "wb") as target:
        moved = os.copy_file_range(source.fileno(), target.fileno(), 5000)
    with open(p / "file", "rb") as source, open(p / "sent", "wb") as target:
        sent = os.sendfile(target.fileno(), source.fileno(), 0, 5000)
    return moved, sent, (p / "copied").read_bytes() == (p / "sent").read_bytes()


@check
def syncing(p: Path) -> Any:
    fd = os.open(p / "file", os.O_RDWR)
    os.write(fd, b"x")
    said = [outcome(lambda: os.fsync(fd)), outcome(lambda: os.fdatasync(fd)), _libc.syncfs(fd)]
    os.close(fd)
    fd = os.open(p, os.O_RDONLY)
    said.append(outcome(lambda: os.fsync(fd)))
    os.close(fd)
    return said


@check
def watching(p: Path) -> Any:
    """inotify: a watch on a base file and on its directory sees what is done afterwards."""
    watch = _libc.inotify_init1(os.O_NONBLOCK)
    modify, moved, created, deleted = 0x2, 0xC0, 0x100, 0x200
    _libc.inotify_add_watch(watch, os.fsencode(p), modify | moved | created | deleted)
    _libc.inotify_add_watch(watch, os.fsencode(p / "file"), modify)
    with open(p / "file", "r+b") as file:
        file.write(b"x")
    (p / "new").touch()
    os.rename(p / "new", p / "newer")
    os.unlink(p / "small")
    events = []
    while select.select([watch], [], [], 0.2)[0]:
        data = os.read(watch, 65536)
        while data:
            number, mask, _, length = struct.unpack_from("iIII", data)
            events.append((number, mask, data[16 : 16 + length].rstrip(b"\0").decode()))
            data = data[16 + length :]
    os.close(watch)
    return sorted(set(events))


@check
def a_watch_on_an_open_base_file(p: Path) -> Any:
    """inotify by descriptor path: the file is open for reading, then written by name."""
    with open(p / "small", "rb") as reader:
        watch = _libc.inotify_init1(os.O_NONBLOCK)
        _libc.inotify_add_watch(watch, f"/proc/self/fd/{reader.fileno()}".encode(), 0x2)
        (p / "small").write_bytes(b"written by name")
        ready = bool(select.select([watch], [], [], 0.2)[0])
        os.close(watch)
    return ready


@check
def file_handles(p: Path) -> Any:
    """name_to_handle_at, which NFS servers need."""
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount_id = ctypes.c_int()
    if _libc.name_to_handle_at(-100, os.fsencode(p / "file"), handle, ctypes.byref(mount_id), 0):
        return errno.errorcode[ctypes.get_errno()]
    return "ok"


@check
def an_overlay_with_its_upper_here(p: Path) -> Any:
    """What container engines do that run inside."""
    for name in ("lower", "upper", "work", "merged"):
        (p / name).mkdir()
    places = f"lowerdir={p}/lower,upperdir={p}/upper,workdir={p}/work".encode()

    def mount() -> None:
        if _libc.unshare(0x00020000):
            raise OSError(ctypes.get_errno(), "unshare")
        if _libc.mount(b"none", os.fsencode(p / "merged"), b"overlay", 0, places):
            raise OSError(ctypes.get_errno(), "mount")

    return in_child(mount) if os.geteuid() == 0 else None


@check
def file_flags(p: Path) -> Any:
    get, put, append_only = 0x80086601, 0x40086602, 0x20
    with open(p / "file", "rb") as file:
        word = bytearray(8)
        said = [outcome(lambda: fcntl.ioctl(file, get, word))]
        if os.geteuid() == 0:
            said.append(outcome(lambda: fcntl.ioctl(file, put, struct.pack("q", append_only))))
            said.append(outcome(lambda: os.open(p / "file", os.O_WRONLY)))
            said.append(outcome(lambda: fcntl.ioctl(file, put, struct.pack("q", 0))))
    return said


@check
def leases_and_signals(p: Path) -> Any:
    with open(p / "new", "wb") as file:
        said = outcome(lambda: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK))
        with contextlib.suppress(OSError):
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    return said


@check
def file_system_figures(p: Path) -> Any:
    info = os.statvfs(p)
    return info.f_namemax, info.f_bsize, info.f_blocks > 0


@check
def deep_paths(p: Path) -> Any:
    os.chdir(p / "dir")
    for _ in range(200):
        os.mkdir("d" * 50)
        os.chdir("d" * 50)
    Path("leaf").write_bytes(b"deep")
    size = os.stat("leaf").st_size
    os.chdir("/")
    return size, outcome(lambda: os.stat(p / "dir" / "/".join(["d" * 50] * 100)))


if __name__ == "__main__":
    print(json.dumps(observe(Path(sys.argv[1]))))

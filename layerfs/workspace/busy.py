"""Who keeps a mount busy: the processes that stand in it or hold something of it open.

Owns the search through ``/proc``. It never stats a path that a process holds (that could hang on somebody's dead network
mount): descriptors are matched by mount number from ``fdinfo``, directories and mappings by their path against the
process's own mount table. Processes in other mount namespaces are found by the file system's device number. What other
users hold is visible to root only; the search is a help for people, not a lock. Ending them is for ``unmount --force``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from layerfs.errors import Busy, quote
from layerfs.store.layout import is_inside
from layerfs.workspace.mountinfo import Mount, mount_holding, read_mounts

GRACE_SECONDS = 2.0


class Holder(NamedTuple):
    """One process and how it holds the mount: ``cwd``, ``root``, ``exe``, ``open`` or ``map``, in this order."""

    pid: int
    command: str
    how: tuple[str, ...]


def find_holders(target: bytes, device: int) -> tuple[Holder, ...]:
    """Return the processes that use the file system ``device``, mounted at ``target`` in this namespace, by pid."""
    tables: dict[str, list[Mount]] = {}
    holders: list[Holder] = []
    for pid in _pids():
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            if namespace not in tables:
                tables[namespace] = read_mounts(pid)
            how = tuple(_ways(pid, tables[namespace], device))
            if how:
                holders.append(Holder(pid, command_name(pid), how))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return tuple(holders)


def find_users(directory: bytes) -> tuple[Holder, ...]:
    """Return the processes that stand in a plain directory or hold something below it open, by pid."""
    users: list[Holder] = []
    for pid in _pids():
        try:
            how = tuple(what for what in ("cwd", "root", "exe") if is_inside(_link(pid, what), directory))
            if any(is_inside(_link(pid, f"fd/{name}"), directory) for name in os.listdir(f"/proc/{pid}/fd")):
                how += ("open",)
            if how:
                users.append(Holder(pid, command_name(pid), how))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return tuple(users)


def _pids() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def command_name(pid: int) -> str:
    """Return a process's short name as the kernel keeps it."""
    with open(f"/proc/{pid}/comm", "rb") as file:
        return file.read().rstrip(b"\n").decode("utf-8", "backslashreplace")


def _ways(pid: int, mounts: list[Mount], device: int) -> Iterator[str]:
    numbers = {mount.mount_id for mount in mounts if mount.device == device}
    if not numbers:
        return
    for what in ("cwd", "root", "exe"):
        if _lies_on(_link(pid, what), mounts, device):
            yield what
    if any(_mount_of(pid, name) in numbers for name in os.listdir(f"/proc/{pid}/fd")):
        yield "open"
    if any(_lies_on(path, mounts, device) for path in _mapped(pid)):
        yield "map"


def _link(pid: int, what: str) -> bytes:
    try:
        return os.readlink(os.fsencode(f"/proc/{pid}/{what}"))
    except OSError:
        return b""


def _lies_on(path: bytes, mounts: list[Mount], device: int) -> bool:
    if not path.startswith(b"/"):
        return False
    mount = mount_holding(mounts, path)
    return mount is not None and mount.device == device


def _mount_of(pid: int, descriptor: str) -> int:
    try:
        with open(f"/proc/{pid}/fdinfo/{descriptor}", "rb") as file:
            for line in file:
                if line.startswith(b"mnt_id:"):
                    return int(line.split()[1])
    except FileNotFoundError:
        pass
    return -1


def _mapped(pid: int) -> set[bytes]:
    """Return the paths of mapped files; the sixth field of each line, with newlines escaped by the kernel."""
    paths: set[bytes] = set()
    with open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            fields = line.rstrip(b"\n").split(None, 5)
            if len(fields) == 6:
                paths.add(fields[5])
    return paths


def end_processes(target: bytes, holders: Sequence[Holder]) -> tuple[Holder, ...]:
    """End processes, with SIGTERM and after a moment with SIGKILL; return them.

    Raises Busy before anything is done if this process itself stands there, or one that it was started by, such as the
    shell somebody typed the command into.
    """
    ours = set(_ancestors())
    standing = [holder for holder in holders if holder.pid in ours]
    if standing:
        raise MountBusy(target, standing)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for holder in holders:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(holder.pid, number)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and any(_lives(holder.pid) for holder in holders):
            time.sleep(0.02)
    return tuple(holders)


def _ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 1:
        yield pid
        _, pid = _state(pid)


def _lives(pid: int) -> bool:
    return _state(pid)[0] not in "ZX"


def _state(pid: int) -> tuple[str, int]:
    """Return a process's state letter and parent; a process that is gone is dead."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return fields[0].decode("ascii"), int(fields[1])


class MountBusy(Busy):
    """Processes keep a workspace in use; ``holders`` says which."""

    def __init__(self, target: bytes, holders: Sequence[Holder]) -> None:
        who = describe(holders)
        super().__init__(
            f"{quote(target)} is in use" + (f" by {who}" if who else ""),
            "leave the directory, or end these processes; 'unmount --force' ends them",
        )
        self.holders = tuple(holders)


SHOWN = 5


def describe(holders: Sequence[Holder]) -> str:
    """Return the holders as one phrase: ``pid 12 (bash), pid 40 (vim) and 3 more``."""
    shown = ", ".join(f"pid {holder.pid} ({holder.command})" for holder in holders[:SHOWN])
    more = len(holders) - SHOWN
    return f"{shown} and {more} more" if more > 0 else shown

"""Who keeps a mount busy: the processes that stand in it or hold something of it open.

Owns the search through ``/proc``. It never stats a path that a process holds (that could hang on somebody's dead network
mount): descriptors are matched by mount number from ``fdinfo``, directories and mappings by their path against the
process's own mount table. Processes in other mount namespaces are found by the file system's device number. What other
users hold is visible to root only; the search is a help for people, not a lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from layerfs.layout import is_inside
from layerfs.workspace.mountinfo import Mount, mount_holding, read_mounts


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


SHOWN = 5


def describe(holders: Sequence[Holder]) -> str:
    """Return the holders as one phrase: ``pid 12 (bash), pid 40 (vim) and 3 more``."""
    shown = ", ".join(f"pid {holder.pid} ({holder.command})" for holder in holders[:SHOWN])
    more = len(holders) - SHOWN
    return f"{shown} and {more} more" if more > 0 else shown

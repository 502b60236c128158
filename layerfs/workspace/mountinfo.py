"""The mount table: what is mounted where, as one mount namespace sees it.

Owns the parsing of ``/proc/PID/mountinfo`` with its octal escapes. Reads only; the table is a snapshot and may be old
when it is returned, so callers act through descriptors and check the outcome.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_ESCAPE = re.compile(rb"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of the table, which is in the order of mounting. ``device`` is packed as by :func:`os.makedev`."""

    mount_id: int
    parent_id: int
    device: int
    root: bytes
    target: bytes
    options: bytes
    fstype: bytes
    source: bytes
    super_options: bytes


def _unescape(field: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes((int(match[1], 8),)), field)


def parse_mountinfo(text: bytes) -> list[Mount]:
    """Parse the table; lines that are not of the documented form are skipped."""
    mounts: list[Mount] = []
    for line in text.split(b"\n"):
        left, separator, right = line.partition(b" - ")
        fields = left.split(b" ")
        tail = right.split(b" ")
        if not separator or len(fields) < 6 or len(tail) < 3:
            continue
        major, _, minor = fields[2].partition(b":")
        mounts.append(
            Mount(
                mount_id=int(fields[0]),
                parent_id=int(fields[1]),
                device=os.makedev(int(major), int(minor)),
                root=_unescape(fields[3]),
                target=_unescape(fields[4]),
                options=fields[5],
                fstype=_unescape(tail[0]),
                source=_unescape(tail[1]),
                super_options=_unescape(tail[2]),
            )
        )
    return mounts


def read_mounts(pid: int | None = None) -> list[Mount]:
    """Return the mount table of this process's namespace, or of another process's."""
    name = f"/proc/{'self' if pid is None else pid}/mountinfo"
    with open(name, "rb") as file:
        return parse_mountinfo(file.read())


def is_below(path: bytes, top: bytes) -> bool:
    """Whether an absolute path lies strictly below another."""
    return path != top and (top == b"/" or path.startswith(top + b"/"))


def mount_at(mounts: list[Mount], target: bytes) -> Mount | None:
    """Return the topmost mount exactly at ``target``, or None."""
    return next((mount for mount in reversed(mounts) if mount.target == target), None)


def mount_holding(mounts: list[Mount], path: bytes) -> Mount | None:
    """Return the mount an absolute path without symlinks lies on (judged by the path alone)."""
    best: Mount | None = None
    for mount in mounts:
        inside = path == mount.target or is_below(path, mount.target)
        if inside and (best is None or len(mount.target) >= len(best.target)):
            best = mount
    return best


def mounts_below(mounts: list[Mount], top: bytes) -> list[Mount]:
    """Return what is mounted strictly below ``top``, in table order; of several at one path the one in sight."""
    seen: dict[bytes, Mount] = {}
    for mount in mounts:
        if is_below(mount.target, top):
            seen.pop(mount.target, None)
            seen[mount.target] = mount
    return list(seen.values())

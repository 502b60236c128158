"""What a capture is given and what it gives: its rules, its result, and the problems it met on the way.

Values only; the walk is in ``capture``, what becomes of one entry in ``leaves``.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import NamedTuple

from layerfs.capture.statcache import NO_STAMP, StatCache, Sums
from layerfs.objects.entry import Entry, EntryKind

KIND_OF_TYPE = {
    stat.S_IFREG: EntryKind.FILE,
    stat.S_IFDIR: EntryKind.DIR,
    stat.S_IFLNK: EntryKind.SYMLINK,
    stat.S_IFIFO: EntryKind.FIFO,
    stat.S_IFSOCK: EntryKind.SOCKET,
    stat.S_IFCHR: EntryKind.CHARDEV,
    stat.S_IFBLK: EntryKind.BLOCKDEV,
}


class Problem(NamedTuple):
    """A path that could not be captured or restored faithfully, and why; ``kept`` if the older state stands in."""

    path: bytes
    why: str
    kept: bool = False


class Rules(NamedTuple):
    """What a capture includes. ``excluded`` decides on a path (relative); names in it are never even opened."""

    excluded: Callable[[bytes], bool] | None = None
    cross_filesystems: bool = False
    allow_torn: bool = False
    keep_owners: bool = False
    """The caller cannot own files as others do: where the state before has another owner for a path, it keeps it."""
    stamp: bytes = NO_STAMP
    """Another one for rules that exclude something else: then no directory counts as unchanged."""


class Totals:
    """What a capture met: counts, and bytes by what had to be done for them."""

    __slots__ = ("directories", "files", "others", "read_bytes", "read_files", "size")

    def __init__(self) -> None:
        self.files = self.directories = self.others = 0
        self.size = self.read_files = self.read_bytes = 0

    def count(self, is_file: bool, size: int) -> None:
        """Count one entry that is no directory."""
        if is_file:
            self.files += 1
            self.size += size
        else:
            self.others += 1

    def add(self, sums: Sums) -> None:
        """Count what is known of a part of the tree that was not gone through."""
        self.directories += sums.directories
        self.files += sums.files
        self.others += sums.others
        self.size += sums.size


class Captured(NamedTuple):
    """A captured directory: its root entry, what it contained, what is missing from it, and the next stat cache."""

    root: Entry
    totals: Totals
    problems: list[Problem]
    mounts: list[bytes]
    cache: StatCache


def entry_kind(mode: int) -> EntryKind | None:
    """Return the entry kind of a ``st_mode``, or None for a type that no entry has."""
    return KIND_OF_TYPE.get(stat.S_IFMT(mode))

"""Diffing: what differs between two states, made ready for showing.

Owns the way from two root entries to a stream of :class:`FileDiff`: which changes are worth showing, the texts of both
sides, and the hunks between them. How a diff looks is ``present/patch``'s. The states may lie in a store, or one of them
in a batch that nobody commits (a workspace as it is now): everything is read through one object source. Content is read
only for paths that are shown, one path at a time.

A directory whose mtime alone changed is left out unless asked for: it says no more than that something in it changed. So
is a git index that only remembers newer stat data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from layerfs.history.states import diff_paths
from layerfs.merge.gitstate import is_refreshed_index
from layerfs.merge.linediff import Hunk, diff_for_reading, split_lines
from layerfs.merge.textmerge import TEXT_MAX_BYTES, is_text
from layerfs.objects.content import read_content
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import Change
from layerfs.objects.source import ObjectSource

Lines = list[bytes]


class FileDiff(NamedTuple):
    """One path that differs: its entries, and for texts the lines of both sides and the hunks between them.

    ``old_lines`` and ``new_lines`` are None when the contents are equal or are not text (``binary`` tells which). A
    symlink is a text of one line, its target.
    """

    path: bytes
    old: Entry | None
    new: Entry | None
    binary: bool = False
    old_lines: Lines | None = None
    new_lines: Lines | None = None
    hunks: tuple[Hunk, ...] = ()

    @property
    def added(self) -> int:
        """Lines that are new."""
        return sum(hunk.b_end - hunk.b_start for hunk in self.hunks)

    @property
    def removed(self) -> int:
        """Lines that are gone."""
        return sum(hunk.a_end - hunk.a_start for hunk in self.hunks)

    @property
    def change(self) -> Change:
        """The change without its content."""
        return Change(self.path, self.old, self.new)


def list_changes(
    source: ObjectSource,
    old: Entry | None,
    new: Entry | None,
    paths: Iterable[bytes] = (),
    times: bool = False,
) -> Iterator[Change]:
    """Yield the changes between two states that are worth showing, in path order."""
    for change in diff_paths(source, old, new, paths):
        if times or not (is_only_a_time(change) or is_refreshed_index(source, change)):
            yield change


def is_only_a_time(change: Change) -> bool:
    """Whether a directory differs in its mtime and in nothing else of its own."""
    _, old, new = change
    if old is None or new is None or old.kind is not EntryKind.DIR or new.kind is not EntryKind.DIR:
        return False
    return old._replace(mtime_ns=0, ref=b"") == new._replace(mtime_ns=0, ref=b"")


def diff_states(
    source: ObjectSource,
    old: Entry | None,
    new: Entry | None,
    paths: Iterable[bytes] = (),
    times: bool = False,
) -> Iterator[FileDiff]:
    """Yield the difference of each path, with its texts; None stands for a state that holds nothing."""
    return (read_diff(source, change) for change in list_changes(source, old, new, paths, times))


def read_diff(source: ObjectSource, change: Change) -> FileDiff:
    """Return one change with the texts of both sides."""
    path, old, new = change
    if old is not None and new is not None and _same_content(old, new):
        return FileDiff(path, old, new)
    before, after = _text(source, old), _text(source, new)
    if before is None or after is None:
        return FileDiff(path, old, new, binary=True)
    return FileDiff(
        path, old, new, False, split_lines(before), split_lines(after), tuple(diff_for_reading(before, after))
    )


def _same_content(old: Entry, new: Entry) -> bool:
    return old.kind is new.kind and (
        old.kind is EntryKind.DIR or (old.ref == new.ref and old.size == new.size)
    )


def _text(source: ObjectSource, entry: Entry | None) -> bytes | None:
    """Return what a patch shows of an entry: a text, a link's target, nothing for what holds no bytes; None if binary."""
    if entry is None or entry.kind not in (EntryKind.FILE, EntryKind.SYMLINK):
        return b""
    if entry.kind is EntryKind.SYMLINK:
        return entry.ref
    if entry.size > TEXT_MAX_BYTES:
        return None
    content = read_content(source, entry)
    return content if is_text(content) else None

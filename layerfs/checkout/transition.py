"""Transition: a directory that is in one state becomes another, given the changes between them.

Owns the order of the steps and what may be in the way. How an entry is made is in ``writer``, a whole state in
``checkout``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator

from layerfs.checkout.restored import Restored
from layerfs.checkout.writer import Writer, goes_away
from layerfs.errors import Refused, quote
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import Change, lookup_path, path_key, split
from layerfs.objects.source import ObjectSource
from layerfs.progress import SILENT, Progress


def apply_changes(
    source: ObjectSource,
    directory: int,
    changes: Iterable[Change],
    root: Entry,
    *,
    owners: bool,
    members: Iterable[tuple[int, bytes]] = (),
    progress: Progress = SILENT,
) -> Restored:
    """Turn a directory that is in one state into another, given the changes between them.

    ``root`` is the state that results. Removals come first, deepest first; then new directories, files and attributes;
    the attributes of directories last, deepest first, since everything before moves their times. A file that changes gets
    a new inode by rename, so a program that has the old one open keeps it; only attributes change in place. ``members``
    are members of link groups that stay as they are: new members are linked to them. Raises Refused when something in the
    way is not what the changes say.
    """
    writer = Writer(source, directory, owners=owners, inherits=True, progress=progress)
    for group, path in members:
        writer.known_member(group, path)
    ordered = sorted(changes, key=lambda change: path_key(change.path))
    if os.geteuid():
        fresh = {
            change.path for change in ordered if change.old is None or change.old.kind is not EntryKind.DIR
        }
        parents = {split(change.path)[0] for change in ordered if change.path}
        for path in sorted(parents - fresh, key=path_key):
            writer.open_up(path)
    for change in reversed(ordered):
        if change.old is not None and goes_away(change):
            _remove(writer, change)
    touched = dict(directories_to_settle(source, root, ordered))
    for change in ordered:
        if change.new is None:
            continue
        if change.path:
            writer.change(change, _same_content(change))
        if change.new.kind is EntryKind.DIR:
            touched[change.path] = change.new
    for path in sorted(touched, key=path_key, reverse=True):
        writer.directory_attributes(path, touched[path])
    return writer.restored


def _remove(writer: Writer, change: Change) -> None:
    assert change.old is not None
    try:
        writer.remove(change.path, change.old)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        if change.new is not None:
            raise Refused(
                f"{quote(change.path)} is a directory that holds files unknown to layerfs",
                "commit or move what it holds, then try again",
            ) from None


def _same_content(change: Change) -> bool:
    """Whether only attributes differ, so that the file itself may stay."""
    old, new = change.old, change.new
    if old is None or new is None or old.kind is not new.kind:
        return False
    return old.ref == new.ref and old.size == new.size and old.link_group == new.link_group


def directories_to_settle(
    source: ObjectSource, root: Entry, changes: Iterable[Change]
) -> Iterator[tuple[bytes, Entry]]:
    """Yield the parents of changed paths with their entries in ``root``: applying the changes moved their times."""
    seen: set[bytes] = set()
    for change in changes:
        path = change.path
        while path:
            path, _ = split(path)
            if path in seen:
                break
            seen.add(path)
    for path in sorted(seen, key=path_key, reverse=True):
        entry = lookup_path(source, root, path)
        if entry is not None and entry.kind is EntryKind.DIR:
            yield path, entry

"""Delta lowers: the difference between two trees as one overlayfs layer.

A layer put on top of the older tree's layers shows the newer tree: changed and new files stand in it whole, a removed
name is a whiteout (character device 0/0), and every directory on the way carries the *newer* tree's attributes, because
overlayfs takes them from the topmost layer that has the directory. A directory that takes the place of something else is
marked opaque. A tree that itself holds such marks cannot be a lower (:func:`refuse_marks`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence

from layerfs.checkout.checkout import create_by
from layerfs.checkout.restored import Restored
from layerfs.checkout.target import OpenDirectory
from layerfs.checkout.writer import Writer
from layerfs.errors import Unable, quote
from layerfs.objects.entry import Entry, EntryKind, device_ref
from layerfs.objects.environment import Change, lookup_path, path_key, split
from layerfs.objects.source import ObjectSource
from layerfs.progress import SILENT, Progress

TRUSTED = "trusted"
USER = "user"
"""The two flavours of a layer: which attributes carry overlayfs's marks."""

Linked = Callable[[], Iterable[tuple[bytes, int]]]

_WHITEOUT = device_ref(0, 0)


def refuse_marks(path: bytes, entry: Entry, flavour: str) -> None:
    """Raise Unable if overlayfs would take this entry of a user's tree for one of its own marks."""
    whiteout = entry.kind is EntryKind.CHARDEV and entry.ref == _WHITEOUT
    reserved = flavour.encode() + b".overlay."
    if whiteout or any(name.startswith(reserved) for name, _ in entry.xattrs):
        raise Unable(
            f"{quote(path)} looks like a mark of overlayfs and cannot lie below a workspace",
            "use --engine copy",
        )


class LowerWriter(Writer):
    """A writer of lowers: refuses what overlayfs would misread."""

    flavour = TRUSTED

    def accept(self, entry: Entry, path: bytes) -> None:
        """Raise Unable for what cannot be in a lower."""
        refuse_marks(path, entry, self.flavour)


def make_writer(source: ObjectSource, directory: int, flavour: str, progress: Progress) -> LowerWriter:
    """Return a writer of one layer; owners are only restored where they can be."""
    writer = LowerWriter(source, directory, owners=flavour == TRUSTED, progress=progress)
    writer.flavour = flavour
    return writer


def write_base(
    source: ObjectSource, directory: int, root: Entry, flavour: str = TRUSTED, progress: Progress = SILENT
) -> Restored:
    """Materialise a whole tree inside an open, empty directory."""
    refuse_marks(b".", root, flavour)
    writer = make_writer(source, directory, flavour, progress)
    return create_by(writer, root)


def write_delta(
    source: ObjectSource,
    directory: int,
    root: Entry,
    changes: Sequence[Change],
    linked: Linked,
    flavour: str = TRUSTED,
    progress: Progress = SILENT,
) -> Restored:
    """Materialise ``changes``, which lead to the tree ``root``, inside an open, empty directory.

    ``linked`` tells the names of all hard-linked files of that tree with their groups; asked only if some change.
    """
    writer = make_writer(source, directory, flavour, progress)
    writer.attributes.strip(directory)
    wanted = {change.path: change for change in changes}
    for path, entry in _linked_neighbours(source, root, changes, linked):
        wanted.setdefault(path, Change(path, entry, entry))
    made: dict[bytes, Entry] = {b"": root}
    opaque: set[bytes] = set()
    for change in sorted(wanted.values(), key=lambda change: path_key(change.path)):
        if not change.path:
            continue
        if change.new is None:
            if not _is_below_removed(change.path, wanted):
                _make_parents(source, directory, root, change.path, made)
                _whiteout(directory, change.path)
            continue
        _make_parents(source, directory, root, change.path, made)
        parent, name = split(change.path)
        if change.new.kind is EntryKind.DIR:
            refuse_marks(change.path, change.new, flavour)
            _make_directory(directory, change.path, change.new, made)
            if change.old is not None and change.old.kind is not EntryKind.DIR:
                opaque.add(change.path)
            continue
        with OpenDirectory(directory, parent) as inner:
            writer.create(inner, name, change.new, change.path)
    for path in sorted(made, key=path_key, reverse=True):
        with OpenDirectory(directory, path) as inner:
            writer.attributes.set(inner, made[path], path)
            if path in opaque:
                os.setxattr(inner, flavour.encode() + b".overlay.opaque", b"y")
                os.utime(inner, ns=(made[path].mtime_ns, made[path].mtime_ns))
    return writer.restored


def _is_below_removed(path: bytes, wanted: dict[bytes, Change]) -> bool:
    """Whether a directory above is removed or replaced, so that the name is gone without a mark of its own."""
    parent, _ = split(path)
    change = wanted.get(parent)
    if change is None or change.old is None or change.old.kind is not EntryKind.DIR:
        return False
    return change.new is None or change.new.kind is not EntryKind.DIR


def _make_parents(
    source: ObjectSource, directory: int, root: Entry, path: bytes, made: dict[bytes, Entry]
) -> None:
    parent, _ = split(path)
    if parent in made:
        return
    _make_parents(source, directory, root, parent, made)
    entry = lookup_path(source, root, parent)
    if entry is None or entry.kind is not EntryKind.DIR:
        raise ValueError(f"no directory {parent!r} in the newer tree")
    _make_directory(directory, parent, entry, made)


def _make_directory(directory: int, path: bytes, entry: Entry, made: dict[bytes, Entry]) -> None:
    if path in made:
        return
    parent, name = split(path)
    with OpenDirectory(directory, parent) as inner:
        os.mkdir(name, 0o700, dir_fd=inner)
    made[path] = entry


def _whiteout(directory: int, path: bytes) -> None:
    parent, name = split(path)
    with OpenDirectory(directory, parent) as inner:
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=inner)


def _linked_neighbours(
    source: ObjectSource, root: Entry, changes: Iterable[Change], linked: Linked
) -> Iterator[tuple[bytes, Entry]]:
    """Yield the other names of linked files that change: names of one file have to lie in one layer."""
    groups = {change.new.link_group for change in changes if change.new is not None and change.new.link_group}
    for path, group in linked() if groups else ():
        if group in groups:
            entry = lookup_path(source, root, path)
            if entry is not None and entry.link_group == group:
                yield path, entry

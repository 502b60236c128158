"""Checkout: a whole state made in an empty directory.

Owns the order in which that happens: directories on the way down, private and bare; files in the order of the packs
(``filling``); other names of linked files when the first ones are there; the attributes of directories last, those of
what they hold first, since everything before moves their times. What the machine cannot represent (owners without root,
devices, some attributes) is restored as far as it goes and listed as a problem.

Callers decide where the target is and that it may be written; ``checkout``, ``mount`` and the layer cache share this
code. Going from one state to another in place is in ``transition``.
"""

from __future__ import annotations

import errno
import gc

from layerfs.checkout.filling import Filling
from layerfs.checkout.restored import Restored
from layerfs.checkout.target import OpenDirectories
from layerfs.checkout.writer import Writer
from layerfs.errors import Unable, quote
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import join, tree_of
from layerfs.objects.source import ObjectSource
from layerfs.objects.trees import iter_tree
from layerfs.progress import SILENT, Progress


def create_into(
    source: ObjectSource, directory: int, root: Entry, *, owners: bool, progress: Progress = SILENT
) -> Restored:
    """Create the whole state ``root`` inside the open, empty ``directory``, its own attributes included."""
    return create_by(Writer(source, directory, owners=owners, progress=progress), root)


def create_by(writer: Writer, root: Entry) -> Restored:
    """The same in the target of a writer of the caller's."""
    collects = gc.isenabled()
    # Nothing made here refers to itself; looking for what does, among all the files that wait, takes a twentieth more.
    gc.disable()
    try:
        _Checkout(writer, root).run()
    except OSError as error:
        raise _outward(error) from error
    finally:
        if collects:
            gc.enable()
    return writer.restored


class _Checkout:
    def __init__(self, writer: Writer, root: Entry) -> None:
        self._writer = writer
        self._root = root
        self._directories: list[tuple[bytes, Entry]] = []
        self._linked: list[tuple[bytes, bytes, Entry]] = []

    def run(self) -> None:
        writer = self._writer
        filling = Filling(writer.source, writer.target, writer.attributes, writer.progress)
        writer.attributes.strip(writer.target)
        try:
            with OpenDirectories(writer.target) as opened:
                self._lay_out(filling, opened)
                filling.flush()
                for parent, name, entry in self._linked:
                    writer.create(opened.get(parent), name, entry, join(parent, name))
                for path, entry in reversed(self._directories):
                    writer.attributes.set(opened.get(path), entry, path)
        finally:
            filling.close()
        writer.attributes.set(writer.target, self._root, b"")
        writer.restored.others += len(self._directories)

    def _lay_out(self, filling: Filling, opened: OpenDirectories) -> None:
        """Make the directories and everything small in itself; hand the files over."""
        writer = self._writer
        pending = [(b"", self._root)]
        while pending:
            path, tree = pending.pop()
            below: list[tuple[bytes, Entry]] = []
            for name, entry in iter_tree(writer.source, tree_of(tree)):
                if entry.kind is EntryKind.FILE:
                    self._take_file(filling, opened, path, name, entry)
                elif entry.kind is EntryKind.DIR:
                    inner = join(path, name)
                    writer.accept(entry, inner)
                    writer.make_directory(opened.get(path), name, inner)
                    below.append((inner, entry))
                else:
                    writer.create(opened.get(path), name, entry, join(path, name))
            self._directories += below
            pending += reversed(below)

    def _take_file(
        self, filling: Filling, opened: OpenDirectories, parent: bytes, name: bytes, entry: Entry
    ) -> None:
        writer = self._writer
        path = join(parent, name)
        if entry.link_group:
            if writer.has_member(entry.link_group):
                self._linked.append((parent, name, entry))
                return
            writer.known_member(entry.link_group, path)
            writer.restored.linked.append((path, entry.link_group))
        writer.accept(entry, path)
        if writer.has_content(entry, path):
            writer.create_file(opened.get(parent), name, entry, path)
        else:
            filling.add(opened, parent, name, entry)


def _outward(error: OSError) -> Exception:
    if error.errno in (errno.ENAMETOOLONG, errno.EILSEQ):
        what = "a name" if error.filename is None else quote(error.filename)
        return Unable(f"the target's file system cannot hold {what}: {(error.strerror or '').lower()}")
    return error

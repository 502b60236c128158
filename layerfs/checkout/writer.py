"""Writer: one entry of a state made in a directory, or changed there.

Owns how files that come alone, links and special files are made, hard-link groups, and replacing what is there (a new
inode under a temporary name, renamed). A file is whole before it has its name's attributes; their order is in
``attributes``. Whole states, whose files come in great numbers, are ``checkout``'s; which changes come in which order is
``transition``'s.
"""

from __future__ import annotations

import errno
import os
import stat

from layerfs.capture.captured import Problem, entry_kind
from layerfs.checkout.attributes import Attributes
from layerfs.checkout.filling import write_run
from layerfs.checkout.restored import Restored
from layerfs.checkout.target import PRIVATE_DIRECTORY, OpenDirectory, named
from layerfs.errors import Refused, quote
from layerfs.kernels import native
from layerfs.objects.chunking import HOLE_MIN, PAGE
from layerfs.objects.content import iter_pieces
from layerfs.objects.entry import Entry, EntryKind, device_number
from layerfs.objects.environment import Change, split
from layerfs.objects.source import ObjectSource
from layerfs.progress import SILENT, Progress

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PRIVATE = 0o600
TEMPORARY = b".layerfs-new-%d-%d"


def temporary_prefix(pid: int) -> bytes:
    """Return how the temporary names of one process begin."""
    return TEMPORARY.partition(b"%d")[0] + b"%d-" % pid


class Writer:
    """Writes entries into directories; remembers link groups. One per operation and target."""

    def __init__(
        self,
        source: ObjectSource,
        target: int,
        *,
        owners: bool,
        inherits: bool = False,
        progress: Progress = SILENT,
    ) -> None:
        self.source = source
        self.target = target
        self.progress = progress
        self.restored = Restored()
        self.attributes = Attributes(self.restored, owners=owners, inherits=inherits)
        self._groups: dict[int, bytes] = {}
        self._serial = 0

    def accept(self, entry: Entry, path: bytes) -> None:
        """Raise if an entry cannot be in the target at all; asked of every entry before it is made."""

    def has_content(self, entry: Entry, path: bytes) -> bool:
        """Whether :meth:`fill` may have a file's content from elsewhere, so that it is to be made by itself."""
        return False

    def fill(self, fd: int, entry: Entry, path: bytes) -> None:
        """Fill an empty file; ``path`` is for those who have its content elsewhere too."""
        write_content(self.source, fd, entry)

    def create(self, directory: int, name: bytes, entry: Entry, path: bytes) -> None:
        """Create one entry, which is no directory, under a name that does not exist yet."""
        self.accept(entry, path)
        if entry.link_group:
            self.restored.linked.append((path, entry.link_group))
        try:
            if entry.link_group and self._link(directory, name, entry, path):
                return
            if entry.kind is EntryKind.FILE:
                self.create_file(directory, name, entry, path)
            else:
                self._create_special(directory, name, entry, path)
        except OSError as error:
            raise named(error, path) from error
        if entry.link_group:
            self._groups[entry.link_group] = path

    def make_directory(self, directory: int, name: bytes, path: bytes) -> None:
        """Make a private directory; its attributes come last."""
        try:
            os.mkdir(name, PRIVATE_DIRECTORY, dir_fd=directory)
        except OSError as error:
            raise named(error, path) from error

    def create_file(self, directory: int, name: bytes, entry: Entry, path: bytes) -> None:
        """Create a file with a content of its own, whatever group it is in."""
        fd = os.open(name, CREATE, PRIVATE, dir_fd=directory)
        try:
            self.fill(fd, entry, path)
            self.attributes.set(fd, entry, path)
        except OSError:
            os.unlink(name, dir_fd=directory)
            raise
        finally:
            os.close(fd)
        self.restored.files += 1
        self.restored.size += entry.size
        self.progress.advance(1, entry.size)

    def _create_special(self, directory: int, name: bytes, entry: Entry, path: bytes) -> None:
        try:
            if entry.kind is EntryKind.SYMLINK:
                os.symlink(entry.ref, name, dir_fd=directory)
            elif entry.kind is EntryKind.FIFO:
                os.mknod(name, stat.S_IFIFO | PRIVATE, dir_fd=directory)
            elif entry.kind is EntryKind.SOCKET:
                os.mknod(name, stat.S_IFSOCK | PRIVATE, dir_fd=directory)
            else:
                kind = stat.S_IFCHR if entry.kind is EntryKind.CHARDEV else stat.S_IFBLK
                os.mknod(name, kind | PRIVATE, os.makedev(*device_number(entry)), dir_fd=directory)
        except PermissionError:
            self.restored.problems.append(Problem(path, "a device node needs root"))
            return
        self.attributes.set_named(directory, name, entry, path)
        self.restored.others += 1

    def _link(self, directory: int, name: bytes, entry: Entry, path: bytes) -> bool:
        """Link to the member of the group that is there already; False when this is the first."""
        first = self._groups.get(entry.link_group)
        if first is None:
            return False
        parent, last = split(first)
        with OpenDirectory(self.target, parent) as source:
            try:
                os.link(last, name, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
            except OSError as error:
                if error.errno not in (errno.EMLINK, errno.EPERM, errno.EXDEV):
                    raise
                self.restored.problems.append(Problem(path, "a hard link could not be made; it is a copy"))
                return False
        self.restored.files += 1
        self.progress.advance(1, entry.size)
        return True

    # -- changing -------------------------------------------------------------------------------------------------

    def change(self, change: Change, keep_content: bool) -> None:
        """Make one path, whose directory exists, what ``change.new`` says; directories keep what they hold."""
        parent, name = split(change.path)
        new = change.new
        if new is None:
            raise ValueError("removals are done by remove()")
        with OpenDirectory(self.target, parent) as directory:
            present = _kind_at(directory, name)
            expected = None if change.old is None or goes_away(change) else change.old.kind
            if present is not expected:
                raise Refused(
                    f"{quote(change.path)} is not what it was when the change was prepared",
                    "commit or move what is there, then try again",
                )
            if new.kind is EntryKind.DIR:
                if present is None:
                    self.make_directory(directory, name, change.path)
                return
            if keep_content:
                self.attributes.set_named(directory, name, new, change.path)
                return
            self._serial += 1
            temporary = TEMPORARY % (os.getpid(), self._serial)
            self.create(directory, temporary, new, change.path)
            if _kind_at(directory, temporary) is not None:
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
                if new.link_group:
                    self._drop_temporary(directory, temporary)

    @staticmethod
    def _drop_temporary(directory: int, temporary: bytes) -> None:
        """rename(2) of two names of one file leaves both: the name is right already, the other one has to go."""
        try:
            os.unlink(temporary, dir_fd=directory)
        except FileNotFoundError:
            return

    def directory_attributes(self, path: bytes, entry: Entry) -> None:
        """Set an existing directory's own attributes."""
        with OpenDirectory(self.target, path) as directory:
            self.attributes.set(directory, entry, path)

    def open_up(self, path: bytes) -> None:
        """Make an existing directory writable for its owner, who is not root; its real mode is set at the end."""
        try:
            with OpenDirectory(self.target, path) as directory:
                os.fchmod(directory, stat.S_IMODE(os.fstat(directory).st_mode) | stat.S_IRWXU)
        except FileNotFoundError:
            return

    def remove(self, path: bytes, old: Entry) -> None:
        """Remove one path that ``old`` described; a directory only if it is empty."""
        parent, name = split(path)
        try:
            with OpenDirectory(self.target, parent) as directory:
                if old.kind is EntryKind.DIR:
                    os.rmdir(name, dir_fd=directory)
                else:
                    os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            return
        self.restored.removed += 1

    def has_member(self, group: int) -> bool:
        """Whether a member of a link group is known, so that others will be linked to it."""
        return group in self._groups

    def known_member(self, group: int, path: bytes) -> None:
        """Say that ``path`` already is a member of a link group, so that new members are linked to it."""
        self._groups.setdefault(group, path)


def _kind_at(directory: int, name: bytes) -> EntryKind | None:
    try:
        return entry_kind(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def write_content(source: ObjectSource, fd: int, entry: Entry) -> None:
    """Write a file's content into an empty open file; long runs of zeros become holes."""
    at = 0
    for length, data in iter_pieces(source, entry.ref, entry.size):
        if data is not None:
            _write_sparse(fd, data, at)
        at += length
    os.ftruncate(fd, entry.size)


def _write_sparse(fd: int, data: bytes, at: int) -> None:
    position = 0
    view = memoryview(data)
    for start, end in native.zero_runs(data, PAGE) if len(data) >= HOLE_MIN else ():
        if end - start >= HOLE_MIN:
            write_run(fd, (view[position:start],), at + position)
            position = end
    write_run(fd, (view[position:],), at + position)


def goes_away(change: Change) -> bool:
    """Whether the old entry has to be removed before the new one can be made."""
    old, new = change.old, change.new
    if old is None:
        return False
    return new is None or (old.kind is EntryKind.DIR) != (new.kind is EntryKind.DIR)

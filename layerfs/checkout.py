"""Checkout: a tree of objects in, a directory on disk out – whole, or as the difference between two states.

Owns the order in which an entry becomes true (data, owner, extended attributes, mode, times; directories last, children
before their parent) and the rule that nothing is ever written outside of the target: every name is opened relative to
its directory without following links, and a component that is a symlink stops the operation. What the machine cannot
represent (owners without root, devices, some attributes) is restored as far as it goes and listed as a problem.

Callers decide where the target is and that it may be written; workspaces, ``checkout``, ``restore`` and ``update`` share
this code.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from layerfs import native
from layerfs.capture import Problem, entry_kind
from layerfs.errors import MalformedObject, Refused, Unable, quote
from layerfs.ids import ObjectId
from layerfs.objects.chunking import HOLE_MIN, ONE_PIECE_LIMIT, PAGE
from layerfs.objects.content import iter_pieces
from layerfs.objects.entry import Entry, EntryKind, Xattrs, device_number
from layerfs.objects.environment import Change, join, lookup_path, path_key, split, tree_of
from layerfs.objects.source import BulkSource, ObjectSource
from layerfs.objects.trees import iter_tree
from layerfs.progress import SILENT, Progress

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE = 0o600
_PRIVATE_DIRECTORY = 0o700
MOST_WAITING = 100_000
KEPT_OPEN = 128
TEMPORARY = b".layerfs-new-%d-%d"
_UNREPRESENTED = (errno.EPERM, errno.EOPNOTSUPP, errno.EACCES, errno.EINVAL, errno.ENOSPC, errno.ENOTSUP)


def temporary_prefix(pid: int) -> bytes:
    """Return how the temporary names of one process begin."""
    return TEMPORARY.partition(b"%d")[0] + b"%d-" % pid


class Restored:
    """What a checkout did: counts, and what could not be represented."""

    __slots__ = ("cloned", "files", "foreign_owners", "others", "problems", "removed", "size")

    def __init__(self) -> None:
        self.files = self.others = self.size = self.removed = self.cloned = 0
        self.foreign_owners = 0
        self.problems: list[Problem] = []

    @property
    def complete(self) -> bool:
        """Whether everything was restored faithfully (owners excepted, which need root)."""
        return not self.problems


class Writer:
    """Writes entries into directories; remembers link groups. One per operation and target.

    ``owners`` False leaves owners as they fall (not root): then everything belongs to the caller, and set-id bits are
    still restored where the kernel allows it. ``inherits`` says that directories of the target may hold default ACLs,
    which the kernel copies to whatever is created in them: then what came that way is taken off again.
    """

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
        self.inherits = inherits
        self.target = target
        self.owners = owners
        self.progress = progress
        self.restored = Restored()
        self._groups: dict[int, bytes] = {}
        self._uid = os.geteuid()
        self._gid = os.getegid()
        self._serial = 0
        self._bulk = source if isinstance(source, BulkSource) else None
        self._waiting: list[tuple[bytes, Entry]] | None = None
        self._made: list[tuple[bytes, Entry]] = []

    # -- creating -------------------------------------------------------------------------------------------------

    def create_all(self, directory: int, root: Entry) -> None:
        """Create a whole environment inside the open, empty ``directory``, its own attributes included.

        Contents of small files are written in the order in which the packs have them, not in the order of paths: each
        frame is then decoded once, whatever a repack made neighbours. So files wait until there are many, and the
        attributes of directories wait until everything is in them.
        """
        self.strip_xattrs(directory)
        if self._bulk is not None:
            self._waiting = []
        self.create_tree(directory, root, b"")
        self._write_waiting()
        self._waiting = None
        with OpenDirectories(self.target) as opened:
            for path, entry in reversed(self._made):
                self.set_attributes(opened.get(path), entry, path)
        self.set_attributes(directory, root, b"")

    def _write_waiting(self) -> None:
        """Write the files that wait, each content read once."""
        if not self._waiting or self._bulk is None:
            return
        users: dict[ObjectId, list[tuple[bytes, Entry]]] = {}
        for path, entry in self._waiting:
            users.setdefault(ObjectId(entry.ref), []).append((path, entry))
        self._waiting.clear()
        with OpenDirectories(self.target) as opened:
            for oid, _, payload in self._bulk.read_many(users):
                for path, entry in users[oid]:
                    if len(payload) != entry.size:
                        raise MalformedObject("malformed content: chunk does not fit the file's size")
                    parent, name = split(path)
                    self._create_file(opened.get(parent), name, entry, path, payload)

    def create_tree(self, directory: int, tree_entry: Entry, path: bytes) -> None:
        """Create everything that ``tree_entry`` holds inside the open, empty ``directory``; not its own attributes."""
        for name, entry in iter_tree(self.source, tree_of(tree_entry)):
            self.create(directory, name, entry, join(path, name))

    def create(self, directory: int, name: bytes, entry: Entry, path: bytes) -> None:
        """Create one entry, with everything below it, under a name that does not exist yet."""
        if entry.kind is EntryKind.DIR:
            self.make_directory(directory, name)
            inner = os.open(name, _DIRECTORY, dir_fd=directory)
            try:
                self.create_tree(inner, entry, path)
                if self._waiting is None:
                    self.set_attributes(inner, entry, path)
                else:
                    self._made.append((path, entry))
            finally:
                os.close(inner)
            self.restored.others += 1
            return
        if self._waiting is not None and _is_one_chunk(entry):
            self._waiting.append((path, entry))
            if len(self._waiting) >= MOST_WAITING:
                self._write_waiting()
            return
        if entry.link_group and self._link(directory, name, entry, path):
            return
        if entry.kind is EntryKind.FILE:
            self._create_file(directory, name, entry, path)
        else:
            self._create_special(directory, name, entry, path)
        if entry.link_group:
            self._groups[entry.link_group] = path

    def make_directory(self, directory: int, name: bytes) -> None:
        """Make a private directory; its attributes come last."""
        os.mkdir(name, _PRIVATE_DIRECTORY, dir_fd=directory)

    def _create_file(
        self, directory: int, name: bytes, entry: Entry, path: bytes, payload: bytes | None = None
    ) -> None:
        fd = os.open(name, _CREATE, _PRIVATE, dir_fd=directory)
        try:
            if payload is None:
                self.write(fd, entry, path)
            else:
                write_payload(fd, payload)
            self.set_attributes(fd, entry, path)
        finally:
            os.close(fd)
        self.restored.files += 1
        self.restored.size += entry.size
        self.progress.advance(1, entry.size)

    def write(self, fd: int, entry: Entry, path: bytes) -> None:
        """Fill an empty file; ``path`` is for those who have its content elsewhere too."""
        write_content(self.source, fd, entry)

    def _create_special(self, directory: int, name: bytes, entry: Entry, path: bytes) -> None:
        try:
            if entry.kind is EntryKind.SYMLINK:
                os.symlink(entry.ref, name, dir_fd=directory)
            elif entry.kind is EntryKind.FIFO:
                os.mknod(name, stat.S_IFIFO | _PRIVATE, dir_fd=directory)
            elif entry.kind is EntryKind.SOCKET:
                os.mknod(name, stat.S_IFSOCK | _PRIVATE, dir_fd=directory)
            else:
                kind = stat.S_IFCHR if entry.kind is EntryKind.CHARDEV else stat.S_IFBLK
                os.mknod(name, kind | _PRIVATE, os.makedev(*device_number(entry)), dir_fd=directory)
        except PermissionError:
            self.restored.problems.append(Problem(path, "a device node needs root"))
            return
        self._named_attributes(directory, name, entry, path)
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

    # -- attributes -----------------------------------------------------------------------------------------------

    def set_attributes(self, fd: int, entry: Entry, path: bytes) -> None:
        """Give an open file or directory its owner, extended attributes, mode and times, in this order.

        Changing the owner drops capabilities and set-id bits, and setting attributes moves ctime only, so any other order
        loses something.
        """
        if self._changes_owner(entry):
            try:
                os.fchown(fd, entry.uid, entry.gid)
            except OSError as error:
                self._cannot(path, "owner", error)
        target = b"/proc/self/fd/%d" % fd
        if self.inherits:
            self._replace_xattrs(target, entry.xattrs, path, follow=True)
        self._set_xattrs(target, entry.xattrs, path, follow=True)
        try:
            os.fchmod(fd, entry.mode)
        except OSError as error:
            self._cannot(path, "mode", error)
        os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))

    def strip_xattrs(self, fd: int) -> None:
        """Take every extended attribute off an open directory, so that nothing created in it inherits an ACL."""
        self._replace_xattrs(b"/proc/self/fd/%d" % fd, (), b"", follow=True)

    def _named_attributes(self, directory: int, name: bytes, entry: Entry, path: bytes) -> None:
        """The same for something that is not open. An ``O_PATH`` handle cannot be swapped for a link in between."""
        if entry.kind is EntryKind.SYMLINK:
            self._link_attributes(directory, name, entry, path)
            return
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            target = b"/proc/self/fd/%d" % handle
            if self._changes_owner(entry):
                try:
                    os.chown(target, entry.uid, entry.gid)
                except OSError as error:
                    self._cannot(path, "owner", error)
            self._replace_xattrs(target, entry.xattrs, path, follow=True)
            self._set_xattrs(target, entry.xattrs, path, follow=True)
            try:
                os.chmod(target, entry.mode)
            except OSError as error:
                self._cannot(path, "mode", error)
            os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(handle)

    def _link_attributes(self, directory: int, name: bytes, entry: Entry, path: bytes) -> None:
        if self._changes_owner(entry):
            try:
                os.chown(name, entry.uid, entry.gid, dir_fd=directory, follow_symlinks=False)
            except OSError as error:
                self._cannot(path, "owner", error)
        self._set_xattrs(b"/proc/self/fd/%d/%s" % (directory, name), entry.xattrs, path, follow=False)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=directory, follow_symlinks=False)

    def _changes_owner(self, entry: Entry) -> bool:
        if self.owners:
            return True
        if (entry.uid, entry.gid) != (self._uid, self._gid):
            self.restored.foreign_owners += 1
        return False

    def _set_xattrs(self, target: bytes, xattrs: Xattrs, path: bytes, *, follow: bool) -> None:
        for key, value in xattrs:
            try:
                os.setxattr(target, key, value, follow_symlinks=follow)
            except OSError as error:
                self._cannot(path, f"extended attribute {quote(key)}", error)

    def _replace_xattrs(self, target: bytes, xattrs: Xattrs, path: bytes, *, follow: bool) -> None:
        wanted = {key for key, _ in xattrs}
        try:
            present = os.listxattr(target, follow_symlinks=follow)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            present = []
        for key in present:
            if os.fsencode(key) not in wanted:
                try:
                    os.removexattr(target, key, follow_symlinks=follow)
                except OSError as error:
                    self._cannot(path, f"extended attribute {quote(key)}", error)

    def _cannot(self, path: bytes, what: str, error: OSError) -> None:
        if error.errno not in _UNREPRESENTED:
            raise error
        self.restored.problems.append(Problem(path, f"{what}: {os.strerror(error.errno or 0).lower()}"))

    # -- changing -------------------------------------------------------------------------------------------------

    def change(self, change: Change, keep_content: bool) -> None:
        """Make one path, whose directory exists, what ``change.new`` says; directories keep what they hold."""
        parent, name = split(change.path)
        new = change.new
        if new is None:
            raise ValueError("removals are done by remove()")
        with OpenDirectory(self.target, parent) as directory:
            present = _kind_at(directory, name)
            expected = None if change.old is None or _goes_away(change) else change.old.kind
            if present is not expected:
                raise Refused(
                    f"{quote(change.path)} is not what it was when the change was prepared",
                    "commit or move what is there, then try again",
                )
            if new.kind is EntryKind.DIR:
                if present is None:
                    self.make_directory(directory, name)
                return
            if keep_content:
                self._named_attributes(directory, name, new, change.path)
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
            self.set_attributes(directory, entry, path)

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

    def known_member(self, group: int, path: bytes) -> None:
        """Say that ``path`` already is a member of a link group, so that new members are linked to it."""
        self._groups.setdefault(group, path)


class OpenDirectory:
    """A directory below an open one, reached name by name without following a link; a context manager of its fd."""

    def __init__(self, top: int, path: bytes) -> None:
        self._top = top
        self._path = path
        self._fd = -1

    def __enter__(self) -> int:
        fd = os.open(b".", _DIRECTORY, dir_fd=self._top)
        try:
            for name in path_key(self._path):
                inner = os.open(name, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = inner
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise Refused(
                    f"{quote(self._path)} leads through something that is not a directory",
                    "layerfs writes through no symbolic link; move it away and try again",
                ) from None
            raise
        self._fd = fd
        return fd

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)


def _kind_at(directory: int, name: bytes) -> EntryKind | None:
    try:
        return entry_kind(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def _is_one_chunk(entry: Entry) -> bool:
    """Whether a file's content is one object, and its names are not tied to other files'."""
    return entry.kind is EntryKind.FILE and 0 < entry.size < ONE_PIECE_LIMIT and not entry.link_group


class OpenDirectories:
    """Directories below a target, kept open while files are written into them; a context manager."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def __enter__(self) -> OpenDirectories:
        return self

    def __exit__(self, *exc: object) -> None:
        for fd in self._open.values():
            os.close(fd)

    def get(self, path: bytes) -> int:
        """Return a descriptor of a directory, good until the next call."""
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
            return fd
        parent, name = split(path)
        if path:
            fd = _open_real(name, self.get(parent), path)
        else:
            fd = os.open(b".", _DIRECTORY, dir_fd=self._target)
        self._open[path] = fd
        if len(self._open) > KEPT_OPEN:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)
        return fd


def _open_real(name: bytes, directory: int, path: bytes) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Refused(
                f"{quote(path)} is no directory any more", "leave the target alone while it is written"
            ) from None
        raise


def write_payload(fd: int, payload: bytes) -> None:
    """Write a small file's whole content; long runs of zeros become holes."""
    if len(payload) >= HOLE_MIN:
        _write_sparse(fd, payload, 0)
        os.ftruncate(fd, len(payload))
    else:
        _write_all(fd, payload, 0)


def write_content(source: ObjectSource, fd: int, entry: Entry) -> None:
    """Write a file's content into an empty open file; long runs of zeros become holes."""
    at = 0
    for length, data in iter_pieces(source, entry.ref, entry.size):
        if data is not None:
            if length >= HOLE_MIN:
                _write_sparse(fd, data, at)
            else:
                _write_all(fd, data, at)
        at += length
    os.ftruncate(fd, entry.size)


def _write_sparse(fd: int, data: bytes, at: int) -> None:
    position = 0
    view = memoryview(data)
    for start, end in native.zero_runs(data, PAGE):
        if end - start >= HOLE_MIN:
            _write_all(fd, view[position:start], at + position)
            position = end
    _write_all(fd, view[position:], at + position)


def _write_all(fd: int, data: bytes | memoryview, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        at += written
        view = view[written:]


def create_into(
    source: ObjectSource, directory: int, root: Entry, *, owners: bool, progress: Progress = SILENT
) -> Restored:
    """Create the whole environment ``root`` inside the open, empty ``directory``, its own attributes included."""
    return create_by(Writer(source, directory, owners=owners, progress=progress), directory, root)


def create_by(writer: Writer, directory: int, root: Entry) -> Restored:
    """The same, by a writer of the caller's."""
    try:
        writer.create_all(directory, root)
    except OSError as error:
        raise _outward(error) from error
    return writer.restored


def _outward(error: OSError) -> Exception:
    if error.errno in (errno.ENAMETOOLONG, errno.EILSEQ):
        return Unable(f"the target's file system cannot hold a name of this state: {error.strerror}")
    return error


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
        if change.old is not None and _goes_away(change):
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


def _goes_away(change: Change) -> bool:
    """Whether the old entry has to be removed before the new one can be made."""
    old, new = change.old, change.new
    if old is None:
        return False
    return new is None or (old.kind is EntryKind.DIR) != (new.kind is EntryKind.DIR)


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




def prepare_target(path: bytes) -> None:
    """Make ``path`` a directory to check out into; refuse one that holds anything, or that is a symlink."""
    try:
        os.mkdir(path, _PRIVATE_DIRECTORY)
    except FileExistsError:
        refuse_unless_empty(path, "name a new or an empty directory")


def refuse_unless_empty(path: bytes, hint: str) -> None:
    """Refuse what is at ``path`` unless it is an empty directory; ``hint`` says what to do about files in it."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise Refused(f"{quote(path)} is not a directory", "name a new or an empty directory")
    with os.scandir(path) as entries:
        if next(entries, None) is not None:
            raise Refused(f"{quote(path)} is not empty", hint)

"""Attributes: an entry's owner, extended attributes, mode and times, given to what was just made of it.

Owns their order – owner, extended attributes, mode, times: changing the owner drops capabilities and set-id bits, and
setting attributes moves ctime only, so any other order loses something – and what to do where this machine cannot
represent one: it is noted as a problem and the rest goes on. ``native.write_files`` does the same for small files.
"""

from __future__ import annotations

import errno
import os

from layerfs.capture.captured import Problem
from layerfs.checkout.restored import Restored
from layerfs.errors import quote
from layerfs.objects.entry import Entry, EntryKind, Xattrs

_UNREPRESENTED = (errno.EPERM, errno.EOPNOTSUPP, errno.EACCES, errno.EINVAL, errno.ENOSPC, errno.ENOTSUP)


class Attributes:
    """Sets attributes and notes in ``restored`` what could not be set.

    ``owners`` False leaves owners as they fall (not root): then everything belongs to the caller, and set-id bits are
    still restored where the kernel allows it. ``inherits`` says that directories of the target may hold default ACLs,
    which the kernel copies to whatever is created in them: then what came that way is taken off again.
    """

    def __init__(self, restored: Restored, *, owners: bool, inherits: bool) -> None:
        self.restored = restored
        self.owners = owners
        self.inherits = inherits
        self._owner = os.geteuid(), os.getegid()

    def set(self, fd: int, entry: Entry, path: bytes) -> None:
        """Give them to an open file or directory."""
        if self._changes_owner(entry):
            try:
                os.fchown(fd, entry.uid, entry.gid)
            except OSError as error:
                self.cannot(path, "owner", error)
        target = b"/proc/self/fd/%d" % fd
        if self.inherits:
            self._replace_xattrs(target, entry.xattrs, path, follow=True)
        self._set_xattrs(target, entry.xattrs, path, follow=True)
        try:
            os.fchmod(fd, entry.mode)
        except OSError as error:
            self.cannot(path, "mode", error)
        os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))

    def strip(self, fd: int) -> None:
        """Take every extended attribute off an open directory, so that nothing created in it inherits an ACL."""
        self._replace_xattrs(b"/proc/self/fd/%d" % fd, (), b"", follow=True)

    def set_named(self, directory: int, name: bytes, entry: Entry, path: bytes) -> None:
        """The same for something that is not open. An ``O_PATH`` handle cannot be swapped for a link in between."""
        if entry.kind is EntryKind.SYMLINK:
            self._set_link(directory, name, entry, path)
            return
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            target = b"/proc/self/fd/%d" % handle
            if self._changes_owner(entry):
                try:
                    os.chown(target, entry.uid, entry.gid)
                except OSError as error:
                    self.cannot(path, "owner", error)
            self._replace_xattrs(target, entry.xattrs, path, follow=True)
            self._set_xattrs(target, entry.xattrs, path, follow=True)
            try:
                os.chmod(target, entry.mode)
            except OSError as error:
                self.cannot(path, "mode", error)
            os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(handle)

    def _set_link(self, directory: int, name: bytes, entry: Entry, path: bytes) -> None:
        if self._changes_owner(entry):
            try:
                os.chown(name, entry.uid, entry.gid, dir_fd=directory, follow_symlinks=False)
            except OSError as error:
                self.cannot(path, "owner", error)
        self._set_xattrs(b"/proc/self/fd/%d/%s" % (directory, name), entry.xattrs, path, follow=False)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=directory, follow_symlinks=False)

    def _changes_owner(self, entry: Entry) -> bool:
        if not self.owners:
            self.note_owner(entry.uid, entry.gid)
        return self.owners

    def note_owner(self, uid: int, gid: int) -> None:
        """Count an entry that stays the caller's although it was somebody else's."""
        if (uid, gid) != self._owner:
            self.restored.foreign_owners += 1

    def _set_xattrs(self, target: bytes, xattrs: Xattrs, path: bytes, *, follow: bool) -> None:
        for key, value in xattrs:
            try:
                os.setxattr(target, key, value, follow_symlinks=follow)
            except OSError as error:
                self.cannot(path, f"extended attribute {quote(key)}", error)

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
                    self.cannot(path, f"extended attribute {quote(key)}", error)

    def cannot(self, path: bytes, what: str, error: OSError) -> None:
        """Note that something cannot be represented here; raise an error that says anything else."""
        if error.errno not in _UNREPRESENTED:
            raise error
        self.restored.problems.append(Problem(path, f"{what}: {os.strerror(error.errno or 0).lower()}"))

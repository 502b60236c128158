"""Copies: a state written out as a plain directory, sharing blocks with the layer cache where the file system can.

Where a base of the same or a near state lies in the cache and the file system has reflinks, large files are clones of the
base's and cost neither time nor space; everything else is written from the store. Whether a clone is right is decided
from the two states and from size and time of the base's file, never guessed. Capturing a copy again is in ``snapshot``.
"""

from __future__ import annotations

import errno
import fcntl
import os

from layerfs.checkout.checkout import create_by
from layerfs.checkout.restored import Restored
from layerfs.checkout.target import OpenDirectory
from layerfs.checkout.writer import Writer
from layerfs.errors import LayerfsError, quote
from layerfs.history.history import CommitReader
from layerfs.ids import CommitId
from layerfs.objects.entry import Entry
from layerfs.objects.environment import diff_trees, split
from layerfs.objects.source import ObjectSource
from layerfs.progress import SILENT, Progress
from layerfs.store.store import Store
from layerfs.workspace.layercache import cached_bases

CLONE_MIN = 16 * 1024
MAX_DIFFERENCES = 200_000
_FICLONE = 0x40049409
_CANNOT = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.ENOSYS, errno.EPERM)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Cloner(Writer):
    """A writer that clones the files whose content an open ``base`` directory has at the same path."""

    def __init__(
        self, source: ObjectSource, target: int, base: int, differing: frozenset[bytes], progress: Progress
    ) -> None:
        super().__init__(source, target, owners=os.geteuid() == 0, progress=progress)
        self._base = base
        self._differing = differing
        self._clones = True

    def has_content(self, entry: Entry, path: bytes) -> bool:
        """Whether a file may be a clone."""
        return self._clones and entry.size >= CLONE_MIN and path not in self._differing

    def fill(self, fd: int, entry: Entry, path: bytes) -> None:
        """Fill an empty file."""
        if self.has_content(entry, path) and self._clone(fd, entry, path):
            self.restored.cloned += 1
            return
        super().fill(fd, entry, path)

    def _clone(self, fd: int, entry: Entry, path: bytes) -> bool:
        parent, name = split(path)
        try:
            with OpenDirectory(self._base, parent) as directory:
                twin = os.open(name, _FILE, dir_fd=directory)
        except (OSError, LayerfsError):
            return False
        try:
            info = os.fstat(twin)
            if (info.st_size, info.st_mtime_ns) != (entry.size, entry.mtime_ns):
                return False
            fcntl.ioctl(fd, _FICLONE, twin)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            self._clones = False
            return False
        finally:
            os.close(twin)
        return True


def copy_out(store: Store, commit: CommitId, path: bytes, progress: Progress = SILENT) -> Restored:
    """Write a commit's state into the empty directory at ``path``."""
    progress.phase("copying")
    root = CommitReader(store.objects).root(commit)
    directory = os.open(path, _DIRECTORY)
    try:
        base = _find_base(store, root, path)
        if base is None:
            writer = Writer(store.objects, directory, owners=os.geteuid() == 0, progress=progress)
            return create_by(writer, root)
        fd = os.open(base[0], _DIRECTORY)
        try:
            return create_by(_Cloner(store.objects, directory, fd, base[1], progress), root)
        finally:
            os.close(fd)
    finally:
        os.close(directory)


def _find_base(store: Store, root: Entry, path: bytes) -> tuple[bytes, frozenset[bytes]] | None:
    """Return a cached base to clone from and the paths at which it differs; None where nothing can be cloned."""
    bases = cached_bases(store)
    if not bases or not _has_reflinks(path):
        return None
    bases.sort(key=lambda base: base[1].ref != root.ref)
    place, shown = bases[0]
    differing: set[bytes] = set()
    for change in diff_trees(store.objects, shown, root):
        differing.add(change.path)
        if len(differing) > MAX_DIFFERENCES:
            return None
    return place, frozenset(differing)


def _has_reflinks(path: bytes) -> bool:
    unnamed: list[int] = []
    try:
        for _ in range(2):
            unnamed.append(os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
        os.write(unnamed[0], bytes(4096))
        fcntl.ioctl(unnamed[1], _FICLONE, unnamed[0])
    except OSError:
        return False
    finally:
        for fd in unnamed:
            os.close(fd)
    return True


def restored_notes(restored: Restored) -> list[str]:
    """Say what a copy could not have."""
    notes = [f"layerfs: not restored: {quote(problem.path)}: {problem.why}" for problem in restored.problems]
    return notes + foreign_notes(restored)


def foreign_notes(restored: Restored) -> list[str]:
    """Say in one line that owners, which only root can give, are the caller's."""
    if not restored.foreign_owners:
        return []
    return [
        f"layerfs: owners of {restored.foreign_owners} entries were not restored (not root); "
        "what you leave unchanged keeps its owner in commits"
    ]

"""What a merge asks about captured git repositories as wholes: which paths they track, and where their refs stand.

Invariant: after a merge every ref reads as the value that follows from the three sides, whether it lies loose or packed;
where that cannot be had the ref is reported as a conflict. Everything is read lazily, so an environment without git, or
a merge that does not touch it, pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from layerfs.merge import gitdir
from layerfs.merge.gitrefs import GitRefs
from layerfs.merge.threeway import CLASH, merge_value
from layerfs.objects.content import read_content
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import Change, join, lookup_path, split
from layerfs.objects.source import ObjectSource


def is_refreshed_index(
    source: ObjectSource, change: Change, live: Callable[[bytes], bytes] | None = None
) -> bool:
    """Whether all that changed is a git index whose stat data were brought up to date, as ``git status`` does unasked.

    ``live`` reads the new content by its path where the source has only its name.
    """
    path, old, new = change
    if old is None or new is None or old.kind is not EntryKind.FILE or new.kind is not EntryKind.FILE:
        return False
    if split(path)[1] != b"index" or b".git" not in path.split(b"/"):
        return False
    if old._replace(mtime_ns=new.mtime_ns, size=new.size, ref=new.ref) != new:
        return False
    if old.ref == new.ref:
        return True
    try:
        now = live(path) if live is not None else read_content(source, new)
    except OSError:
        return False
    return gitdir.is_same_index(read_content(source, old), now)


class GitState:
    """The git directories inside three states of an environment."""

    def __init__(self, source: ObjectSource, base: Entry | None, ours: Entry, theirs: Entry) -> None:
        self._source = source
        self._roots = (base, ours, theirs)
        self.refs = (GitRefs(source, base), GitRefs(source, ours), GitRefs(source, theirs))
        self._tracked: dict[bytes, frozenset[bytes] | None] = {}
        self._expected: dict[bytes, dict[bytes, bytes]] = {}

    def is_tracked(self, path: bytes) -> bool:
        """Whether the nearest repository tracks the path on either side: then it is source, whatever its name."""
        directory = path
        while directory:
            directory = split(directory)[0]
            tracked = self._tracked_below(directory)
            if tracked is not None:
                return path[len(directory) + 1 if directory else 0 :] in tracked
        return False

    def _tracked_below(self, directory: bytes) -> frozenset[bytes] | None:
        if directory not in self._tracked:
            tracked: set[bytes] = set()
            found = False
            for root in self._roots[1:]:
                index = (
                    None if root is None else lookup_path(self._source, root, join(directory, b".git/index"))
                )
                if index is not None and index.kind is EntryKind.FILE:
                    found = True
                    entries = gitdir.read_index(read_content(self._source, index))
                    tracked.update(entry.path for entry in entries or ())
            self._tracked[directory] = frozenset(tracked) if found else None
        return self._tracked[directory]

    def compare_refs(self, git_directory: bytes) -> Iterator[bytes]:
        """Yield the paths of refs both sides moved, wherever they lie; remember what all others must become.

        Called where ``packed-refs`` changed: then a move may hide in either of two places.
        """
        base, ours, theirs = (refs.values(git_directory) for refs in self.refs)
        if base is None or ours is None or theirs is None:
            return  # whoever changed a file that nobody understands conflicts as a file
        expected: dict[bytes, bytes] = {}
        for name in sorted(base.keys() | ours.keys() | theirs.keys()):
            value = merge_value(base.get(name), ours.get(name), theirs.get(name))
            if value is CLASH:
                yield join(git_directory, name)
            elif value is not None:
                expected[name] = value
        self._expected[git_directory] = expected

    def misplaced_refs(self, root: Entry) -> Iterator[bytes]:
        """Yield the paths of refs that do not read as they must in the merged environment."""
        for git_directory, expected in self._expected.items():
            found = GitRefs(self._source, root).values(git_directory) or {}
            yield from (
                join(git_directory, name) for name, value in expected.items() if found.get(name) != value
            )

    def terms(self, path: bytes) -> tuple[Entry | None, Entry | None, Entry | None]:
        """Return the entries at ``path`` in base, ours and theirs."""
        base, ours, theirs = (
            None if root is None else lookup_path(self._source, root, path) for root in self._roots
        )
        return base, ours, theirs

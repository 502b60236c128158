"""Renames of one side, looked up only when a deletion on that side has to be explained.

Two sources, in this order: renames the side's commits recorded (files or whole directories), and exact content: one
deleted and one added path with the same content of at least 64 bytes, outside caches, packages and git directories. No
similarity is ever guessed. A merge without modify/delete never pays for any of this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from layerfs.merge.classes import PathClass, class_of
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import diff_trees
from layerfs.objects.source import ObjectSource

SMALLEST_RENAME = 64

RenameList = Iterable[tuple[bytes, bytes]]


class Renames:
    """The renames between the base and one side; recorded ones come oldest first and may build on each other."""

    def __init__(self, source: ObjectSource, base: Entry | None, side: Entry, recorded: RenameList) -> None:
        self._source = source
        self._base = base
        self._side = side
        self.recorded: Mapping[bytes, bytes] = compose(recorded)
        self._exact: Mapping[bytes, bytes] | None = None

    def target(self, path: bytes) -> bytes | None:
        """Return where ``path`` went, or None if nothing says so."""
        return self.recorded_target(path) or self.exact().get(path)

    def recorded_target(self, path: bytes) -> bytes | None:
        """Return where a recorded rename of the path or of a directory above it leads."""
        if not self.recorded:
            return None
        rest: list[bytes] = []
        old = path
        while old:
            new = self.recorded.get(old)
            if new is not None:
                return b"/".join((new, *reversed(rest)))
            old, _, name = old.rpartition(b"/")
            rest.append(name)
        return None

    def exact(self) -> Mapping[bytes, bytes]:
        """Return the pairs (old path → new path) whose content moved unchanged and unmistakably."""
        if self._exact is None:
            self._exact = find_exact_renames(self._source, self._base, self._side)
        return self._exact


def compose(renames: RenameList) -> dict[bytes, bytes]:
    """Return first path → last path for renames made one after the other, those of parent directories included."""
    composed: dict[bytes, bytes] = {}
    for old, new in renames:
        continued = False
        for first, last in composed.items():
            if last == old or last.startswith(old + b"/"):
                composed[first] = new + last[len(old) :]
                continued |= last == old
        if not continued:
            composed[old] = new
    return {first: last for first, last in composed.items() if first != last}


def find_exact_renames(source: ObjectSource, before: Entry | None, after: Entry) -> dict[bytes, bytes]:
    """Return old → new for each content that left exactly one path and came to exactly one path."""
    gone: dict[bytes, list[bytes]] = defaultdict(list)
    come: dict[bytes, list[bytes]] = defaultdict(list)
    for path, old, new in diff_trees(source, before, after):
        if old is not None and new is None and _countable(path, old):
            gone[old.ref].append(path)
        elif old is None and new is not None and _countable(path, new):
            come[new.ref].append(path)
    return {
        paths[0]: come[ref][0]
        for ref, paths in gone.items()
        if len(paths) == 1 and len(come.get(ref, ())) == 1
    }


def _countable(path: bytes, entry: Entry) -> bool:
    return (
        entry.kind is EntryKind.FILE and entry.size >= SMALLEST_RENAME and class_of(path) is PathClass.PLAIN
    )

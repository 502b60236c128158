"""Moved files: content that is new at its path, and what went from other paths in the same capture.

A file that was renamed and edited has no older version at its path, and would be stored whole. So new small files wait,
within bounds, until it is known which files are gone; what one of these is much like is stored as a difference. Files of
the same name are looked at first, then those of the same extension, about the same size, and the most words of the path
in common. A hint is all that comes of it: the content and its id are the same either way.

Only where objects are kept is anything waited for: a look at a workspace, and a first capture, pay nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import NamedTuple

from layerfs.errors import MalformedObject, MissingObject, StoreDamaged
from layerfs.ids import ObjectId
from layerfs.objects.chunking import ONE_PIECE_LIMIT
from layerfs.objects.content import put_chunk
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import join
from layerfs.objects.frames import encode_stream
from layerfs.objects.kinds import Kind, object_id
from layerfs.objects.source import KeepingStore, ObjectStore
from layerfs.objects.trees import decode_node

WAITING_BYTES = 8 * 1024 * 1024
WAITING_FILES = 4096
LEAST_BYTES = 256
"""Shorter content is not worth the look."""

GONE_FILES = 20_000
NODES_READ, NODES_READ_EACH = 64, 8
"""Of directories that are gone so many nodes are read, and so many more for each file that waits."""

SAME_NAME, SAME_EXTENSION = 2, 3
"""Files looked at for one. Measured on 132 states of a public history: of 75 MB of new files a quarter was found; 19 MB
became 0.9, the rest 14.3. By name alone 13 MB were found; with eight of an extension, no more."""

LOOKS, LOOKS_EARNED = 64, 12
"""Looks in one capture, and how many more each that finds something is worth: where nothing came from there, it ends."""

KEPT_OF_A_NAME, NEAR_IN_SIZE = 32, 32
TRIAL_LEVEL = 3
WORTH = 5
"""In a frame with others content shrinks to a quarter or so; what a difference saves has to be more."""

_WORD = re.compile(rb"[a-z0-9]+|[A-Z]+[a-z0-9]*")


class _Gone(NamedTuple):
    """A file that is gone: its content's size and id, where it was, and the words of that."""

    size: int
    path: bytes
    oid: ObjectId
    words: frozenset[bytes]


class Moved:
    """What waits, and what is gone, in one capture into ``store``; ``is_first``: there was nothing before."""

    def __init__(self, store: ObjectStore, is_first: bool = False) -> None:
        self._store = store
        self._keeping = store if not is_first and isinstance(store, KeepingStore) else None
        self._waiting: dict[ObjectId, tuple[bytes, bytes]] = {}
        self._size = 0
        self._trees: list[tuple[bytes, ObjectId]] = []
        self._names: dict[bytes, list[_Gone]] = {}
        self._extensions: dict[bytes, list[_Gone]] = {}
        self._count = 0
        self._looks = LOOKS

    @property
    def is_idle(self) -> bool:
        """Whether nothing that is gone is of interest here."""
        return self._keeping is None

    def put(self, path: bytes, data: bytes, before: Entry | None) -> ObjectId:
        """Put the content of a file that is one chunk, now or later; ``before`` is what the store has at its path."""
        if self._keeping is None or len(data) < LEAST_BYTES or _is_small_file(before):
            return put_chunk(self._store, data, before)
        oid = object_id(Kind.CHUNK, data)
        if oid not in self._waiting:
            self._waiting[oid] = path, data
            self._size += len(data)
            if self._size > WAITING_BYTES or len(self._waiting) > WAITING_FILES:
                self.settle()
        return oid

    def gone(self, path: bytes, entry: Entry) -> None:
        """Note what is no longer at its path."""
        if self._keeping is None:
            return
        if entry.kind is EntryKind.DIR:
            self._trees.append((path, ObjectId(entry.ref)))
        elif _is_small_file(entry) and self._count < GONE_FILES:
            found = _Gone(entry.size, path, ObjectId(entry.ref), _words(path))
            for key in {_name(path), _two_names(path)}:
                named = self._names.setdefault(key, [])
                if len(named) < KEPT_OF_A_NAME:
                    named.append(found)
            self._extensions.setdefault(_extension(path), []).append(found)
            self._count += 1

    def settle(self) -> None:
        """Put all that waits: with what it was made from, as far as that is known by now."""
        if self._keeping is None:
            return
        waiting, self._waiting, self._size = self._waiting, {}, 0
        if waiting and self._trees:
            self._look_into_trees(NODES_READ + NODES_READ_EACH * len(waiting))
        origins: dict[ObjectId, ObjectId] = {}
        if self._count:
            new = [(oid, *found) for oid, found in waiting.items() if not self._keeping.contains(oid)]
            self._find(new, self._of_the_name, origins)
            for gone in self._extensions.values():
                gone.sort(key=itemgetter(0))
            self._find(new, self._of_the_extension, origins)
        for oid, (_, data) in waiting.items():
            self._keeping.put(Kind.CHUNK, data, oid, like=origins.get(oid))

    def _find(
        self,
        new: list[tuple[ObjectId, bytes, bytes]],
        candidates: Callable[[bytes, int], list[_Gone]],
        origins: dict[ObjectId, ObjectId],
    ) -> None:
        used = set(origins.values())
        for oid, path, data in new:
            if not self._looks:
                return
            if oid in origins:
                continue
            found = self._closest(
                data, [gone for gone in candidates(path, len(data)) if gone.oid not in used]
            )
            if found is not None:
                origins[oid] = found

    def _of_the_name(self, path: bytes, size: int) -> list[_Gone]:
        both = (*self._names.get(_two_names(path), ()), *self._names.get(_name(path), ()))
        found = {gone.oid: gone for gone in both}.values()
        return sorted(found, key=lambda gone: _nearness(gone, path, size), reverse=True)[:SAME_NAME]

    def _of_the_extension(self, path: bytes, size: int) -> list[_Gone]:
        known = self._extensions.get(_extension(path), [])
        at = bisect_left(known, size, key=itemgetter(0))
        words = _words(path)
        near = [
            gone
            for gone in known[max(0, at - NEAR_IN_SIZE) : at + NEAR_IN_SIZE]
            if gone.size <= 2 * size and size <= 2 * gone.size
        ]
        near.sort(key=lambda gone: (-len(gone.words & words), abs(gone.size - size)))
        return near[:SAME_EXTENSION]

    def _closest(self, data: bytes, candidates: list[_Gone]) -> ObjectId | None:
        best: ObjectId | None = None
        least = len(data) // WORTH
        for gone in candidates:
            if not self._looks:
                break
            self._looks -= 1
            try:
                old = self._store.read(gone.oid, Kind.CHUNK)
            except (StoreDamaged, MissingObject):
                continue
            length = len(encode_stream(data, old, TRIAL_LEVEL))
            if length < least:
                best, least = gone.oid, length
        if best is not None:
            self._looks += LOOKS_EARNED
        return best

    def _look_into_trees(self, most: int) -> None:
        """Note the files of the directories that are gone, up to so many nodes."""
        for path, entry in self._entries(most):
            self.gone(path, entry)

    def _entries(self, most: int) -> Iterator[tuple[bytes, Entry]]:
        while self._trees and most and self._count < GONE_FILES:
            path, oid = self._trees.pop()
            most -= 1
            try:
                node = decode_node(self._store.read(oid, Kind.TREE))
            except (StoreDamaged, MissingObject, MalformedObject):
                continue
            self._trees += [(path, child.oid) for child in node.children]
            for name, entry in node.entries:
                yield join(path, name), entry


def _is_small_file(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is EntryKind.FILE and 0 < entry.size < ONE_PIECE_LIMIT


def _name(path: bytes) -> bytes:
    return path.rpartition(b"/")[2]


def _extension(path: bytes) -> bytes:
    return _name(path).rpartition(b".")[2]


def _two_names(path: bytes) -> bytes:
    return b"/".join(path.rsplit(b"/", 2)[-2:])


def _words(path: bytes) -> frozenset[bytes]:
    return frozenset(_WORD.findall(path))


def _nearness(gone: _Gone, path: bytes, size: int) -> tuple[int, int, int]:
    """How likely a file of the same name is the one: by the names above it, from below, in all, and by its size."""
    old, new = gone.path.split(b"/"), path.split(b"/")
    equal = 0
    for one, other in zip(reversed(old), reversed(new), strict=False):
        if one != other:
            break
        equal += 1
    return equal, len({*old} & {*new}), -abs(gone.size - size)

"""Liveness: which objects of which packs are reachable from given starts.

Owns the marking pass that collection and copying share. Instead of a set of ids it keeps one byte per row of each pack's
index, so five million objects cost five megabytes; nodes to be read wait on a stack that is worked off in bites, each in
the order of the packs, so that every frame is decoded about once. An object that lies in several packs is marked where it
is found first. The indexes are checked to the last byte: one that lies would have something dropped that is needed.

Marking can be repeated with more starts and costs only what is new. Objects outside the given packs (committed after the
list was made) are followed too and remembered by id; there are few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from layerfs.errors import MissingObject, StoreDamaged
from layerfs.ids import ObjectId, short
from layerfs.objects.database import ObjectDatabase
from layerfs.objects.kinds import Kind
from layerfs.objects.links import links_of
from layerfs.objects.packindex import PREFIX_BYTES, PackIndex
from layerfs.progress import SILENT, Progress

BITE = 4096
RECENT = 100_000


class PackMarks:
    """The rows of one pack, one byte each: 1 when the object is reachable."""

    __slots__ = ("index", "number", "rows")

    def __init__(self, number: int, index: PackIndex) -> None:
        self.number = number
        self.index = index
        self.rows = bytearray(index.count)

    def has(self, prefix: bytes, frame: int) -> bool:
        """Whether the object with this id prefix in the frame at this offset is marked."""
        row = self.index.row_of(prefix)
        return row >= 0 and bool(self.rows[row]) and self.index.place_at(row).frame == frame

    def unmarked(self) -> Iterable[int]:
        """Yield the rows that are not marked."""
        row = self.rows.find(0)
        while row >= 0:
            yield row
            row = self.rows.find(0, row + 1)


class _Waiting(NamedTuple):
    """A node that is marked and not yet read; sorts by where it lies."""

    pack: int
    frame: int
    oid: ObjectId


class Liveness:
    """One marking of a store's packs. ``stop`` says that an object, and so all it names, needs no marking."""

    def __init__(
        self,
        database: ObjectDatabase,
        numbers: Iterable[int],
        *,
        stop: Callable[[ObjectId], bool] | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self._database = database
        self._stop = stop
        self._progress = progress
        self.packs = {number: PackMarks(number, database.sound_index(number)) for number in numbers}
        self._order = [self.packs[number] for number in sorted(self.packs, reverse=True)]
        self._recent: set[ObjectId] = set()
        self.others: dict[ObjectId, Kind] = {}
        self.marked = 0

    def mark(self, starts: Iterable[ObjectId]) -> None:
        """Mark everything reachable from ``starts``; raise MissingObject or StoreDamaged when something is not there."""
        waiting: list[_Waiting] = []
        for oid in starts:
            self._see(oid, waiting)
        while waiting:
            bite = waiting[-BITE:]
            del waiting[-BITE:]
            bite.sort()
            for _, _, oid in bite:
                kind, payload = self._database.get(oid)
                for link in links_of(kind, payload):
                    self._see(link, waiting)
            self._progress.advance(len(bite))

    def _see(self, oid: ObjectId, waiting: list[_Waiting]) -> None:
        if oid in self._recent:
            return
        if len(self._recent) >= RECENT:
            self._recent.clear()
        self._recent.add(oid)
        prefix = oid[:PREFIX_BYTES]
        order = self._order
        for at, pack in enumerate(order):
            row = pack.index.row_of(prefix)
            if row < 0:
                continue
            if at:
                order.insert(0, order.pop(at))
            if pack.rows[row] or (self._stop is not None and self._stop(oid)):
                return
            pack.rows[row] = 1
            self.marked += 1
            place = pack.index.place_at(row)
            if place.kind != Kind.CHUNK:
                waiting.append(_Waiting(pack.number, place.frame, oid))
            return
        self._see_elsewhere(oid, waiting)

    def _see_elsewhere(self, oid: ObjectId, waiting: list[_Waiting]) -> None:
        if oid in self.others or (self._stop is not None and self._stop(oid)):
            return
        kind = self._database.kind_of(oid)
        if kind is None:
            raise StoreDamaged(
                f"object {short(oid)}, which is needed, is missing", "'layerfs fsck' names what needs it"
            ) from MissingObject(oid.hex())
        self.others[oid] = kind
        self.marked += 1
        if kind != Kind.CHUNK:
            waiting.append(_Waiting(1 << 62, 0, oid))

    def forget_copies(self, numbers: Iterable[int]) -> None:
        """Unmark in these packs what is also in another one, and mark it there: copies are not worth keeping."""
        doubtful = set(numbers)
        others = [pack for number, pack in sorted(self.packs.items(), reverse=True) if number not in doubtful]
        for number in doubtful:
            pack = self.packs[number]
            row = pack.rows.find(1)
            while row >= 0:
                prefix = pack.index.prefix_at(row)
                for other in others:
                    there = other.index.row_of(prefix)
                    if there >= 0:
                        pack.rows[row] = 0
                        other.rows[there] = 1
                        break
                row = pack.rows.find(1, row + 1)

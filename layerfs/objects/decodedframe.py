"""Decoded frames: a frame's payload in memory, and how an object is taken out of it, verified against its id.

One class for each way in which a frame lists what it holds. What a frame's bytes are is in ``frames``; which frames stay
in memory, and how the prefixes of a delta frame are found, is the affair of ``database``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from layerfs.errors import MissingObject, StoreDamaged
from layerfs.ids import ObjectId, short
from layerfs.objects import frames
from layerfs.objects.kinds import KIND_OF, Kind, object_id
from layerfs.objects.packindex import Place

ROW_WEIGHT = 256
"""What a row of a frame takes in memory; a frame may hold 65,536 objects of no length."""


class DecodedFrame:
    """A frame's payload. An object is taken from the place its index gives, and hashed; the list is read if need be."""

    __slots__ = ("_head", "_list", "_rows", "payload", "verified", "weight")

    def __init__(self, payload: bytes, frame: bytes, head: frames.FrameHead) -> None:
        self.payload = payload
        self._head = head
        self._list = frame[: head.payload_start]
        self._rows: dict[ObjectId, frames.FrameObject] | None = None
        self.weight = len(payload) + ROW_WEIGHT * head.objects
        self.verified: set[bytes] = set()

    @property
    def rows(self) -> dict[ObjectId, frames.FrameObject]:
        """The objects by id."""
        if self._rows is None:
            self._rows = {row.oid: row for row in frames.read_objects(self._list, self._head)}
        return self._rows

    def at(self, place: Place) -> bytes:
        """Return the bytes at a place that an index gives."""
        if place.start + place.length > len(self.payload):
            raise StoreDamaged("pack index points outside its frame")
        return self.payload[place.start : place.start + place.length]

    def object(self, oid: ObjectId, where: str, place: Place | None = None) -> tuple[Kind, bytes]:
        """Return one object, verified against its id (once for as long as the frame is cached)."""
        if place is None:
            row = self.rows.get(oid)
            if row is None:
                raise StoreDamaged(f"object {short(oid)} is not where the index says ({where})")
            place = Place(0, row.start, row.length, row.kind)
        payload = self.at(place)
        if oid not in self.verified:
            if object_id(place.kind, payload) != oid:
                raise StoreDamaged(f"object {short(oid)} {self._fault(oid)} ({where})")
            self.verified.add(oid)
        return KIND_OF[place.kind], payload

    def _fault(self, oid: ObjectId) -> str:
        return "does not verify" if oid in self.rows else "is not where the index says"


class DenseFrame:
    """A dense frame's payload. An object is taken from the place its index gives, and hashed; listing it hashes all."""

    __slots__ = ("_begin", "_head", "_kind", "_raw", "_rows", "payload", "weight")

    def __init__(self, payload: bytes, head: frames.FrameHead) -> None:
        self._raw = payload
        self._head = head
        self._kind = head.flags
        self.payload, self._begin, _ = frames.read_dense(payload, head)
        self.weight = len(payload) + (0 if self.payload is payload else len(self.payload))
        self._rows: dict[ObjectId, frames.FrameObject] | None = None

    @property
    def rows(self) -> dict[ObjectId, frames.FrameObject]:
        """The objects by id."""
        if self._rows is None:
            self._rows = {row.oid: row for row in frames.list_dense(self._raw, self._head)}
        return self._rows

    def at(self, place: Place) -> bytes:
        """Return the bytes at a place that an index gives."""
        start = self._begin + place.start
        if start + place.length > len(self.payload):
            raise StoreDamaged("pack index points outside its frame")
        return self.payload[start : start + place.length]

    def object(self, oid: ObjectId, where: str, place: Place | None = None) -> tuple[Kind, bytes]:
        """Return one object, verified against its id."""
        if place is None:
            row = self.rows.get(oid)
            if row is None:
                raise StoreDamaged(f"object {short(oid)} is not where the index says ({where})")
            place = Place(0, row.start, row.length, row.kind)
        payload = self.at(place)
        if object_id(self._kind, payload) != oid:
            raise StoreDamaged(f"object {short(oid)} does not verify ({where})")
        return KIND_OF[self._kind], payload


class DeltaFrame:
    """A delta frame's payload; its objects are decoded one by one by ``resolve`` when they are asked for."""

    __slots__ = ("_by_start", "data", "resolve", "rows", "weight")

    def __init__(
        self,
        data: bytes,
        rows: Iterable[frames.DeltaObject],
        resolve: Callable[[DeltaFrame, frames.DeltaObject], bytes],
    ) -> None:
        self.data = data
        self.rows = {row.oid: row for row in rows}
        self._by_start = {row.start: row for row in self.rows.values() if row.length}
        self.resolve = resolve
        self.weight = len(data) + ROW_WEIGHT * len(self.rows)

    def object(self, oid: ObjectId, where: str, place: Place | None = None) -> tuple[Kind, bytes]:
        """Return one object, verified against its id."""
        row = self.rows.get(oid)
        if row is None:
            raise StoreDamaged(f"object {short(oid)} is not where the index says ({where})")
        try:
            payload = self.resolve(self, row)
        except MissingObject as error:
            raise StoreDamaged(
                f"object {short(oid)} needs another one to be decoded: {error.message}"
            ) from error
        if object_id(row.kind, payload) != oid:
            raise StoreDamaged(f"object {short(oid)} does not verify ({where})")
        return KIND_OF[row.kind], payload

    def at(self, place: Place) -> frames.DeltaObject:
        """Return the object at a place that an index gives."""
        row = self._by_start.get(place.start)
        if row is None or row.length != place.length:
            raise StoreDamaged("pack index points to no object of its frame")
        return row


Frame = DecodedFrame | DenseFrame | DeltaFrame

"""The two seams through which pure code meets objects: reading one, and putting one.

Everything in ``objects/`` and ``merge/`` takes these instead of a store, so it runs on memory in tests and on packs in
life. Keep them small: this is where another back end would be attached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from layerfs.ids import ObjectId
from layerfs.objects.kinds import Kind


class ObjectSource(Protocol):
    """Something objects can be read from."""

    def read(self, oid: ObjectId, kind: Kind) -> bytes:
        """Return the verified payload; raise MissingObject, or StoreDamaged when bytes or kind do not verify."""


ReadGroup = Callable[[], list[tuple[ObjectId, Kind, bytes]]]
"""A read of some objects that lie together; it verifies them, and may be called in any thread."""


@runtime_checkable
class BulkSource(Protocol):
    """A source that knows in which groups, and in which order of them, many objects are read most cheaply."""

    def read_groups(self, oids: Iterable[ObjectId]) -> list[ReadGroup]:
        """Return the groups; together they give each object once."""


class ObjectSink(Protocol):
    """Something objects can be put into."""

    def put(self, kind: Kind, payload: bytes, *, like: ObjectId | None = None) -> ObjectId:
        """Store the payload (once) and return its id; ``like`` may name an object that is probably similar: a hint."""


class ObjectStore(ObjectSource, ObjectSink, Protocol):
    """Both at once: what edits need, which read old nodes and put new ones."""


@runtime_checkable
class KeepingStore(Protocol):
    """An ``ObjectStore`` that keeps what is put and can say what it has: worth telling what new content is like."""

    def contains(self, oid: ObjectId) -> bool:
        """Whether an object is there already."""

    def put(
        self, kind: Kind, payload: bytes, oid: ObjectId | None = None, *, like: ObjectId | None = None
    ) -> ObjectId:
        """Store the payload, as every sink does; ``oid`` is its id if the caller has hashed it already."""

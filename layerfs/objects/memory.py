"""Objects held in memory: the test stand-in for a store, stricter than the real one.

It verifies every id on the way out, refuses a kind that does not match, and counts reads and puts so that tests can show
that cost follows the change.
"""

from __future__ import annotations

from layerfs.errors import MissingObject, StoreDamaged
from layerfs.ids import ObjectId, short
from layerfs.objects.kinds import Kind, object_id


class MemoryObjects:
    """An ``ObjectStore`` in a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[ObjectId, tuple[Kind, bytes]] = {}
        self.reads = 0
        self.puts = 0

    def put(self, kind: Kind, payload: bytes, *, like: ObjectId | None = None) -> ObjectId:
        """Keep the payload; return its id."""
        self.puts += 1
        oid = object_id(kind, payload)
        self.objects[oid] = (Kind(kind), bytes(payload))
        return oid

    def read(self, oid: ObjectId, kind: Kind) -> bytes:
        """Return the payload; raise MissingObject or StoreDamaged."""
        self.reads += 1
        found = self.objects.get(oid)
        if found is None:
            raise MissingObject(f"object {short(oid)} is not in the store")
        if found[0] is not kind or object_id(kind, found[1]) != oid:
            raise StoreDamaged(f"object {short(oid)} is not the {kind.label} it should be")
        return found[1]

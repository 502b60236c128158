"""Scratch objects: what a look at a workspace needs to put, and nobody keeps.

``status`` compares states that may never be committed. Their trees have to be readable for the comparison; the content of
files only needs its name. So nodes stay in memory and chunks are hashed and forgotten: nothing is compressed, and nothing
is written, also when the store's disk is full.
"""

from __future__ import annotations

from layerfs.ids import ObjectId
from layerfs.objects.kinds import Kind, object_id
from layerfs.objects.source import ObjectSource


class ScratchObjects:
    """An ``ObjectStore`` over a source: everything put but chunks can be read back; nothing outlives it."""

    def __init__(self, source: ObjectSource) -> None:
        self._source = source
        self._nodes: dict[ObjectId, bytes] = {}

    def put(
        self, kind: Kind, payload: bytes, oid: ObjectId | None = None, like: ObjectId | None = None
    ) -> ObjectId:
        """Return the id; keep the payload unless it is a chunk."""
        oid = oid if oid is not None else object_id(kind, payload)
        if kind != Kind.CHUNK:
            self._nodes[oid] = payload
        return oid

    def read(self, oid: ObjectId, kind: Kind) -> bytes:
        """Return what was put, or what the source has."""
        found = self._nodes.get(oid)
        return found if found is not None else self._source.read(oid, kind)

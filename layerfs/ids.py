"""Typed object ids.

Every id is 32 bytes: the BLAKE3-256 of an object's canonical bytes, keyed by its kind (``objects/kinds``). The types are
``NewType`` over ``bytes``: they cost nothing at run time, sort and hash like bytes, and let the type checker keep a tree
id from being used as a commit id. Text forms (hex) exist only at the edges.
"""

from __future__ import annotations

from typing import NewType

ObjectId = NewType("ObjectId", bytes)
ChunkId = NewType("ChunkId", ObjectId)
ExtentId = NewType("ExtentId", ObjectId)
TreeId = NewType("TreeId", ObjectId)
RootId = NewType("RootId", ObjectId)
CommitId = NewType("CommitId", ObjectId)
LayerId = NewType("LayerId", ObjectId)
MoveId = NewType("MoveId", ObjectId)
ContentId = NewType("ContentId", ObjectId)
"""A file's content: a chunk id below ``chunking.ONE_PIECE_LIMIT`` bytes, otherwise the root of an extent tree."""

ID_BYTES = 32
SHORT_HEX = 12
MIN_PREFIX_HEX = 6


def to_hex(oid: bytes) -> str:
    """Return the 64 hex digits of an id."""
    return oid.hex()


def short(oid: bytes) -> str:
    """Return the first 12 hex digits of an id: the form shown to people."""
    return oid.hex()[:SHORT_HEX]

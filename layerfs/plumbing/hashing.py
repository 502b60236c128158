"""Hashing: what the id of some bytes would be, and putting them into a store when asked.

Owns the way from a plain stream to a content id by the rule of logical format 1 (one chunk below 128 KiB, an extent tree
from there on, no id for nothing), for plumbing that works on single files. Directories are ``capture``'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from layerfs.errors import MalformedObject, NotFound, UsageError, quote
from layerfs.ids import ObjectId
from layerfs.objects.chunking import ONE_PIECE_LIMIT, split_content
from layerfs.objects.commits import decode_commit
from layerfs.objects.entry import decode_root
from layerfs.objects.extents import decode_extent_node
from layerfs.objects.kinds import MAX_OBJECT_BYTES, Kind, object_id
from layerfs.objects.layers import decode_layer
from layerfs.objects.source import ObjectSink
from layerfs.objects.trees import decode_node

READ_BLOCK = 4 * 1024 * 1024

DECODERS: dict[Kind, Callable[[bytes], object]] = {
    Kind.CHUNK: lambda payload: payload,
    Kind.EXTENT: decode_extent_node,
    Kind.TREE: decode_node,
    Kind.ROOT: decode_root,
    Kind.COMMIT: decode_commit,
    Kind.LAYER: decode_layer,
}


class NoSink:
    """An ObjectSink that keeps nothing: for asking what an id would be."""

    def put(self, kind: Kind, payload: bytes | memoryview, *, like: ObjectId | None = None) -> ObjectId:
        """Return the id."""
        return object_id(kind, payload)


class CutPiece(NamedTuple):
    """A piece of a file as it would be stored: offset, length, and its chunk id, None for a hole."""

    offset: int
    length: int
    chunk: ObjectId | None


def iter_file(path: bytes) -> Iterator[bytes]:
    """Yield a file's bytes in blocks; NotFound if it is not there, UsageError for a directory."""
    if b"\0" in path:
        raise UsageError(f"not a file name: {quote(path)}")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"cannot read {quote(path)}: no such file") from None
    try:
        while block := _read(descriptor, path):
            yield block
    finally:
        os.close(descriptor)


def _read(descriptor: int, path: bytes) -> bytes:
    try:
        return os.read(descriptor, READ_BLOCK)
    except IsADirectoryError:
        raise UsageError(f"{quote(path)} is a directory", "'layerfs write-tree' hashes directories") from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def cut_content(blocks: Iterable[bytes]) -> Iterator[CutPiece]:
    """Yield the pieces that content would be stored in."""
    stream = iter(blocks)
    start = bytearray()
    for block in stream:
        start += block
        if len(start) >= ONE_PIECE_LIMIT:
            for offset, length, data in split_content(chain((bytes(start),), stream)):
                yield CutPiece(offset, length, None if data is None else object_id(Kind.CHUNK, data))
            return
    if start:
        yield CutPiece(0, len(start), object_id(Kind.CHUNK, bytes(start)))


def hash_object(sink: ObjectSink, kind: Kind, blocks: Iterable[bytes]) -> ObjectId:
    """Put one object given by its canonical bytes; refuse bytes that are no object of that kind."""
    payload = bytearray()
    for block in blocks:
        payload += block
        if len(payload) > MAX_OBJECT_BYTES:
            raise UsageError(f"no {kind.label} is longer than {MAX_OBJECT_BYTES} bytes")
    decode = DECODERS.get(kind)
    if decode is None:
        raise UsageError(f"a {kind.label} is written by the store only")
    try:
        decode(bytes(payload))
    except MalformedObject as error:
        raise UsageError(f"not a {kind.label}: {error.message}") from None
    return sink.put(kind, bytes(payload))

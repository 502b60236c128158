"""Layers: the states published to ``main``, each naming the one below it.

A layer says which commit it shows, how it was made, what was checked, and what it covered. Covered layers are listed,
never made parents of the commit: with them as parents, publishing a covered branch again would be "up to date" and its
work would stay gone.
"""

from __future__ import annotations

from typing import NamedTuple

from layerfs.ids import ID_BYTES, CommitId, LayerId, ObjectId
from layerfs.objects.codec import Reader, Writer
from layerfs.objects.content import ContentRef
from layerfs.objects.kinds import Kind
from layerfs.objects.source import ObjectSink, ObjectSource

VERSION = 1
HOW = ("init", "merge", "ff", "overwrite")


class Check(NamedTuple):
    """One check that ran on exactly the published state: its command line and exit code."""

    command: str
    exit_code: int


class Layer(NamedTuple):
    """A decoded layer; ``number`` counts from 1, ``previous`` is None only for the first."""

    number: int
    commit: CommitId
    previous: LayerId | None
    how: str
    time_ns: int
    author: str
    message: str
    branch: str = ""
    checks: tuple[Check, ...] = ()
    covered: tuple[LayerId, ...] = ()
    covered_paths: ContentRef = ContentRef(b"", 0)
    """NUL-separated paths whose published work this layer covers."""


def encode_layer(layer: Layer) -> bytes:
    """Return the canonical bytes of a layer."""
    out = Writer().uint(VERSION).uint(layer.number).raw(layer.commit).data(layer.previous or b"")
    out.uint(HOW.index(layer.how)).sint(layer.time_ns).text(layer.author).text(layer.message).text(
        layer.branch
    )
    out.uint(len(layer.checks))
    for command, exit_code in layer.checks:
        out.text(command).sint(exit_code)
    out.uint(len(layer.covered))
    for covered in layer.covered:
        out.raw(covered)
    return out.data(layer.covered_paths.ref).uint(layer.covered_paths.size).done()


def decode_layer(payload: bytes) -> Layer:
    """Decode a layer; raise MalformedObject for anything :func:`encode_layer` would not have written."""
    reader = Reader(payload, "layer")
    version = reader.uint()
    if version != VERSION:
        raise reader.fail(f"version {version} is not known")
    number = reader.uint()
    commit = CommitId(ObjectId(reader.raw(ID_BYTES)))
    previous = reader.data()
    if len(previous) not in (0, ID_BYTES) or not number or bool(previous) != (number > 1):
        raise reader.fail("number and previous layer do not fit")
    how = reader.uint()
    if how >= len(HOW):
        raise reader.fail("unknown way of publishing")
    time_ns, author, message, branch = reader.sint(), reader.text(), reader.text(), reader.text()
    checks = tuple(Check(reader.text(), reader.sint()) for _ in range(reader.count(2)))
    covered = tuple(LayerId(ObjectId(reader.raw(ID_BYTES))) for _ in range(reader.count(ID_BYTES)))
    ref, size = reader.data(), reader.uint()
    if len(ref) != (ID_BYTES if size else 0):
        raise reader.fail("covered paths")
    reader.end()
    return Layer(
        number,
        commit,
        LayerId(ObjectId(previous)) if previous else None,
        HOW[how],
        time_ns,
        author,
        message,
        branch,
        checks,
        covered,
        ContentRef(ref, size),
    )


def put_layer(sink: ObjectSink, layer: Layer) -> LayerId:
    """Put a layer and return its id."""
    return LayerId(sink.put(Kind.LAYER, encode_layer(layer)))


def read_layer(source: ObjectSource, oid: LayerId) -> Layer:
    """Read and decode one layer."""
    return decode_layer(source.read(oid, Kind.LAYER))

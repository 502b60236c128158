"""Commits: one complete, immutable state of an environment, with its parents and who made it, why and how.

Two parents make a merge (or a *join* of concurrent commits); the first is the line of work the commit was made on.
Provenance is an open, sorted map of text, so that tools can record what they know without a new format; the keys layerfs
itself writes are listed in ``PROVENANCE_KEYS`` and in layerfs-provenance(7).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

from layerfs.errors import MalformedObject
from layerfs.ids import ID_BYTES, CommitId, ObjectId, RootId
from layerfs.objects.codec import Reader, Writer
from layerfs.objects.kinds import Kind
from layerfs.objects.source import ObjectSink, ObjectSource

VERSION = 1
MAX_PARENTS = 16

PROVENANCE_KEYS = (
    "agent",
    "session",
    "tool",
    "call-id",
    "command",
    "cwd",
    "exit-code",
    "duration-ns",
    "stdout",
    "stderr",
    "workspace",
    "join",
)


class Read(NamedTuple):
    """One declared input: a path and the id seen there; an empty id says the path was absent."""

    path: bytes
    seen: bytes


class Commit(NamedTuple):
    """A decoded commit. ``time_ns`` is nanoseconds since the epoch, ``tz_minutes`` east of UTC."""

    root: RootId
    parents: tuple[CommitId, ...]
    time_ns: int
    tz_minutes: int
    author: str
    message: str
    provenance: tuple[tuple[str, str], ...] = ()
    reads: tuple[Read, ...] = ()
    renames: tuple[tuple[bytes, bytes], ...] = ()
    notes: tuple[tuple[bytes, str], ...] = ()
    """What a merge decided about a path (overrides, drops): listed so that it can be shown and undone."""

    def about(self, key: str) -> str | None:
        """Return one provenance value."""
        return dict(self.provenance).get(key)

    @property
    def subject(self) -> str:
        """The first line of the message."""
        return self.message.split("\n", 1)[0]

    @property
    def is_join(self) -> bool:
        """Whether the commit only joins concurrent commits of one branch; ``log`` folds these."""
        return self.about("join") is not None


def sorted_provenance(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the canonical form of provenance values."""
    return tuple(sorted(values.items()))


def encode_commit(commit: Commit) -> bytes:
    """Return the canonical bytes of a commit."""
    out = Writer().uint(VERSION).raw(commit.root).uint(len(commit.parents))
    for parent in commit.parents:
        out.raw(parent)
    out.sint(commit.time_ns).sint(commit.tz_minutes).text(commit.author).text(commit.message)
    out.uint(len(commit.provenance))
    for key, value in commit.provenance:
        out.text(key).text(value)
    out.uint(len(commit.reads))
    for path, seen in commit.reads:
        out.data(path).data(seen)
    out.uint(len(commit.renames))
    for old, new in commit.renames:
        out.data(old).data(new)
    out.uint(len(commit.notes))
    for path, note in commit.notes:
        out.data(path).text(note)
    return out.done()


def decode_commit(payload: bytes) -> Commit:
    """Decode a commit; raise MalformedObject for anything :func:`encode_commit` would not have written."""
    reader = Reader(payload, "commit")
    version = reader.uint()
    if version != VERSION:
        raise reader.fail(f"version {version} is not known")
    root = RootId(ObjectId(reader.raw(ID_BYTES)))
    parents = tuple(CommitId(ObjectId(reader.raw(ID_BYTES))) for _ in range(reader.count(ID_BYTES)))
    if len(parents) > MAX_PARENTS or len(set(parents)) != len(parents):
        raise reader.fail("parents")
    time_ns, tz_minutes = reader.sint(), reader.sint()
    author, message = reader.text(), reader.text()
    provenance = tuple((reader.text(), reader.text()) for _ in range(reader.count(2)))
    if any(a[0] >= b[0] for a, b in itertools.pairwise(provenance)):
        raise reader.fail("provenance is not sorted")
    reads = tuple(Read(reader.data(), reader.data()) for _ in range(reader.count(2)))
    renames = tuple((reader.data(), reader.data()) for _ in range(reader.count(2)))
    notes = tuple((reader.data(), reader.text()) for _ in range(reader.count(2)))
    reader.end()
    return Commit(root, parents, time_ns, tz_minutes, author, message, provenance, reads, renames, notes)


def put_commit(sink: ObjectSink, commit: Commit) -> CommitId:
    """Put a commit and return its id."""
    if len(commit.parents) > MAX_PARENTS:
        raise MalformedObject("a commit has too many parents")
    payload = encode_commit(commit)
    if not commit.parents:
        return CommitId(sink.put(Kind.COMMIT, payload))
    return CommitId(sink.put(Kind.COMMIT, payload, like=commit.parents[0]))


def read_commit(source: ObjectSource, oid: CommitId) -> Commit:
    """Read and decode one commit."""
    return decode_commit(source.read(oid, Kind.COMMIT))

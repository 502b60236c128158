"""Moves: the record of one change of pointers.

Every batch of objects appended to a store ends with one move, which says what the batch made true: refs set, layers
added, packs registered, workspaces recorded. The packs are therefore a complete log: replaying all moves in order gives
back every pointer, and that is how a lost or older database is brought up to date (``store``).

A *restart* is one or more moves at the beginning of a log pack that say the whole state anew, so that nothing before them
is needed any more: the first holds :class:`Restart`, and all of them hold the ``…Kept`` operations only.
"""

from __future__ import annotations

from typing import NamedTuple

from layerfs.errors import MalformedObject
from layerfs.ids import ID_BYTES, CommitId, LayerId, ObjectId
from layerfs.objects.codec import Reader, Writer

VERSION = 1


class RefSet(NamedTuple):
    """A ref went from ``old`` to ``new`` (None: absent), for the reason ``why`` that the reflog shows."""

    name: str
    old: CommitId | None
    new: CommitId | None
    why: str


class LayerAdd(NamedTuple):
    """Layer ``number`` became the top of main."""

    number: int
    layer: LayerId
    commit: CommitId


class PackAdd(NamedTuple):
    """A sealed pack became part of the store."""

    name: str


class PackDrop(NamedTuple):
    """A sealed pack is no longer part of the store: everything needed from it lies elsewhere."""

    name: str


class WorkspacePut(NamedTuple):
    """A workspace's record, opaque here (``workspace/records``)."""

    name: str
    record: bytes


class WorkspaceDrop(NamedTuple):
    """A workspace ceased to exist."""

    name: str


class Restart(NamedTuple):
    """Everything said before is void; this move and the next ``parts - 1`` say what is true now."""

    parts: int


class PackKept(NamedTuple):
    """A sealed pack belongs to the store; ``role`` and ``sequence`` as in the database."""

    name: str
    role: int
    sequence: int


class RefKept(NamedTuple):
    """A ref points at a commit."""

    name: str
    target: CommitId


class LayerKept(NamedTuple):
    """Layer ``number`` of main, added by move ``sequence``."""

    number: int
    layer: LayerId
    commit: CommitId
    sequence: int


class ReflogKept(NamedTuple):
    """A line of the reflog, as it was written."""

    name: str
    sequence: int
    position: int
    old: CommitId | None
    new: CommitId | None
    actor: str
    time_ns: int
    why: str


class WorkspaceKept(NamedTuple):
    """A workspace's record, put by move ``sequence``."""

    name: str
    record: bytes
    sequence: int


Kept = PackKept | RefKept | LayerKept | ReflogKept | WorkspaceKept
Op = RefSet | LayerAdd | PackAdd | PackDrop | WorkspacePut | WorkspaceDrop | Restart | Kept

_NUMBERS: dict[type, int] = {
    RefSet: 1,
    LayerAdd: 2,
    PackAdd: 3,
    PackDrop: 4,
    WorkspacePut: 5,
    WorkspaceDrop: 6,
    Restart: 7,
    PackKept: 8,
    RefKept: 9,
    LayerKept: 10,
    ReflogKept: 11,
    WorkspaceKept: 12,
}


class Move(NamedTuple):
    """One change of pointers; ``sequence`` counts from 1 without gaps."""

    sequence: int
    time_ns: int
    actor: str
    ops: tuple[Op, ...]


def encode_move(move: Move) -> bytes:
    """Return the canonical bytes of a move."""
    out = Writer().uint(VERSION).uint(move.sequence).sint(move.time_ns).text(move.actor).uint(len(move.ops))
    for op in move.ops:
        out.uint(_NUMBERS[type(op)])
        match op:
            case RefSet(name, old, new, why):
                out.text(name).data(old or b"").data(new or b"").text(why)
            case LayerAdd(number, layer, commit):
                out.uint(number).raw(layer).raw(commit)
            case PackAdd(name) | PackDrop(name) | WorkspaceDrop(name):
                out.text(name)
            case WorkspacePut(name, record):
                out.text(name).data(record)
            case Restart(parts):
                out.uint(parts)
            case PackKept(name, role, at):
                out.text(name).uint(role).uint(at)
            case RefKept(name, target):
                out.text(name).raw(target)
            case LayerKept(number, layer, commit, at):
                out.uint(number).raw(layer).raw(commit).uint(at)
            case ReflogKept(name, at, position, old, new, actor, time_ns, why):
                out.text(name).uint(at).uint(position).data(old or b"").data(new or b"")
                out.text(actor).sint(time_ns).text(why)
            case WorkspaceKept(name, record, at):
                out.text(name).data(record).uint(at)
    return out.done()


def decode_move(payload: bytes) -> Move:
    """Decode a move; raise MalformedObject for anything :func:`encode_move` would not have written."""
    reader = Reader(payload, "move")
    version = reader.uint()
    if version != VERSION:
        raise reader.fail(f"version {version} is not known")
    sequence, time_ns, actor = reader.uint(), reader.sint(), reader.text()
    ops = tuple(_decode_op(reader) for _ in range(reader.count(2)))
    reader.end()
    return Move(sequence, time_ns, actor, ops)


def _decode_op(reader: Reader) -> Op:
    match reader.uint():
        case 1:
            return RefSet(reader.text(), _commit(reader), _commit(reader), reader.text())
        case 2:
            return LayerAdd(
                reader.uint(),
                LayerId(ObjectId(reader.raw(ID_BYTES))),
                CommitId(ObjectId(reader.raw(ID_BYTES))),
            )
        case 3:
            return PackAdd(reader.text())
        case 4:
            return PackDrop(reader.text())
        case 5:
            return WorkspacePut(reader.text(), reader.data())
        case 6:
            return WorkspaceDrop(reader.text())
        case 7:
            return Restart(reader.uint())
        case 8:
            return PackKept(reader.text(), reader.uint(), reader.uint())
        case 9:
            return RefKept(reader.text(), CommitId(ObjectId(reader.raw(ID_BYTES))))
        case 10:
            layer = reader.uint(), reader.raw(ID_BYTES), reader.raw(ID_BYTES), reader.uint()
            return LayerKept(layer[0], LayerId(ObjectId(layer[1])), CommitId(ObjectId(layer[2])), layer[3])
        case 11:
            name, at, position = reader.text(), reader.uint(), reader.uint()
            old, new = _commit(reader), _commit(reader)
            return ReflogKept(name, at, position, old, new, reader.text(), reader.sint(), reader.text())
        case 12:
            return WorkspaceKept(reader.text(), reader.data(), reader.uint())
        case number:
            raise reader.fail(f"unknown operation {number}")


def _commit(reader: Reader) -> CommitId | None:
    oid = reader.data()
    if len(oid) not in (0, ID_BYTES):
        raise MalformedObject("malformed move: commit id")
    return CommitId(ObjectId(oid)) if oid else None

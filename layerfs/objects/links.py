"""Links: which objects an object names.

Owns one pure function that collection, copying and the check of a commit share, so that they cannot differ about what
belongs to a state. It decodes no more than it must, because it runs over every node of a store; whether an object is
canonical is checked where it is read for use, and by ``fsck``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from layerfs.errors import MalformedObject
from layerfs.ids import ID_BYTES, ObjectId
from layerfs.objects.commits import Commit, decode_commit
from layerfs.objects.entry import HEADER, EntryKind
from layerfs.objects.extents import decode_extent_node
from layerfs.objects.frames import Named
from layerfs.objects.kinds import Kind
from layerfs.objects.layers import Layer, decode_layer

OUTPUTS = ("stdout", "stderr")
_CHILD = struct.Struct("<HQ")
_GROUP_BYTES = 8
_COUNT = struct.Struct("<H")
_XATTR = struct.Struct("<HI")
_FLAG_XATTRS, _FLAG_LINKED = 1, 2
_NAMES_CONTENT = (int(EntryKind.FILE), int(EntryKind.DIR))
_HEX = frozenset("0123456789abcdef")


def links_of(kind: int, payload: bytes) -> list[ObjectId]:
    """Return the ids that an object names directly, some perhaps twice; raise MalformedObject."""
    if kind == Kind.CHUNK:
        return []
    try:
        if kind in (Kind.TREE, Kind.ROOT):
            return _tree_links(payload) if kind == Kind.TREE else _entries(payload, 0)
    except struct.error:
        raise MalformedObject("malformed tree: too short") from None
    if kind == Kind.EXTENT:
        node = decode_extent_node(payload)
        return [piece.chunk for piece in node.extents if piece.chunk is not None] + [
            child.oid for child in node.children
        ]
    if kind == Kind.COMMIT:
        return commit_links(decode_commit(payload))
    if kind == Kind.LAYER:
        return layer_links(decode_layer(payload))
    return []


def named_among(kind: int, objects: Sequence[tuple[ObjectId, bytes]]) -> list[Named]:
    """Return where these objects (id, payload) of one kind name earlier ones of them, for a dense frame."""
    found: list[Named] = []
    if kind == Kind.CHUNK:
        return found
    numbers: dict[ObjectId, int] = {}
    for number, (oid, payload) in enumerate(objects):
        at = 0
        try:
            links = links_of(kind, payload)
        except MalformedObject:
            links = []
        for link in links:
            target = numbers.get(link)
            # What a link is read from need not be its bytes: an id in the provenance of a commit is text.
            place = -1 if target is None else payload.find(link, at)
            if target is not None and place >= 0:
                found.append(Named(number, place, target))
                at = place + ID_BYTES
        numbers[oid] = number
    return found


def commit_links(commit: Commit) -> list[ObjectId]:
    """Return what a commit names: its root, its parents, and the outputs of the command it records."""
    outputs = [output_id(commit.about(key)) for key in OUTPUTS]
    return [commit.root, *commit.parents, *(oid for oid in outputs if oid is not None)]


def output_id(value: str | None) -> ObjectId | None:
    """Return the content id in a provenance value that is one."""
    if value is None or len(value) != 2 * ID_BYTES or not _HEX.issuperset(value):
        return None
    return ObjectId(bytes.fromhex(value))


def layer_links(layer: Layer) -> list[ObjectId]:
    """Return what a layer names."""
    found: list[ObjectId] = [layer.commit, *layer.covered]
    if layer.previous is not None:
        found.append(layer.previous)
    if layer.covered_paths.size:
        found.append(ObjectId(layer.covered_paths.ref))
    return found


def _tree_links(payload: bytes) -> list[ObjectId]:
    if not payload:
        raise MalformedObject("malformed tree: empty")
    if payload[0] == 0:
        return _entries(payload, 1)
    found: list[ObjectId] = []
    at, end = 1, len(payload)
    while at < end:
        name_length, _ = _CHILD.unpack_from(payload, at)
        at += _CHILD.size + name_length
        found.append(ObjectId(payload[at : at + ID_BYTES]))
        at += ID_BYTES
    if at != end:
        raise MalformedObject("malformed tree: too short")
    return found


def _entries(payload: bytes, at: int) -> list[ObjectId]:
    found: list[ObjectId] = []
    append = found.append
    unpack = HEADER.unpack_from
    header, end = HEADER.size, len(payload)
    while at < end:
        kind, flags, _, _, _, _, _, _, name_length, ref_length = unpack(payload, at)
        at += header + name_length
        if ref_length == ID_BYTES and kind in _NAMES_CONTENT:
            append(ObjectId(payload[at : at + ID_BYTES]))
        at += ref_length
        if flags:
            at = _skip_tail(payload, at, flags)
    if at != end:
        raise MalformedObject("malformed tree: too short")
    return found


def _skip_tail(payload: bytes, at: int, flags: int) -> int:
    if flags & _FLAG_LINKED:
        at += _GROUP_BYTES
    if flags & _FLAG_XATTRS:
        (count,) = _COUNT.unpack_from(payload, at)
        at += _COUNT.size
        for _ in range(count):
            key_length, value_length = _XATTR.unpack_from(payload, at)
            at += _XATTR.size + key_length + value_length
    return at

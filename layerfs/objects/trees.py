"""Trees: a directory's entries as a search tree of small, content-defined nodes.

A leaf node holds named entries in byte order; an inner node holds (last name, entry count, child id). Where nodes end is
decided by a hash of the *names* (``nodes``), not of the content, so that editing a file never moves a boundary, adding
one name to a directory of a million rewrites one short path of nodes, and equal parts of two versions share ids.

Building, reading and editing single directories live here; whole environments (paths) are in ``environment``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from layerfs.errors import MalformedObject
from layerfs.ids import ID_BYTES, ObjectId, TreeId
from layerfs.kernels import native
from layerfs.objects.entry import KINDS, NAME_MAX, Entry, decode_entry, encode_entry
from layerfs.objects.kinds import Kind
from layerfs.objects.nodes import MAX_LEVEL, Child, NodeBuilder, NodeRule
from layerfs.objects.source import ObjectSink, ObjectSource, ObjectStore

MAX_NODE_BYTES = 256 * 1024
_CHILD = struct.Struct("<HQ")


def _encode_child(child: Child) -> bytes:
    return _CHILD.pack(len(child.key), child.weight) + child.key + child.oid


RULE = NodeRule(
    kind=Kind.TREE,
    boundary_bits=5,
    min_items=8,
    max_items=128,
    max_bytes=MAX_NODE_BYTES,
    encode_child=_encode_child,
    key_of_child=True,
)
"""Names alone decide where nodes end; part of logical format 1."""

EMPTY_NODE = b"\0"

Named = tuple[bytes, Entry]
NameChange = tuple[bytes, Entry | None]
"""A name and what it is now; None if it is gone."""


def finish_tree(sink: ObjectSink, builder: NodeBuilder) -> TreeId:
    """End a tree that was built by hand; return the root node's id."""
    root = builder.finish()
    return TreeId(sink.put(Kind.TREE, EMPTY_NODE) if root is None else root)


def build_tree(sink: ObjectSink, items: Iterable[Named]) -> TreeId:
    """Put the nodes of a directory whose entries come sorted by name; return the root node's id."""
    builder = NodeBuilder(sink, RULE)
    for name, entry in items:
        builder.add(name, encode_entry(name, entry), 1)
    return finish_tree(sink, builder)


class Node(NamedTuple):
    """One decoded node: entries on level 0, children above it."""

    level: int
    entries: list[Named]
    children: list[Child]


def decode_node(payload: bytes) -> Node:
    """Decode a tree node; raise MalformedObject unless it is canonical on its own."""
    if not payload:
        raise MalformedObject("malformed tree: empty")
    level = payload[0]
    at = 1
    length = len(payload)
    last = b""
    if level == 0:
        entries: list[Named] = []
        append = entries.append
        while at < length:
            plain, at = native.plain_entries(payload, at, Entry, KINDS)
            if plain:
                if plain[0][0] <= last:
                    raise MalformedObject("malformed tree: names are not sorted")
                entries += plain
                last = plain[-1][0]
                continue
            name, entry, at = decode_entry(payload, at)
            if name <= last:
                raise MalformedObject("malformed tree: names are not sorted")
            last = name
            append((name, entry))
        return Node(0, entries, [])
    if level > MAX_LEVEL:
        raise MalformedObject("malformed tree: too deep")
    children: list[Child] = []
    while at < length:
        if at + _CHILD.size > length:
            raise MalformedObject("malformed tree: too short")
        name_len, count = _CHILD.unpack_from(payload, at)
        at += _CHILD.size
        name = payload[at : at + name_len]
        oid = payload[at + name_len : at + name_len + ID_BYTES]
        at += name_len + ID_BYTES
        if len(oid) != ID_BYTES or name_len > NAME_MAX or name <= last or not count:
            raise MalformedObject("malformed tree: bad child")
        last = name
        children.append(Child(name, count, ObjectId(oid)))
    if not children:
        raise MalformedObject("malformed tree: inner node without children")
    return Node(level, [], children)


def read_node(source: ObjectSource, oid: TreeId) -> Node:
    """Read and decode one node."""
    return decode_node(source.read(oid, Kind.TREE))


def _read_child(source: ObjectSource, child: Child, level: int) -> Node:
    """Read a child and check that it is what its parent says, so that a hostile tree cannot loop or hide names."""
    node = read_node(source, TreeId(child.oid))
    last = node.children[-1].key if node.children else node.entries[-1][0] if node.entries else b""
    if node.level != level - 1 or last != child.key:
        raise MalformedObject("malformed tree: child does not fit its parent")
    return node


def iter_tree(source: ObjectSource, tree: TreeId) -> Iterator[Named]:
    """Yield the entries of one directory in name order."""
    yield from _iter_node(source, read_node(source, tree))


def _iter_node(source: ObjectSource, node: Node) -> Iterator[Named]:
    if node.level == 0:
        yield from node.entries
        return
    for child in node.children:
        yield from _iter_node(source, _read_child(source, child, node.level))


def read_tree(source: ObjectSource, tree: TreeId) -> list[Named]:
    """Return all entries of one directory."""
    node = read_node(source, tree)
    return node.entries if node.level == 0 else list(_iter_node(source, node))


def count_entries(source: ObjectSource, tree: TreeId) -> int:
    """Return how many names a directory has, reading one node only."""
    node = read_node(source, tree)
    return len(node.entries) if node.level == 0 else sum(child.weight for child in node.children)


def find_entry(source: ObjectSource, tree: TreeId, name: bytes) -> Entry | None:
    """Return the entry called ``name``, or None; reads one node per level."""
    node = read_node(source, tree)
    while node.level:
        for child in node.children:
            if name <= child.key:
                node = _read_child(source, child, node.level)
                break
        else:
            return None
    for candidate, entry in node.entries:
        if candidate == name:
            return entry
    return None


def edit_tree(store: ObjectStore, tree: TreeId, changes: Mapping[bytes, Entry | None]) -> TreeId:
    """Return the tree with ``changes`` applied: an entry sets a name, None removes it (absent names are ignored).

    Nodes that no change reaches are taken over by id. The result equals :func:`build_tree` of the resulting entries.
    """
    return edit_sorted(store, tree, iter(sorted(changes.items())))


def edit_sorted(store: ObjectStore, tree: TreeId, changes: Iterator[NameChange]) -> TreeId:
    """Edit a tree as :func:`edit_tree` does, with changes that come in the order of their names."""
    pending = _Pending(changes)
    if pending.name is None:
        return tree
    builder = NodeBuilder(store, RULE)
    _edit_node(store, tree, read_node(store, tree), True, pending, builder)
    while pending.name is not None:
        pending.add_to(builder)
    return finish_tree(store, builder)


class _Pending:
    """The changes still to make; ``name`` is the next one's, None at the end."""

    __slots__ = ("_entry", "_rest", "name")

    def __init__(self, changes: Iterator[NameChange]) -> None:
        self._rest = changes
        self.name: bytes | None
        self._entry: Entry | None
        self.name, self._entry = next(changes, (None, None))

    def is_due(self, last: bytes) -> bool:
        """Whether the next change is of a name up to ``last``."""
        return self.name is not None and self.name <= last

    def add_to(self, builder: NodeBuilder) -> None:
        """Make the next change."""
        if self.name is not None and self._entry is not None:
            builder.add(self.name, encode_entry(self.name, self._entry), 1)
        self.name, self._entry = next(self._rest, (None, None))


def _edit_node(
    store: ObjectStore, oid: ObjectId, node: Node, rightmost: bool, pending: _Pending, builder: NodeBuilder
) -> None:
    """Feed the entries below ``node`` to the builder, merged with what is ``pending``.

    The last node of a level may end where the list ended, not at a boundary; it is adopted only if nothing follows.
    """
    builder.replaces(node.level, oid)
    final = len(node.children) - 1
    for number, child in enumerate(node.children):
        last = rightmost and number == final
        touched = pending.is_due(child.key) or (last and pending.name is not None)
        if touched or not builder.adopt(child, node.level - 1, last):
            below = _read_child(store, child, node.level)
            _edit_node(store, child.oid, below, last, pending, builder)
    for name, entry in node.entries:
        replaced = False
        while pending.is_due(name):
            replaced = pending.name == name
            pending.add_to(builder)
        if not replaced:
            builder.add(name, encode_entry(name, entry), 1)

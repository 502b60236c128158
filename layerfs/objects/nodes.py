"""Content-defined nodes: how a long ordered list of items becomes a search tree with one shape.

Trees (names) and extent trees (pieces of a file) share this builder. Items of one level are collected until a boundary
rule ends the node: an XXH3 hash of the item's *key*, seeded with the level, has ``boundary_bits`` zero bits, or a hard
bound is reached. The finished node becomes an item of the level above. The rule looks only at items since the last
boundary, so the same list gives the same root whatever the history of edits, and an edit changes only the nodes from
the change to the next common boundary. The structure is a Merkle search tree with probabilistic splits ("prolly tree";
compare Auvolat and Taïani, Merkle Search Trees, 2019).

:meth:`NodeBuilder.adopt` takes a finished node of an older version over unread; that is what makes an edit of one item
among a million cost a handful of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from layerfs.ids import ObjectId
from layerfs.objects.kinds import Kind
from layerfs.objects.source import ObjectSink

MAX_LEVEL = 16


class Child(NamedTuple):
    """An inner node's reference to a node below: its key, its weight (entries or bytes), and its id."""

    key: bytes
    weight: int
    oid: ObjectId


class NodeRule(NamedTuple):
    """Where nodes end. ``key_of_child`` False makes inner levels split by child id, True by the child's last key."""

    kind: Kind
    boundary_bits: int
    min_items: int
    max_items: int
    max_bytes: int
    encode_child: Callable[[Child], bytes]
    key_of_child: bool


class _Level:
    __slots__ = ("items", "key", "size", "total", "weight")

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self.key = b""
        self.size = 0
        self.weight = 0
        self.total = 0


class NodeBuilder:
    """Builds one search tree from items given in order."""

    __slots__ = ("_levels", "_likes", "_mask", "_only", "_rule", "_sink")

    def __init__(self, sink: ObjectSink, rule: NodeRule) -> None:
        self._sink = sink
        self._rule = rule
        self._mask = (1 << rule.boundary_bits) - 1
        self._levels = [_Level()]
        self._only: list[ObjectId] = []
        self._likes: dict[int, ObjectId] = {}

    def add(self, key: bytes, encoded: bytes, weight: int) -> None:
        """Append one item of the lowest level."""
        self._append(0, key, encoded, weight)

    def replaces(self, level: int, oid: ObjectId) -> None:
        """Say which node of an older version covers what comes next on a level: a hint for storing new ones."""
        self._likes[level] = oid

    def adopt(self, child: Child, level: int, last: bool = False) -> bool:
        """Append an existing node of ``level`` whole, if the builder stands at a boundary of that level.

        The caller guarantees that the node ends by the boundary rule, or that nothing follows it and it is the ``last``
        of its level in the older version. Such a one may have a single item; alone it would make the tree too tall.
        """
        if last and not any(each.total for each in self._levels):
            return False
        if any(below.items for below in self._levels[: level + 1]):
            return False
        self._append_child(level + 1, child)
        return True

    def finish(self) -> ObjectId | None:
        """End all levels and return the root, or None when nothing was added."""
        number = 0
        while number < len(self._levels):
            self._flush(number)
            above = self._levels[number + 1 :]
            if above and above[0].total == 1 and len(above) == 1:
                return self._only[0]
            number += 1
        return None

    def _append(self, number: int, key: bytes, encoded: bytes, weight: int) -> None:
        level = self._levels[number]
        level.items.append(encoded)
        level.total += 1
        level.key = key
        level.size += len(encoded)
        level.weight += weight
        count = len(level.items)
        rule = self._rule
        at_boundary = count >= rule.min_items and not xxh3_64_intdigest(key, number) & self._mask
        if at_boundary or count >= rule.max_items or level.size >= rule.max_bytes:
            self._flush(number)

    def _append_child(self, number: int, child: Child) -> None:
        while len(self._levels) <= number:
            self._levels.append(_Level())
        if number == len(self._levels) - 1:
            self._only = [child.oid]
        key = child.key if self._rule.key_of_child else child.oid
        self._append(number, key, self._rule.encode_child(child), child.weight)

    def _put(self, number: int, payload: bytes) -> ObjectId:
        like = self._likes.get(number)
        if like is None:
            return self._sink.put(self._rule.kind, payload)
        return self._sink.put(self._rule.kind, payload, like=like)

    def _flush(self, number: int) -> None:
        level = self._levels[number]
        if not level.items:
            return
        payload = bytes((number,)) + b"".join(level.items)
        child = Child(level.key, level.weight, self._put(number, payload))
        level.items = []
        level.size = level.weight = 0
        self._append_child(number + 1, child)

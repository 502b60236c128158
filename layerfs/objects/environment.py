"""Whole environments: a root entry and everything below it, addressed by path.

Paths are bytes, relative, with ``/`` between names; ``b""`` is the root itself. Everything here is pure: it reads nodes
from a source and puts new ones into a sink, and its cost grows with the change, never with the tree, because subtrees
with equal ids are never entered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from layerfs.ids import ObjectId, RootId, TreeId
from layerfs.objects.entry import Entry, EntryKind, decode_root, encode_root
from layerfs.objects.kinds import Kind
from layerfs.objects.source import ObjectSink, ObjectSource, ObjectStore
from layerfs.objects.trees import (
    Named,
    Node,
    build_tree,
    edit_tree,
    find_entry,
    iter_tree,
    read_node,
    read_tree,
)


class Change(NamedTuple):
    """One path whose entry differs between two states; ``old`` or ``new`` is None where the path does not exist."""

    path: bytes
    old: Entry | None
    new: Entry | None

    def is_only_time(self) -> bool:
        """Whether this is nothing but a directory's mtime."""
        old, new = self.old, self.new
        if old is None or new is None or old.kind is not EntryKind.DIR or new.kind is not EntryKind.DIR:
            return False
        return old._replace(mtime_ns=new.mtime_ns, ref=b"") == new._replace(ref=b"")


def join(parent: bytes, name: bytes) -> bytes:
    """Return the path of ``name`` in the directory ``parent``."""
    return parent + b"/" + name if parent else name


def split(path: bytes) -> tuple[bytes, bytes]:
    """Return (directory, last name) of a path."""
    parent, _, name = path.rpartition(b"/")
    return parent, name


def path_key(path: bytes) -> list[bytes]:
    """Sort key that orders paths name by name, so that a directory comes right before what it holds."""
    return path.split(b"/") if path else []


def read_root(source: ObjectSource, root: RootId) -> Entry:
    """Return the root directory's entry of a root object."""
    return decode_root(source.read(root, Kind.ROOT))


def put_root(sink: ObjectSink, entry: Entry) -> RootId:
    """Put a root object."""
    return RootId(sink.put(Kind.ROOT, encode_root(entry)))


def lookup_path(source: ObjectSource, root: Entry, path: bytes) -> Entry | None:
    """Return the entry at ``path``, or None; symlinks are never followed."""
    entry = root
    for name in path_key(path):
        if entry.kind is not EntryKind.DIR:
            return None
        found = find_entry(source, TreeId(entry.ref), name)  # type: ignore[arg-type]
        if found is None:
            return None
        entry = found
    return entry


def walk(source: ObjectSource, root: Entry, path: bytes = b"") -> Iterator[tuple[bytes, Entry]]:
    """Yield every path and entry, the given root first, directories before what they hold, names sorted."""
    yield path, root
    if root.kind is EntryKind.DIR:
        for name, entry in iter_tree(source, tree_of(root)):
            yield from walk(source, entry, join(path, name))


def tree_of(entry: Entry) -> TreeId:
    """Return a directory entry's tree id."""
    assert entry.kind is EntryKind.DIR
    return TreeId(ObjectId(entry.ref))


def same_attributes(a: Entry, b: Entry) -> bool:
    """Whether two directory entries are equal apart from what the directories hold."""
    return a._replace(ref=b"") == b._replace(ref=b"")


def diff_trees(
    source: ObjectSource, old: Entry | None, new: Entry | None, path: bytes = b""
) -> Iterator[Change]:
    """Yield every path whose entry differs, in path order.

    A directory is listed when its own attributes differ or when it was added or removed; what merely changed below it is
    listed on its own. Subtrees with equal ids are skipped unread.
    """
    if old == new:
        return
    old_dir = old is not None and old.kind is EntryKind.DIR
    new_dir = new is not None and new.kind is EntryKind.DIR
    if old is None or new is None or not (old_dir and new_dir) or not same_attributes(old, new):
        yield Change(path, old, new)
    if old_dir and new_dir:
        assert old is not None and new is not None
        if old.ref != new.ref:
            for name, before, after in diff_names(source, tree_of(old), tree_of(new)):
                yield from diff_trees(source, before, after, join(path, name))
    elif old_dir:
        assert old is not None
        for below, entry in _below(source, old, path):
            yield Change(below, entry, None)
    elif new_dir:
        assert new is not None
        for below, entry in _below(source, new, path):
            yield Change(below, None, entry)


def _below(source: ObjectSource, directory: Entry, path: bytes) -> Iterator[tuple[bytes, Entry]]:
    walked = walk(source, directory, path)
    next(walked)
    return walked


def diff_names(
    source: ObjectSource, old: TreeId, new: TreeId
) -> Iterator[tuple[bytes, Entry | None, Entry | None]]:
    """Yield (name, old entry, new entry) of each name that differs between two directories, in name order.

    Nodes that both sides share are skipped unread, so two versions of a directory of a million names cost a few nodes.
    Where all names differ the leaves are read as they are compared: what is held is the inner nodes.
    """
    if old == new:
        return
    nodes = _Nodes(source)
    before = _unshared(nodes, old, _node_ids(nodes, old, new))
    after = _unshared(nodes, new, _node_ids(nodes, new, old))
    a, b = next(before, None), next(after, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a[0] < b[0]):
            assert a is not None
            yield a[0], a[1], None
            a = next(before, None)
        elif a is None or b[0] < a[0]:
            yield b[0], None, b[1]
            b = next(after, None)
        else:
            if a[1] != b[1]:
                yield a[0], a[1], b[1]
            a, b = next(before, None), next(after, None)


class _Nodes:
    """The roots and inner nodes of two directories, read once for as long as they are compared."""

    def __init__(self, source: ObjectSource) -> None:
        self._source = source
        self._read: dict[ObjectId, Node] = {}
        self._leaves: set[ObjectId] = set()

    def read(self, oid: ObjectId) -> Node:
        node = self._read.get(oid)
        return read_node(self._source, TreeId(oid)) if node is None else node

    def children(self, level: set[ObjectId]) -> set[ObjectId]:
        """Return the children of the nodes of one level; leaves are not read to find that they have none."""
        found: set[ObjectId] = set()
        for oid in level - self._leaves:
            node = self._read[oid] = self.read(oid)
            below = {child.oid for child in node.children}
            found |= below
            if node.level == 1:
                self._leaves |= below
        return found


def _node_ids(nodes: _Nodes, tree: TreeId, other: TreeId) -> frozenset[ObjectId]:
    """Return the ids that ``other`` refers to as nodes, as far down as both differ."""
    seen: set[ObjectId] = set()
    mine: set[ObjectId] = {tree}
    level: set[ObjectId] = {other}
    own_level: set[ObjectId] = {tree}
    while level:
        seen |= level
        level = nodes.children(level - mine)
        own_level = nodes.children(own_level - seen)
        mine |= own_level
    return frozenset(seen)


def _unshared(nodes: _Nodes, tree: ObjectId, shared: frozenset[ObjectId]) -> Iterator[Named]:
    if tree in shared:
        return
    node = nodes.read(tree)
    yield from node.entries
    for child in node.children:
        yield from _unshared(nodes, child.oid, shared)


def edit_paths(store: ObjectStore, root: Entry, changes: Mapping[bytes, Entry | None]) -> Entry:
    """Return the root entry with ``changes`` applied: an entry sets a path, None removes it and all below it.

    A directory entry with an empty ``ref`` sets attributes and keeps what the directory holds (nothing, if it is new or
    replaces something else); with a tree id it replaces the whole content, and changes below it then apply on top.
    Parents must exist or be set in the same call; a path below something that is not a directory raises KeyError.
    """
    nested = _nest(changes)
    edited = _edit_below(store, root, nested)
    assert edited is not None
    return edited


class _Edit:
    """What happens at one path: an optional replacement, and edits of the names below."""

    __slots__ = ("below", "replacement", "set")

    def __init__(self) -> None:
        self.set = False
        self.replacement: Entry | None = None
        self.below: dict[bytes, _Edit] = {}


def _nest(changes: Mapping[bytes, Entry | None]) -> _Edit:
    top = _Edit()
    for path, entry in changes.items():
        edit = top
        for name in path_key(path):
            edit = edit.below.setdefault(name, _Edit())
        edit.set = True
        edit.replacement = entry
    return top


def _edit_below(store: ObjectStore, current: Entry | None, edit: _Edit) -> Entry | None:
    if edit.set:
        new = edit.replacement
        if new is None:
            if any(_sets_something(below) for below in edit.below.values()):
                raise KeyError("a path is set below one that is removed")
            return None
        if new.kind is EntryKind.DIR and not new.ref:
            kept = current is not None and current.kind is EntryKind.DIR
            ref = current.ref if kept and current is not None else build_tree(store, ())
            new = new._replace(ref=ref)
        current = new
    if not edit.below:
        return current
    if current is None or current.kind is not EntryKind.DIR:
        if any(_sets_something(below) for below in edit.below.values()):
            raise KeyError("a path is set below something that is not a directory")
        return current
    tree = tree_of(current)
    names: dict[bytes, Entry | None] = {}
    for name, below in edit.below.items():
        present = find_entry(store, tree, name) if _needs_current(below) else None
        names[name] = _edit_below(store, present, below)
    return current._replace(ref=edit_tree(store, tree, names))


def _needs_current(edit: _Edit) -> bool:
    return not edit.set or bool(edit.below) or (edit.replacement is not None and not edit.replacement.ref)


def _sets_something(edit: _Edit) -> bool:
    return edit.replacement is not None or any(_sets_something(below) for below in edit.below.values())


def list_directory(source: ObjectSource, entry: Entry) -> list[Named]:
    """Return the sorted entries of a directory entry."""
    return read_tree(source, tree_of(entry))

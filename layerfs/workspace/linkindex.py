"""Link index: the names of the hard-linked files of one state, kept so that nobody searches a tree for them.

A delta lower has to hold every name of a linked file that changes, and a tree tells which names belong to a group only by
being gone through. Whoever materialises a base meets every name anyway and keeps the linked ones here; the index of
another state comes from that and the difference of the two. It lies in the cache directory and may be lost at any time.
"""

from __future__ import annotations

from collections.abc import Iterable

from layerfs.errors import LayerfsError
from layerfs.ids import ID_BYTES, ObjectId, RootId
from layerfs.objects.codec import Reader, Writer
from layerfs.objects.entry import Entry
from layerfs.objects.environment import diff_trees, read_root, walk
from layerfs.store.store import Store
from layerfs.workspace.derived import Derived

LIST = Derived(b"links", b"layerfs links 1")
MAX_CHANGES = 50_000


def linked_names(store: Store, root_id: bytes, root: Entry) -> list[tuple[bytes, int]]:
    """Return the names of all linked files of a state with their groups."""
    kept = LIST.load(store, _read)
    if kept is not None and kept[0] == root_id:
        return kept[1]
    found = None if kept is None else _moved(store, kept, root)
    if found is None:
        found = [(path, entry.link_group) for path, entry in walk(store.objects, root) if entry.link_group]
    keep_linked_names(store, root_id, found)
    return found


def _moved(
    store: Store, kept: tuple[bytes, list[tuple[bytes, int]]], root: Entry
) -> list[tuple[bytes, int]] | None:
    """Return the names of a state from those of another; None if they are too far apart or that one is gone."""
    gone: set[bytes] = set()
    fresh: list[tuple[bytes, int]] = []
    try:
        before = read_root(store.objects, RootId(ObjectId(kept[0])))
        for change in diff_trees(store.objects, before, root):
            gone.add(change.path)
            if change.new is not None and change.new.link_group:
                fresh.append((change.path, change.new.link_group))
            if len(gone) > MAX_CHANGES:
                return None
    except LayerfsError:
        return None
    return [name for name in kept[1] if name[0] not in gone] + fresh


def keep_linked_names(store: Store, root_id: bytes, names: Iterable[tuple[bytes, int]]) -> None:
    """Keep the index of a state instead of that of another."""
    listed = list(names)
    out = Writer().raw(root_id).uint(len(listed))
    for path, group in listed:
        out.data(path).uint(group)
    LIST.save(store, out)


def _read(reader: Reader) -> tuple[bytes, list[tuple[bytes, int]]]:
    return reader.raw(ID_BYTES), [(reader.data(), reader.uint()) for _ in range(reader.count(2))]

"""A tree that grows in parts, with entries that are decided late, is the tree that is built at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerfs.objects import growing
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.growing import GrowingTree
from layerfs.objects.memory import MemoryObjects
from layerfs.objects.trees import build_tree, read_tree

names = st.binary(min_size=1, max_size=4).filter(
    lambda name: not set(name) & {0, 47} and name not in (b".", b"..")
)


def file_entry(seed: int) -> Entry:
    return Entry(EntryKind.FILE, 0o644, 1, 2, seed, 5, seed.to_bytes(32, "big"))


directories = st.dictionaries(names, st.integers(0, 5).map(file_entry), max_size=150)


@given(
    before=st.none() | directories,
    after=directories,
    late=st.sets(names, max_size=5),
    part=st.integers(1, 60),
    packed=st.integers(1, 60),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_growing_equals_building(
    before: dict[bytes, Entry] | None,
    after: dict[bytes, Entry],
    late: set[bytes],
    part: int,
    packed: int,
    data: st.DataObject,
) -> None:
    if before and data.draw(st.booleans()):
        after = {**before, **dict(list(after.items())[:5])}
    undecided = (late | set(data.draw(st.permutations(sorted(after)))[:3])) & after.keys()
    objects = MemoryObjects()
    base = None if before is None else build_tree(objects, sorted(before.items()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "_PACKED_TOGETHER", packed)
        tree = GrowingTree(objects, base)
        every = sorted(after.keys() | (before or {}).keys())
        for at in range(0, len(every), part):
            mine = every[at : at + part]
            known = {name: before[name] for name in mine if before and name in before}
            items = [
                (name, after[name]._replace(ref=b"") if name in undecided else after[name])
                for name in mine
                if name in after
            ]
            tree.add(items, known, undecided)
        assert set(tree.waiting) == undecided
        for name in undecided:
            tree.settle(name, after[name])
        built = tree.finish()
    assert read_tree(objects, built) == sorted(after.items())
    assert built == build_tree(objects, sorted(after.items()))


def test_a_tree_that_did_not_change_is_not_read() -> None:
    objects = MemoryObjects()
    entries = {b"%04d" % number: file_entry(number) for number in range(2000)}
    base = build_tree(objects, sorted(entries.items()))
    reads = objects.reads
    tree = GrowingTree(objects, base)
    tree.add(sorted(entries.items()), entries)
    assert tree.finish() == base
    assert objects.reads == reads

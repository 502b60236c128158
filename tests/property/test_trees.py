"""Trees and environments against dictionaries: same content, same id, whatever the history; cost follows the change."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerfs.errors import MalformedObject
from layerfs.ids import ObjectId, TreeId
from layerfs.objects.entry import Entry, EntryKind, decode_entry, decode_root, encode_entry
from layerfs.objects.environment import diff_names, diff_trees, edit_paths, lookup_path, walk
from layerfs.objects.kinds import Kind
from layerfs.objects.memory import MemoryObjects
from layerfs.objects.trees import build_tree, count_entries, decode_node, edit_tree, find_entry, read_tree


def file_entry(seed: int) -> Entry:
    return Entry(EntryKind.FILE, 0o644, 1, 2, seed, 5, seed.to_bytes(32, "big"))


names = st.binary(min_size=1, max_size=6).filter(
    lambda name: not set(name) & {0, 47} and name not in (b".", b"..")
)
directories = st.dictionaries(names, st.integers(0, 50).map(file_entry), max_size=200)


@given(directories, directories, st.sets(names, max_size=20))
@settings(max_examples=100, deadline=None)
def test_editing_equals_building(
    before: dict[bytes, Entry], puts: dict[bytes, Entry], drops: set[bytes]
) -> None:
    objects = MemoryObjects()
    tree = build_tree(objects, sorted(before.items()))
    changes: dict[bytes, Entry | None] = {**puts, **dict.fromkeys(drops)}
    model = {name: entry for name, entry in {**before, **changes}.items() if entry is not None}
    edited = edit_tree(objects, tree, changes)
    assert edited == build_tree(objects, sorted(model.items()))
    assert read_tree(objects, edited) == sorted(model.items())
    differing = {
        name: (before.get(name), model.get(name))
        for name in before.keys() | model.keys()
        if before.get(name) != model.get(name)
    }
    assert {name: (a, b) for name, a, b in diff_names(objects, tree, edited)} == differing


def test_comparing_directories_in_which_all_differs_holds_no_more_than_their_inner_nodes() -> None:
    store = MemoryObjects()
    entry = file_entry(1)
    names = [b"%06d" % number for number in range(30_000)]
    before = build_tree(store, [(name, entry) for name in names])
    after = build_tree(store, [(name, entry._replace(mtime_ns=entry.mtime_ns + 1)) for name in names])
    tracemalloc.start()
    try:
        assert sum(1 for _ in diff_names(store, before, after)) == len(names)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_what_is_left_of_a_large_directory_is_no_taller_than_it_must_be() -> None:
    store = MemoryObjects()
    entry = file_entry(1)
    met = 0
    for count in range(2600, 2700):
        names = [b"%06d" % number for number in range(count)]
        tree = build_tree(store, [(name, entry) for name in names])
        *_, last = decode_node(store.read(tree, Kind.TREE)).children
        below = decode_node(store.read(last.oid, Kind.TREE))
        if len(below.children) == 1:
            gone, left = names[: -last.weight], names[-last.weight :]
            edited = edit_tree(store, tree, dict.fromkeys(gone))
            assert edited == build_tree(store, [(name, entry) for name in left])
            met += 1
            if met == 3:
                break
    assert met


def test_large_directory_edits_touch_few_nodes() -> None:
    objects = MemoryObjects()
    items = [(b"%07d" % number, file_entry(number)) for number in range(100_000)]
    tree = build_tree(objects, items)
    assert count_entries(objects, tree) == len(items)
    rng = random.Random(7)
    for _ in range(30):
        number = rng.randrange(len(items))
        name = rng.choice([b"%07d" % number, b"%07d-new" % number])
        puts, reads = objects.puts, objects.reads
        edited = edit_tree(objects, tree, {name: file_entry(1)})
        assert objects.puts - puts <= 12
        assert objects.reads - reads <= 24
        model = dict(items)
        model[name] = file_entry(1)
        assert edited == build_tree(MemoryObjects(), sorted(model.items()))
        assert find_entry(objects, edited, name) == file_entry(1)
        reads = objects.reads
        expected = dict(items).get(name)
        differing = [] if expected == file_entry(1) else [(name, expected, file_entry(1))]
        assert list(diff_names(objects, tree, edited)) == differing
        assert objects.reads - reads <= 40


entries = st.one_of(
    st.integers(0, 9).map(file_entry),
    st.just(Entry(EntryKind.SYMLINK, 0o777, 0, 0, -1, 0, b"to\xff/there")),
    st.just(Entry(EntryKind.FIFO, 0o600, 0, 0, 1_999_999_999, 0, b"")),
)
paths = st.lists(st.sampled_from([b"a", b"b", b"c\xff", b"d e"]), min_size=1, max_size=4).map(b"/".join)


@given(st.lists(st.tuples(paths, st.one_of(st.none(), entries)), max_size=30), st.integers(1, 30))
@settings(max_examples=200, deadline=None)
def test_environments_against_a_dictionary(edits: list[tuple[bytes, Entry | None]], chunk: int) -> None:
    objects = MemoryObjects()
    directory = Entry(EntryKind.DIR, 0o755, 0, 0, 0, 0, b"")
    root = directory._replace(ref=build_tree(objects, ()))
    model: dict[bytes, Entry] = {}
    versions = [(root, {})]
    for start in range(0, len(edits), chunk):
        changes: dict[bytes, Entry | None] = {}
        for path, entry in edits[start : start + chunk]:
            if any(other.startswith(path + b"/") or path.startswith(other + b"/") for other in changes):
                continue
            parents = [path[:at] for at in range(len(path)) if path[at : at + 1] == b"/"]
            blocked = any(parent in model and model[parent].kind is not EntryKind.DIR for parent in parents)
            if entry is not None and blocked:
                continue
            changes[path] = entry
            for known in [known for known in model if known == path or known.startswith(path + b"/")]:
                del model[known]
            if entry is None:
                continue
            for parent in parents:
                if parent not in model:
                    changes.setdefault(parent, directory)
                    model[parent] = directory
            model[path] = entry
        root = edit_paths(objects, root, changes)
        found = {
            path: entry._replace(ref=b"") if entry.kind is EntryKind.DIR else entry
            for path, entry in walk(objects, root)
        }
        del found[b""]
        assert found == model
        for path, entry in model.items():
            assert lookup_path(objects, root, path) is not None or entry is None
        for old_root, old_model in versions:
            diff = {change.path: change for change in diff_trees(objects, old_root, root)}
            expected = {
                path for path in old_model.keys() | model.keys() if old_model.get(path) != model.get(path)
            }
            assert diff.keys() == expected
        versions.append((root, dict(model)))


@given(st.binary(max_size=200))
@settings(max_examples=400, deadline=None)
def test_hostile_bytes_raise_only_our_error(payload: bytes) -> None:
    for decode in (decode_node, decode_root, lambda data: decode_entry(data, 0)):
        try:
            decode(payload)
        except MalformedObject:
            continue


@pytest.mark.parametrize("name", [b"..", b".", b"a/b", b"/abs", b"nul\0"])
def test_names_that_lead_outside_are_refused(name: bytes) -> None:
    objects = MemoryObjects()
    hostile = ObjectId(objects.put(Kind.TREE, b"\0" + encode_entry(name, file_entry(1))))
    with pytest.raises(MalformedObject):
        read_tree(objects, TreeId(hostile))

"""Merging environments: the decision table row by row, classes, renames, times, and what a merge may cost."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from trees import MERGE_NS, OLD_NS, Spec, file, git_index, link, listing, tree

from layerfs.merge.conflicts import ConflictKind, NoteKind
from layerfs.merge.renames import compose
from layerfs.merge.treemerge import (
    MergeResult,
    RenameList,
    changed_paths,
    merge_time,
    merge_trees,
    merge_virtual,
)
from layerfs.objects.entry import Entry, EntryKind, device_ref
from layerfs.objects.environment import lookup_path
from layerfs.objects.memory import MemoryObjects
from layerfs.present.conflicts import conflict_data

LONG = b"".join(b"line %d\n" % number for number in range(20))
Dir = Mapping[str, Spec]


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


class Merge:
    """Merges three specs both ways round and checks that the sides do not matter."""

    def __init__(self, objects: MemoryObjects) -> None:
        self.objects = objects

    def __call__(
        self,
        base: Dir | None,
        ours: Dir,
        theirs: Dir,
        our_renames: RenameList = (),
        their_renames: RenameList = (),
        symmetric: bool = True,
    ) -> MergeResult:
        roots = [None if spec is None else tree(self.objects, spec) for spec in (base, ours, theirs)]
        b, o, t = roots
        assert o is not None and t is not None
        result = merge_trees(
            self.objects,
            self.objects,
            b,
            o,
            t,
            merge_time_ns=MERGE_NS,
            our_renames=our_renames,
            their_renames=their_renames,
        )
        mirrored = merge_trees(
            self.objects,
            self.objects,
            b,
            t,
            o,
            merge_time_ns=MERGE_NS,
            our_renames=their_renames,
            their_renames=our_renames,
        )
        if symmetric:
            assert mirrored.root == result.root
        assert tuple(conflict.swapped() for conflict in mirrored.conflicts) == result.conflicts
        assert [(note.path, note.kind) for note in mirrored.notes] == [(n.path, n.kind) for n in result.notes]
        return result


@pytest.fixture
def merge(objects: MemoryObjects) -> Merge:
    return Merge(objects)


def kinds(result: MergeResult) -> list[tuple[str, str]]:
    return [(conflict.path.decode(), str(conflict.kind)) for conflict in result.conflicts]


def notes(result: MergeResult) -> list[tuple[str, str]]:
    return [(note.path.decode(), str(note.kind)) for note in result.notes]


def at(objects: MemoryObjects, result: MergeResult, path: str) -> Entry:
    assert result.root is not None, result.conflicts
    found = lookup_path(objects, result.root, path.encode())
    assert found is not None
    return found


# -- one path ----------------------------------------------------------------------------------------------------------


def test_disjoint_changes_combine(objects: MemoryObjects, merge: Merge) -> None:
    base: Dir = {"a": b"a\n", "b": b"b\n", "d": {"x": b"x\n"}, "gone": b"1\n"}
    ours: Dir = {"a": b"A\n", "b": b"b\n", "d": {"x": b"x\n", "new": b"n\n"}, "gone": b"1\n"}
    theirs: Dir = {"a": b"a\n", "b": b"B\n", "d": {"x": b"X\n"}, "e": {}}
    result = merge(base, ours, theirs)
    assert listing(objects, result.root) == {
        "a": b"A\n",
        "b": b"B\n",
        "d/": 0o755,
        "d/new": b"n\n",
        "d/x": b"X\n",
        "e/": 0o755,
    }


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "kind"),
    [
        (None, b"1\n", b"2\n", "both-added"),
        (b"0\n", b"1\n", b"2\n", "both-modified"),
        (b"0\n", b"1\0", b"2\0", "binary"),
        (b"0\n", b"1\n", None, "deleted-by-them"),
        (b"0\n", b"1\n", link(b"t"), "type"),
        (None, b"1\n", link(b"t"), "type"),
        (None, link(b"s"), link(b"t"), "symlink"),
        (link(b"r"), link(b"s"), link(b"t"), "symlink"),
        (link(b"r"), link(b"s"), None, "deleted-by-them"),
        (None, b"1\n", {"x": b"x\n"}, "file-dir"),
        (b"0\n", b"1\n", {"x": b"x\n"}, "file-dir"),
        ({"x": b"x\n"}, b"1\n", {"x": b"y\n"}, "file-dir"),
        ({"x": b"x\n"}, b"1\n", {"x": b"x\n", "n": b"n\n"}, "file-dir"),
    ],
)
def test_conflicts_of_one_path(merge: Merge, base: Spec, ours: Spec, theirs: Spec, kind: str) -> None:
    result = merge({"p": base}, {"p": ours}, {"p": theirs})
    assert result.root is None
    assert kinds(result) == [("p", kind)]
    (conflict,) = result.conflicts
    assert (conflict.ours is None, conflict.theirs is None) == (ours is None, theirs is None)


def test_a_device_that_both_renumbered_conflicts(merge: Merge) -> None:
    def device(minor: int) -> Entry:
        return Entry(EntryKind.CHARDEV, 0o600, 0, 0, OLD_NS, 0, device_ref(1, minor))

    assert kinds(merge({"d": device(3)}, {"d": device(5)}, {"d": device(7)})) == [("d", "type")]
    assert merge({"d": device(3)}, {"d": device(5)}, {"d": device(3)}).is_clean


def test_targets_that_mean_the_same_do_not_conflict(objects: MemoryObjects, merge: Merge) -> None:
    result = merge({"l": link(b"a")}, {"l": link(b"b/c")}, {"l": link(b"./b//c")})
    assert at(objects, result, "l").ref == b"b/c"


def test_mode_and_content_merge_apart(objects: MemoryObjects, merge: Merge) -> None:
    base: Dir = {"f": file(objects, LONG)}
    ours: Dir = {"f": file(objects, LONG.replace(b"line 2\n", b"two\n"), 0o755)}
    theirs: Dir = {"f": file(objects, LONG.replace(b"line 15\n", b"fifteen\n"), 0o640)}
    merged = at(objects, merge(base, ours, theirs), "f")
    assert merged.mode == 0o751
    assert listing(objects, tree(objects, {"f": merged}))["f"] == (
        LONG.replace(b"line 2\n", b"two\n").replace(b"line 15\n", b"fifteen\n"),
        0o751,
    )


def test_bits_of_one_group_changed_by_both_combine_with_a_note(objects: MemoryObjects, merge: Merge) -> None:
    result = merge(
        {"f": file(objects, b"", 0o644)}, {"f": file(objects, b"", 0o640)}, {"f": file(objects, b"", 0o604)}
    )
    assert at(objects, result, "f").mode == 0o600
    assert notes(result) == [("f", "mode")]


def test_owner_clash_keeps_ours_and_says_so(objects: MemoryObjects, merge: Merge) -> None:
    plain = file(objects, b"x")
    result = merge({"f": plain}, {"f": plain._replace(uid=1)}, {"f": plain._replace(uid=2)}, symmetric=False)
    assert at(objects, result, "f").uid == 1
    assert notes(result) == [("f", "owner")]


def test_xattrs_merge_name_by_name(objects: MemoryObjects, merge: Merge) -> None:
    plain = file(objects, b"x")
    base = plain._replace(xattrs=((b"user.a", b"1"), (b"user.b", b"1")))
    ours = plain._replace(xattrs=((b"user.a", b"2"), (b"user.b", b"1")))
    theirs = plain._replace(xattrs=((b"user.a", b"1"), (b"user.c", b"1")))
    assert at(objects, merge({"f": base}, {"f": ours}, {"f": theirs}), "f").xattrs == (
        (b"user.a", b"2"),
        (b"user.c", b"1"),
    )
    clash = merge({"f": base}, {"f": ours}, {"f": plain._replace(xattrs=((b"user.a", b"3"),))})
    assert kinds(clash) == [("f", "xattr")] and clash.conflicts[0].detail == "user.a"


def test_touching_is_no_change(objects: MemoryObjects, merge: Merge) -> None:
    """Field case A16: times alone never conflict, never save a deleted file, and never hide a change."""
    base: Dir = {"a": b"a\n", "b": b"b\n", "gone": b"g\n", "d": {"x": b"x\n"}}

    def touched(mtime_ns: int, **changes: Spec) -> Dir:
        old = {name: file(objects, data, mtime_ns=mtime_ns) for name, data in (("a", b"a\n"), ("b", b"b\n"))}
        gone = file(objects, b"g\n", mtime_ns=mtime_ns)
        below: Dir = {"x": file(objects, b"x\n", mtime_ns=mtime_ns)}
        return {**old, "gone": gone, "d": below, **changes}

    ours = touched(OLD_NS + 7, a=b"ours\n", ours=b"1\n")
    theirs = touched(OLD_NS + 9, b=b"theirs\n", theirs=b"2\n", gone=None, d=None)
    result = merge(base, ours, theirs)
    assert listing(objects, result.root) == {
        "a": b"ours\n",
        "b": b"theirs\n",
        "ours": b"1\n",
        "theirs": b"2\n",
    }
    assert not result.notes


# -- directories -------------------------------------------------------------------------------------------------------


def test_a_deleted_directory_keeps_what_was_added_below_it(objects: MemoryObjects, merge: Merge) -> None:
    result = merge({"d": {"x": b"x\n"}}, {}, {"d": {"x": b"x\n", "new": b"n\n"}})
    assert listing(objects, result.root) == {"d/": 0o755, "d/new": b"n\n"}
    assert notes(result) == [("d/new", "added-in-deleted")]


def test_a_deleted_directory_conflicts_where_a_file_was_edited(merge: Merge) -> None:
    result = merge({"d": {"x": b"x\n", "y": b"y\n"}}, {}, {"d": {"x": b"edited\n", "y": b"y\n"}})
    assert kinds(result) == [("d/x", "deleted-by-us")]


def test_a_directory_both_emptied_differently_is_gone(objects: MemoryObjects, merge: Merge) -> None:
    result = merge({"d": {"x": b"x\n"}}, {}, {"d": {}})
    assert listing(objects, result.root) == {}


def test_directory_attributes(objects: MemoryObjects, merge: Merge) -> None:
    base = tree(objects, {})
    ours, theirs = (
        base._replace(mode=0o700, mtime_ns=OLD_NS + 5),
        base._replace(mode=0o1755, mtime_ns=OLD_NS + 3),
    )
    merged = at(objects, merge({"d": base}, {"d": ours}, {"d": theirs}), "d")
    assert (merged.mode, merged.mtime_ns) == (0o1700, OLD_NS + 5)


def test_names_that_differ_in_case_only_are_noted(merge: Merge) -> None:
    result = merge({}, {"foo": b"1\n"}, {"FOO": b"2\n"})
    assert result.is_clean and notes(result) == [("FOO", "case-collision")]
    assert notes(merge({}, {"é": b"1\n"}, {"e\u0301": b"1\n"})) == [("e\u0301", "case-collision")]


def test_unrelated_histories_merge_over_nothing(objects: MemoryObjects, merge: Merge) -> None:
    assert kinds(merge(None, {"a": b"1\n"}, {"a": b"2\n"})) == [("a", "both-added")]
    assert listing(objects, merge(None, {"a": b"1\n"}, {"b": b"2\n"}).root) == {"a": b"1\n", "b": b"2\n"}


# -- times (rules T1 and T2) -------------------------------------------------------------------------------------------


def test_sources_either_side_changed_get_the_time_of_the_merge(objects: MemoryObjects, merge: Merge) -> None:
    """Field case A13: theirs brings foo.c and foo.o, ours changed bar.h; make must see foo.o as stale."""
    base: Dir = {"foo.c": b"1\n", "foo.o": b"o1", "bar.h": b"1\n", "keep.c": b"k\n"}
    ours: Dir = {**base, "bar.h": b"2\n"}
    theirs: Dir = {**base, "foo.c": b"2\n", "foo.o": b"o2", "new": {"n.c": b"n\n"}}
    result = merge(base, ours, theirs)
    times = {
        name: at(objects, result, name).mtime_ns for name in ("foo.c", "bar.h", "new/n.c", "foo.o", "keep.c")
    }
    assert times == {
        "foo.c": MERGE_NS,
        "bar.h": MERGE_NS,
        "new/n.c": MERGE_NS,
        "foo.o": OLD_NS,
        "keep.c": OLD_NS,
    }


def test_one_sided_merges_keep_all_times(objects: MemoryObjects) -> None:
    base, ours = tree(objects, {"a": b"1\n"}), tree(objects, {"a": b"2\n"})
    assert merge_trees(objects, objects, base, ours, base, merge_time_ns=MERGE_NS).root == ours
    assert merge_trees(objects, objects, base, base, ours, merge_time_ns=MERGE_NS).root == ours
    assert merge_trees(objects, objects, base, ours, ours, merge_time_ns=MERGE_NS).root == ours


def test_the_time_of_a_merge_is_a_whole_second_not_before_anything() -> None:
    assert merge_time(1_000_000_001, 5) == 2_000_000_000
    assert merge_time(1, 3_000_000_000) == 3_000_000_000


def test_packages_keep_their_times(objects: MemoryObjects, merge: Merge) -> None:
    result = merge({}, {"site-packages": {"p": {"m.py": b"x\n"}}}, {"a": b"1\n"})
    assert at(objects, result, "site-packages/p/m.py").mtime_ns == OLD_NS


def test_caches_both_sides_changed_are_left_out(objects: MemoryObjects, merge: Merge) -> None:
    def project(cache: bytes, extra: str) -> Dir:
        return {
            "m.py": b"x\n",
            "__pycache__": {"m.cpython-311.pyc": cache, "same.pyc": b"s\0", f"{extra}.pyc": b"one-sided\0"},
            ".pytest_cache": {"v": {"cache": {"lastfailed": cache}}},
        }

    result = merge({"m.py": b"x\n"}, project(b"1\0", "ours"), project(b"2\0", "theirs"))
    assert listing(objects, result.root) == {
        "m.py": b"x\n",
        "__pycache__/": 0o755,
        "__pycache__/same.pyc": b"s\0",
        "__pycache__/ours.pyc": b"one-sided\0",
        "__pycache__/theirs.pyc": b"one-sided\0",
        ".pytest_cache/": 0o755,
        ".pytest_cache/v/": 0o755,
        ".pytest_cache/v/cache/": 0o755,
    }
    assert notes(result) == [(".pytest_cache/v/cache", "derived-dropped"), ("__pycache__", "derived-dropped")]


def test_a_cache_of_a_deleted_package_goes_with_it(objects: MemoryObjects, merge: Merge) -> None:
    base: Dir = {"site-packages": {"p": {"m.py": b"x\n", "__pycache__": {"m.pyc": b"1"}}}}
    ours: Dir = {"site-packages": {"p": {"m.py": b"x\n", "__pycache__": {"m.pyc": b"2", "n.pyc": b"3"}}}}
    result = merge(base, ours, {"site-packages": {}})
    assert listing(objects, result.root) == {"site-packages/": 0o755}
    assert {kind for _, kind in notes(result)} == {"derived-dropped"}


def test_build_outputs_are_dropped_but_tracked_sources_are_not(objects: MemoryObjects, merge: Merge) -> None:
    base: Dir = {"build": {"out": b"0\n", "rules": b"0\n"}}
    ours: Dir = {"build": {"out": b"1\n", "rules": b"1\n"}}
    theirs: Dir = {"build": {"out": b"2\n", "rules": b"2\n"}}
    assert listing(objects, merge(base, ours, theirs).root) == {"build/": 0o755}
    git: Dir = {".git": {"index": git_index({b"build/rules": b"\1" * 20})}}
    assert kinds(merge({**base, **git}, {**ours, **git}, {**theirs, **git})) == [
        ("build/rules", "both-modified")
    ]


# -- units -------------------------------------------------------------------------------------------------------------


def installed(objects: MemoryObjects, version: str, mtime_ns: int = OLD_NS, pyc: bytes = b"c") -> Dir:
    def at_time(data: bytes) -> Entry:
        return file(objects, data, mtime_ns=mtime_ns)

    return {
        "site-packages": {
            "six.py": at_time(b"version = %s\n" % version.encode()),
            "__pycache__": {"six.cpython-311.pyc": at_time(pyc)},
            f"six-{version}.dist-info": {
                "RECORD": at_time(b"six.py,sha256=%s,10\n" % version.encode()),
                "METADATA": at_time(b"Version: %s\n" % version.encode()),
            },
        }
    }


def test_the_same_version_installed_twice_is_clean(objects: MemoryObjects, merge: Merge) -> None:
    result = merge(
        {"site-packages": {}},
        installed(objects, "1.0", OLD_NS + 1, b"1\0"),
        installed(objects, "1.0", OLD_NS + 2, b"2\0"),
    )
    assert sorted(listing(objects, result.root)) == [
        "site-packages/",
        "site-packages/__pycache__/",
        "site-packages/six-1.0.dist-info/",
        "site-packages/six-1.0.dist-info/METADATA",
        "site-packages/six-1.0.dist-info/RECORD",
        "site-packages/six.py",
    ]


def test_two_versions_of_one_package_conflict(objects: MemoryObjects, merge: Merge) -> None:
    result = merge({"site-packages": {}}, installed(objects, "1.0"), installed(objects, "2.0"))
    assert kinds(result) == [("site-packages/six", "unit"), ("site-packages/six.py", "unit")]
    assert result.conflicts[0].detail == "both sides installed six-1.0.dist-info and six-2.0.dist-info"


def test_packages_are_never_merged_by_lines(merge: Merge) -> None:
    def package(data: bytes) -> Dir:
        return {"node_modules": {"p": {"index.js": data}}}

    ours, theirs = LONG.replace(b"line 2\n", b"2\n"), LONG.replace(b"line 15\n", b"15\n")
    assert kinds(merge(package(LONG), package(ours), package(theirs))) == [
        ("node_modules/p/index.js", "unit")
    ]


def test_a_database_and_its_log_are_one_value(objects: MemoryObjects, merge: Merge) -> None:
    base: Dir = {"x.db": b"db0\0"}
    result = merge(base, {"x.db": b"db1\0"}, {"x.db": b"db0\0", "x.db-wal": b"wal\0"})
    assert kinds(result) == [("x.db", "unit")]
    both = {"x.db": b"db1\0", "x.db-wal": b"wal\0"}
    assert listing(objects, merge(base, both, base).root) == both
    assert merge(base, both, both).is_clean


# -- renames -----------------------------------------------------------------------------------------------------------


def test_an_edit_follows_a_renamed_file(objects: MemoryObjects, merge: Merge) -> None:
    edited = LONG.replace(b"line 3\n", b"three\n")
    result = merge({"old": LONG, "d": {}}, {"d": {"new": LONG}}, {"old": edited, "d": {}})
    assert listing(objects, result.root) == {"d/": 0o755, "d/new": edited}


def test_a_copy_is_not_mistaken_for_a_rename(merge: Merge) -> None:
    edited = LONG.replace(b"line 3\n", b"three\n")
    result = merge({"old": LONG}, {"one": LONG, "two": LONG}, {"old": edited})
    assert kinds(result) == [("old", "deleted-by-us")]
    assert kinds(merge({"old": b"short\n"}, {"new": b"short\n"}, {"old": b"edit\n"})) == [
        ("old", "deleted-by-us")
    ]


def test_a_renamed_file_meets_another(merge: Merge) -> None:
    edited = LONG.replace(b"line 3\n", b"three\n")
    result = merge({"old": LONG}, {"new": LONG}, {"old": edited, "new": b"else\n"})
    assert ("new", "rename-collision") in kinds(result)


def test_a_recorded_rename_of_a_directory_moves_edits_and_additions(
    objects: MemoryObjects, merge: Merge
) -> None:
    base: Dir = {"d": {"x": b"1\n", "y": LONG}}
    ours: Dir = {"e": {"x": b"1\n", "y": LONG.replace(b"line 1\n", b"one\n")}}
    theirs: Dir = {"d": {"x": b"2\n", "y": LONG.replace(b"line 15\n", b"15\n"), "new": b"n\n"}}
    result = merge(base, ours, theirs, our_renames=[(b"d", b"e")])
    assert listing(objects, result.root) == {
        "e/": 0o755,
        "e/new": b"n\n",
        "e/x": b"2\n",
        "e/y": LONG.replace(b"line 1\n", b"one\n").replace(b"line 15\n", b"15\n"),
    }
    assert notes(result) == [("e/new", "dir-rename")]


def test_renames_build_on_each_other(objects: MemoryObjects, merge: Merge) -> None:
    steps = [(b"a", b"b"), (b"b", b"c"), (b"d/x", b"d/y"), (b"d", b"e"), (b"t", b"u"), (b"u", b"t")]
    assert compose(steps) == {b"a": b"c", b"d/x": b"e/y", b"d": b"e"}
    result = merge({"a": b"1\n"}, {"c": b"1\n"}, {"a": b"2\n"}, our_renames=steps[:2])
    assert listing(objects, result.root) == {"c": b"2\n"}


def test_one_path_renamed_to_two_conflicts(merge: Merge) -> None:
    result = merge(
        {"p": LONG}, {"q": LONG}, {"r": LONG}, our_renames=[(b"p", b"q")], their_renames=[(b"p", b"r")]
    )
    assert kinds(result) == [("p", "rename-rename")]


# -- hard links --------------------------------------------------------------------------------------------------------


def test_linked_names_follow_one_edit(objects: MemoryObjects, merge: Merge) -> None:
    old, new = (file(objects, data)._replace(link_group=9) for data in (b"old\n", b"new\n"))
    result = merge({"p": old, "q": old}, {"p": old, "q": old, "r": old}, {"p": new, "q": new})
    merged = {at(objects, result, name) for name in "pqr"}
    assert len(merged) == 1 and merged.pop().ref == new.ref


def test_a_broken_link_stays_broken(objects: MemoryObjects, merge: Merge) -> None:
    old, new = (file(objects, data)._replace(link_group=9) for data in (b"old\n", b"new\n"))
    split = file(objects, b"split\n")
    result = merge(
        {"p": old, "q": old, "z": b"z\n"}, {"p": split, "q": old, "z": b"z\n"}, {"p": old, "q": old}
    )
    assert at(objects, result, "p").link_group == 0
    assert at(objects, result, "q").link_group == 9
    parted = merge({"p": old, "q": old}, {"p": split._replace(link_group=9), "q": old}, {"p": old, "q": new})
    assert {at(objects, parted, name).link_group for name in "pq"} == {0}
    assert notes(parted) == [("p", "link"), ("q", "link")]


# -- virtual bases and cost --------------------------------------------------------------------------------------------


def test_a_virtual_base_settles_its_conflicts(objects: MemoryObjects) -> None:
    base = tree(objects, {"t": b"0\n", "gone": b"0\n", "l": link(b"0"), "b": b"0\0"})
    ours = tree(objects, {"t": b"1\n", "l": link(b"1"), "b": b"1\0"})
    theirs = tree(objects, {"t": b"2\n", "gone": b"2\n", "l": link(b"2"), "b": b"2\0"})
    merged = listing(objects, merge_virtual(objects, objects, base, ours, theirs, 1))
    assert merged == {
        "t": b"<<<<<<<<<\n1\n=========\n2\n>>>>>>>>>\n",
        "gone": b"0\n",
        "l": "-> 0",
        "b": b"0\0",
    }


def test_cost_follows_the_change(objects: MemoryObjects) -> None:
    def wide(directories: int, **changes: bytes) -> Entry:
        spec = {
            f"d{number:05}": {f"f{index}": b"%d" % index for index in range(20)}
            for number in range(directories)
        }
        for path, data in changes.items():
            spec[path]["f3"] = data
        return tree(objects, spec)

    costs = []
    for size in (50, 2000):
        base, ours = wide(size), wide(size, d00007=b"ours")
        theirs = wide(size, d00031=b"theirs")
        objects.reads = objects.puts = 0
        result = merge_trees(objects, objects, base, ours, theirs, merge_time_ns=MERGE_NS)
        costs.append(objects.reads + objects.puts)
        assert result.root is not None
        assert list(changed_paths(objects, ours, result.root)) == [b"d00031/f3"]
    assert costs[1] <= 3 * costs[0]


def test_source_and_sink_may_be_two_places(objects: MemoryObjects) -> None:
    """Nothing just put has to be readable through the source."""
    base = tree(objects, {"old": LONG, "d": {"k": b"k\n"}})
    ours = tree(objects, {"d": {"k": b"k2\n", "new": LONG}})
    theirs = tree(objects, {"old": LONG + b"more\n", "d": {"k": b"k\n"}, "e": {"x": b"x\n"}})
    sink = MemoryObjects()
    result = merge_trees(objects, sink, base, ours, theirs, merge_time_ns=MERGE_NS)
    objects.objects |= sink.objects
    assert listing(objects, result.root)["d/new"] == LONG + b"more\n"


def test_the_json_form_is_lossless(merge: Merge) -> None:
    result = merge({"a\udcff": b"0\n"}, {"a\udcff": b"1\n"}, {"a\udcff": b"2\n"})
    (data,) = conflict_data(result.conflicts)
    assert (data["path"], data["kind"]) == (b"a\xff", "both-modified")
    assert {side: data[side]["id"] for side in ("base", "ours", "theirs")} == {
        "base": result.conflicts[0].base.ref.hex(),
        "ours": result.conflicts[0].ours.ref.hex(),
        "theirs": result.conflicts[0].theirs.ref.hex(),
    }
    assert data["hunks"] == [
        {
            "base_start": 1,
            "base_lines": 1,
            "ours_start": 1,
            "ours_lines": 1,
            "theirs_start": 1,
            "theirs_lines": 1,
        }
    ]


def test_kind_names_are_stable() -> None:
    assert {str(kind) for kind in ConflictKind} == {
        "both-modified",
        "both-added",
        "deleted-by-us",
        "deleted-by-them",
        "type",
        "file-dir",
        "binary",
        "symlink",
        "xattr",
        "rename-rename",
        "rename-collision",
        "unit",
        "git-ref",
        "git-index",
    }
    assert len({str(kind) for kind in NoteKind}) == len(NoteKind)

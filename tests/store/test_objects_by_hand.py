"""Plumbing that reads and writes single objects agrees with capture, and packs are counted as they are."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from storekit import assert_clean, make_store, open_store

from layerfs.capture.dirtyranges import Range
from layerfs.errors import LayerfsError, NotFound, UsageError
from layerfs.history.authorship import Author
from layerfs.history.states import (
    Found,
    diff_paths,
    list_tree,
    outermost,
    place_extents,
    read_objects,
    resolve_directory,
    resolve_root,
)
from layerfs.ids import CommitId, ObjectId, to_hex
from layerfs.objects.chunking import ONE_PIECE_LIMIT
from layerfs.objects.content import put_stream
from layerfs.objects.extents import MAX_FILE_BYTES
from layerfs.objects.kinds import Kind
from layerfs.plumbing.hashing import NoSink, cut_content, hash_object, iter_file
from layerfs.plumbing.objectwriting import (
    file_sources,
    hash_files,
    parse_provenance,
    write_commit,
    write_tree,
)
from layerfs.plumbing.splicing import splice_stored
from layerfs.store.packlist import count_objects, find_pack, list_pack, list_packs, verify_packs
from layerfs.store.store import Store
from layerfs.upkeep.repair import repair_store
from layerfs.upkeep.stats import gather
from layerfs.upkeep.verify import verify_store

SIZES = (0, 1, ONE_PIECE_LIMIT - 1, ONE_PIECE_LIMIT, 300_000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with make_store(tmp_path / "store") as store:
        yield store
        assert_clean(store)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with files of every size class, one of them with a hole in the middle."""
    tree = tmp_path / "tree"
    tree.mkdir()
    source = random.Random(4)
    for size in SIZES:
        (tree / f"f{size}").write_bytes(source.randbytes(size))
    with (tree / "sparse").open("wb") as file:
        file.write(source.randbytes(100_001))
        file.truncate(1 << 20)
        file.seek(900_000)
        file.write(b"end")
    (tree / "sub").mkdir()
    (tree / "sub" / "f").write_bytes(b"x")
    return tree


def author() -> Author:
    return Author("me", 1, 0)


def commit_of(store: Store, tree: Path) -> CommitId:
    root = write_tree(store, os.fsencode(tree), (), "me").root
    return write_commit(store, root, (), author(), "m", {"agent": "t"})


def test_the_id_by_hand_is_the_id_in_the_tree(store: Store, tree: Path) -> None:
    commit = to_hex(commit_of(store, tree))
    for name, entry in list_tree(store.objects, resolve_directory(store, commit, None), False):
        if name.startswith((b"f", b"s")) and name != b"sub":
            path = os.path.join(os.fsencode(tree), name)
            assert put_stream(NoSink(), iter_file(path)).ref == entry.ref
            pieces = [tuple(piece) for piece in cut_content(iter_file(path))]
            assert pieces == [tuple(piece) for piece in place_extents(store, f"{commit}:{os.fsdecode(name)}", None)]
            assert sum(length for _, length, _ in pieces) == entry.size


@pytest.mark.parametrize("block", (1000, ONE_PIECE_LIMIT, 1 << 20))
def test_how_bytes_arrive_does_not_matter(block: int) -> None:
    data = random.Random(5).randbytes(400_000)
    whole = put_stream(NoSink(), [data])
    assert put_stream(NoSink(), [data[at : at + block] for at in range(0, len(data), block)]) == whole


def test_hashing_without_a_store_writes_nothing_and_with_one_writes_once(store: Store, tree: Path) -> None:
    paths = [os.fsencode(tree / f"f{size}") for size in SIZES]
    asked = hash_files(None, file_sources(paths), None, "me")
    assert not count_objects(store).objects
    assert hash_files(store, file_sources(paths), None, "me") == asked
    counted = count_objects(store).objects
    assert counted > len(SIZES)
    hash_files(store, file_sources(paths), None, "me")
    assert count_objects(store).objects == counted
    assert all(store.objects.contains(ObjectId(found.oid)) for found in asked if found.size)


def test_objects_given_by_their_bytes_must_be_canonical(store: Store, tree: Path) -> None:
    commit = commit_of(store, tree)
    payload = store.objects.read(commit, Kind.COMMIT)
    assert hash_object(NoSink(), Kind.COMMIT, [payload[:10], payload[10:]]) == commit
    for kind in (Kind.COMMIT, Kind.ROOT, Kind.TREE, Kind.EXTENT, Kind.LAYER):
        with pytest.raises(UsageError):
            hash_object(NoSink(), kind, [payload + b"\0"])
    with pytest.raises(UsageError):
        hash_object(NoSink(), Kind.MOVE, [payload])
    with pytest.raises(UsageError, match="longer"):
        hash_object(NoSink(), Kind.CHUNK, [bytes(1 << 20)] * 17)


def test_a_tree_is_written_without_the_store_that_lies_in_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with make_store(tmp_path / "store") as store:
        root = write_tree(store, os.fsencode(tmp_path), ("no*",), "me").root
        names = [name for name, _ in list_tree(store.objects, resolve_directory(store, to_hex(root), None), True)]
        assert names == [b"file"]


def test_what_cannot_be_a_commit(store: Store, tree: Path) -> None:
    commit = commit_of(store, tree)
    root = resolve_root(store, to_hex(commit), None)
    with pytest.raises(UsageError, match="twice"):
        write_commit(store, root, (commit, commit), author(), "m", {})
    with pytest.raises(UsageError, match="at most"):
        write_commit(store, root, [CommitId(ObjectId(bytes([n]) * 32)) for n in range(17)], author(), "m", {})
    with pytest.raises(UsageError, match="not a root"):
        resolve_root(store, to_hex(next(row.oid for row in list_pack(store, "1") if row.kind is Kind.TREE)), None)
    for word in ("novalue", "=x", "a b=c"):
        with pytest.raises(UsageError):
            parse_provenance([word])


def test_words_that_name_nothing_do_not_end_a_batch(store: Store, tree: Path) -> None:
    commit = to_hex(commit_of(store, tree))
    words = [commit, "nothing", f"{commit}:f1", f"{commit}:f0", "zz zz", "", commit[:8], "@"]
    found = list(read_objects(store, words, None))
    assert [isinstance(one, Found) for one in found] == [True, False, True, False, False, False, True, False]


def test_differences_below_paths(store: Store, tree: Path) -> None:
    old = resolve_directory(store, to_hex(commit_of(store, tree)), None)
    (tree / "sub" / "f").write_bytes(b"yy")
    (tree / "sub.more").write_bytes(b"y")
    new = resolve_directory(store, to_hex(commit_of(store, tree)), None)
    assert [change.path for change in diff_paths(store.objects, old, new, [b"sub"])] == [b"sub/f"]
    assert [change.path for change in diff_paths(store.objects, old, new, [b"sub.more", b"sub/f", b"sub"])] == [
        b"sub/f",
        b"sub.more",
    ]
    assert b"sub/f" in [change.path for change in diff_paths(store.objects, old, new, [b""])]
    with pytest.raises(NotFound):
        list(diff_paths(store.objects, old, new, [b"sub", b"gone"]))


def test_outermost_paths() -> None:
    assert outermost([b"a/b", b"a", b"a.b", b"a"]) == [b"a", b"a.b"]
    assert outermost([b"x", b""]) == [b""]
    assert outermost([]) == []


def test_packs_are_listed_counted_and_checked(store: Store, tree: Path) -> None:
    commit_of(store, tree)
    store.seal_open_pack()
    commit_of(store, tree)
    packs = list_packs(store)
    assert [pack.state for pack in packs] == ["sealed", "open"]
    listed = {row.oid: row.kind for pack in packs for row in list_pack(store, pack.name)}
    counts = count_objects(store)
    assert counts.objects == sum(kind is not Kind.MOVE for kind in listed.values())
    sizes = [os.path.getsize(os.path.join(store.path, b"packs", f"{pack.name}.pack".encode())) for pack in packs]
    assert counts.packed_bytes == sum(sizes) == sum(pack.length for pack in packs)
    for row in (row for row in list_pack(store, "1") if row.kind is not Kind.MOVE):
        assert len(store.objects.read(row.oid, row.kind)) == row.length
    reports = list(verify_packs(store, None, True))
    assert [report.number for report in reports] == [1, 2] and not any(report.problems for report in reports)
    assert find_pack(store, "00000002.pack") == 2
    index = os.path.join(store.path, b"packs", b"00000001.idx")
    os.rename(index, index + b".away")
    with Store.open(store.path, clock=lambda: 0) as other:
        (report,) = verify_packs(other, "1", False)
        assert report.problems == ["index: pack index is missing"]
    os.rename(index + b".away", index)
    for name, error in (("3", NotFound), ("x", UsageError), ("", UsageError), ("9" * 30, UsageError)):
        with pytest.raises(error):
            find_pack(store, name)


def test_statistics_of_a_store(store: Store, tree: Path) -> None:
    empty = gather(store)
    assert empty.state is None and not empty.commits
    commit = commit_of(store, tree)
    found = gather(store, commit)
    assert found.state is not None
    assert (found.state.files, found.state.directories) == (len(SIZES) + 2, 2)
    assert found.state.size == sum(SIZES) + (900_003) + 1 + ((1 << 20) - 900_003)
    assert found.compression[0] > 0


def test_a_lost_database_and_damaged_indexes_are_made_anew(tmp_path: Path, tree: Path) -> None:
    path = tmp_path / "store"
    for number in range(2_100):
        (tree / "sub" / f"n{number}").write_bytes(b"%d" % number)
    with make_store(path) as store:
        commit = commit_of(store, tree)
        store.seal_open_pack()
        roles = {pack.role: pack.name for pack in list_packs(store) if pack.state == "sealed"}
    assert set(roles) == {"bulk", "log"}
    (path / "meta.db").unlink()
    for name in roles.values():
        (path / "packs" / f"{name}.idx").write_bytes(b"nothing")
    with pytest.raises(LayerfsError):
        Store.open(os.fsencode(path), clock=lambda: 0)
    done = repair_store(os.fsencode(path), lambda: 0)
    assert any(f"index of pack {roles['bulk']}" in line for line in done)
    with Store.open(os.fsencode(path), clock=lambda: 0) as store:
        assert store.objects.contains(commit)
        assert verify_store(store, True).clean and not store.notes
    assert len(repair_store(os.fsencode(path), lambda: 0)) == 1


def test_a_damaged_pack_is_set_aside_and_what_is_whole_is_saved(tmp_path: Path, tree: Path) -> None:
    path = tmp_path / "store"
    for number in range(2_100):
        (tree / "sub" / f"n{number}").write_bytes(b"%d" % number)
    with make_store(path) as store:
        commit_of(store, tree)
        bulk = next(pack.name for pack in list_packs(store) if pack.role == "bulk")
    pack = path / "packs" / f"{bulk}.pack"
    whole = pack.read_bytes()
    pack.write_bytes(whole[:200] + b"????" + whole[204:])
    (path / "packs" / f"{bulk}.idx").unlink()
    assert any("in quarantine" in line for line in repair_store(os.fsencode(path), lambda: 0))
    assert (path / "quarantine" / f"{bulk}.pack").exists() and not pack.exists()
    with open_store(path) as store:
        assert not [problem for problem in verify_store(store).problems if problem.pack is not None]


@pytest.mark.parametrize("size", [5, ONE_PIECE_LIMIT + 5])
def test_no_file_grows_beyond_what_a_file_may_have(store: Store, size: int) -> None:
    with store.batch() as batch:
        content = put_stream(batch, iter([b"x" * size]))
        with store.lane() as lane:
            lane.apply(batch, ())
    word, room = to_hex(ObjectId(content.ref)), MAX_FILE_BYTES - size
    for zeros in (room + 1, 10**20):
        with pytest.raises(UsageError, match="no file has more"):
            splice_stored(store, word, Range(1, 0), [zeros], "me", None, None)
    with pytest.raises(UsageError, match="no file has more"):
        splice_stored(store, word, Range(1, 0), [room, b"x"], "me", None, None)
    whole = splice_stored(store, word, Range(1, 1), [room, b"x"], "me", None, None)
    assert whole.content.size == MAX_FILE_BYTES

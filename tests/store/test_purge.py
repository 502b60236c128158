"""Purging: a path or a commit leaves all of history, its bytes leave the disk, and everything else stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from storekit import HEADS, assert_clean, files_of, make_store, open_store, publish, write_file

from layerfs.durable.metadb import CachedLayer
from layerfs.errors import NotFound, Refused
from layerfs.ids import CommitId
from layerfs.objects.commits import read_commit
from layerfs.objects.content import read_content
from layerfs.objects.entry import EntryKind
from layerfs.objects.environment import read_root, walk
from layerfs.objects.moves import RefSet, WorkspacePut
from layerfs.present.upkeep import present_purged
from layerfs.store.pointers import Retention
from layerfs.store.store import Store
from layerfs.store.workspacerecords import Engine, WorkspaceRecord, encode_record, find_workspace
from layerfs.upkeep.collect import CollectOptions, collect
from layerfs.upkeep.purge import Purged, PurgeRequest, purge

SECRET = os.urandom(4000)


def run_purge(store: Store, *paths: bytes, **request: object) -> Purged:
    options = CollectOptions(Retention(time.time_ns(), 90, 90))
    return purge(store, PurgeRequest(paths, **request), options, "t")  # type: ignore[arg-type]


def build(place: Path) -> None:
    with make_store(place) as store:
        write_file(store, "a", b"kept", b"kept" * 100)
        write_file(store, "a", b"dir/secret", SECRET)
        write_file(store, "a", b"dir/other", b"other" * 300)
        publish(store, "a")
        write_file(store, "a", b"later", b"later")
        publish(store, "a")
        write_file(store, "b", b"clean", b"clean")
        with store.lane() as lane:
            head = lane.refs.need_head("a")
            lane.apply(None, [RefSet(HEADS + "dead", None, head, "fork")], "t")
            lane.apply(None, [RefSet(HEADS + "dead", head, None, "delete")], "t")


def holds(place: Path, secret: bytes) -> bool:
    """Whether a piece of incompressible bytes is in any file of the store."""
    return any(secret[100:200] in path.read_bytes() for path in place.rglob("*") if path.is_file())


def test_a_path_leaves_history_and_disk(tmp_path: Path) -> None:
    place = tmp_path / "s"
    build(place)
    assert holds(place, SECRET)
    with open_store(place) as store:
        untouched = store.refs.head("b")
        before = files_of(store, "a")
        del before[b"dir/secret"]
        done = run_purge(store, b"dir/secret")
        assert len(done.commits) == 3 and len(done.layers) == 2 and (done.contents, done.remaining) == (1, 0)
        assert files_of(store, "a") == before
        assert store.refs.head("b") == untouched
        new = dict(done.commits)
        assert not any(store.objects.contains(old) for old in new)
        assert store.refs.reflog(HEADS + "a")[0].new == store.refs.head("a")
        assert store.refs.layers()[0].commit == store.refs.head("a")
        assert store.refs.reflog(HEADS + "dead")[0].old == store.refs.head("a")
        assert_clean(store)
        store.rebuild_database()
        assert_clean(store)
        with pytest.raises(NotFound):
            run_purge(store, b"dir/secret")
    assert not holds(place, SECRET)


def cached(store: Store, name: str, commit: CommitId, parent: str | None = None) -> None:
    """Put the files of a commit into the layer cache, as a mount does; asked for just now."""
    place = Path(os.fsdecode(store.path)) / "cache" / name
    for path, data in files_of_commit(store, commit).items():
        target = place / os.fsdecode(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    root = read_commit(store.objects, commit).root
    kind = "base" if parent is None else "delta"
    store.db.put_cached_layer(CachedLayer(name, root, kind, "trusted", parent, 1000, time.time_ns(), True, "b"))


def files_of_commit(store: Store, commit: CommitId) -> dict[bytes, bytes]:
    root = read_root(store.objects, read_commit(store.objects, commit).root)
    files = walk(store.objects, root)
    return {path: read_content(store.objects, entry) for path, entry in files if entry.kind is EntryKind.FILE}


def test_cached_layers_that_hold_it_go_and_what_lies_on_them(tmp_path: Path) -> None:
    place = tmp_path / "s"
    build(place)
    with open_store(place) as store:
        held = store.refs.need_head("a")
        cached(store, "holds", held)
        cached(store, "above", store.refs.need_head("b"), "holds")
        cached(store, "apart", store.refs.need_head("b"))
        assert holds(place, SECRET)
        run_purge(store, b"dir/secret")
        assert {row.directory for row in store.db.cached_layers()} == {"apart"}
    assert os.listdir(place / "cache") == ["apart"]
    assert not holds(place, SECRET)


def test_it_is_refused_while_a_workspace_is_mounted_on_what_goes(tmp_path: Path) -> None:
    """The workspace itself stands on a state without it, which lies on the layer of one that had it."""
    place = tmp_path / "s"
    build(place)
    with open_store(place) as store:
        cached(store, "holds", store.refs.need_head("a"))
        head = store.refs.need_head("b")
        cached(store, "above", head, "holds")
        record = WorkspaceRecord("w", "b", Engine.OVERLAY, b"/m", head, head, 1, layers=("above", "holds"))
        with store.lane() as lane:
            lane.apply(None, [WorkspacePut("w", encode_record(record))], "t")
        before = store.db.state()
        with pytest.raises(Refused, match="mounted on a layer"):
            run_purge(store, b"dir/secret")
        assert store.db.state() == before


def test_damaged_packs_that_were_put_aside_are_told_of(tmp_path: Path) -> None:
    place = tmp_path / "s"
    build(place)
    (place / "quarantine").mkdir()
    (place / "quarantine" / "00000007.pack").write_bytes(SECRET)
    with open_store(place) as store:
        done = run_purge(store, b"dir/secret")
    assert done.quarantined == (os.fsencode(place / "quarantine" / "00000007.pack"),)
    assert b"quarantine" in b"".join(note.encode() for note in present_purged(done).notes)


def test_a_collection_gives_back_the_layers_of_a_deleted_branch(tmp_path: Path) -> None:
    place = tmp_path / "s"
    build(place)
    later = time.time_ns() + 3600 * 10**9
    with open_store(place) as store:
        cached(store, "dead", store.refs.need_head("b"))
        cached(store, "alive", store.refs.need_head("a"))
        with store.lane() as lane:
            lane.apply(None, [RefSet(HEADS + "b", lane.refs.need_head("b"), None, "delete")], "t")
        collect(store, CollectOptions(Retention(later, 90, 90)))
        assert {row.directory for row in store.db.cached_layers()} == {"dead", "alive"}, "it may be had back"
        done = collect(store, CollectOptions(Retention(later, 90, 0)))
        assert {row.directory for row in store.db.cached_layers()} == {"alive"} and done.freed_bytes > 1000
    assert os.listdir(place / "cache") == ["alive"]


def test_content_that_another_path_holds_is_counted(tmp_path: Path) -> None:
    place = tmp_path / "s"
    build(place)
    with open_store(place) as store:
        write_file(store, "b", b"copy", SECRET)
        done = run_purge(store, b"dir")
        assert done.remaining == 1
        assert set(files_of(store, "a")) == {b"kept", b"later"}
        assert files_of(store, "b")[b"copy"] == SECRET
        assert_clean(store)


def test_a_commit_leaves_history(tmp_path: Path) -> None:
    with make_store(tmp_path / "s") as store:
        first = write_file(store, "a", b"x", b"1")
        second = write_file(store, "a", b"x", SECRET)
        third = write_file(store, "a", b"x", b"3")
        done = run_purge(store, commits=(second,))
        head = store.refs.need_head("a")
        assert dict(done.commits) == {second: first, third: head}
        assert read_commit(store.objects, head).parents == (first,)
        assert files_of(store, "a") == {b"x": b"3"}
        assert_clean(store)
        with pytest.raises(Refused):
            run_purge(store, commits=(first,))
    assert not holds(tmp_path / "s", SECRET)


def test_refused_while_a_workspace_stands_on_it(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "dir").mkdir(parents=True)
    (source / "dir/secret").write_bytes(b"still there")
    build(tmp_path / "s")
    with open_store(tmp_path / "s") as store:
        head = store.refs.need_head("a")
        for engine in (Engine.COPY, Engine.SOURCE):
            record = WorkspaceRecord("w", "a", engine, os.fsencode(source), head, head, 1)
            with store.lane() as lane:
                lane.apply(None, [WorkspacePut("w", encode_record(record))], "t")
            with pytest.raises(Refused):
                run_purge(store, b"dir/secret")
            assert store.refs.head("a") == head
        (source / "dir/secret").unlink()
        run_purge(store, b"dir/secret")
        found = find_workspace(store.refs, "w")
        assert found is not None and found.last == found.lower == store.refs.head("a") != head
        assert_clean(store)

"""Purging: a path or a commit leaves all of history, its bytes leave the disk, and everything else stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from storekit import HEADS, assert_clean, files_of, make_store, open_store, publish, write_file

from layerfs.errors import NotFound, Refused
from layerfs.objects.commits import read_commit
from layerfs.objects.moves import RefSet, WorkspacePut
from layerfs.store.pointers import Retention
from layerfs.store.store import Store
from layerfs.store.workspacerecords import Engine, WorkspaceRecord, encode_record, find_workspace
from layerfs.upkeep.collect import CollectOptions
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

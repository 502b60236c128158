"""Copies between stores: only what is missing, verified, resumable, beside writers and collections."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from storekit import (
    DIED,
    HEADS,
    assert_clean,
    files_of,
    finish,
    in_child,
    make_store,
    open_store,
    publish,
    start_writer,
    write_file,
)

from layerfs.errors import Busy, NotFound, Refused, StoreDamaged
from layerfs.exchange import transfer as transfer_module
from layerfs.exchange.copying import clone
from layerfs.exchange.transfer import TransferOptions, transfer
from layerfs.objects.moves import RefSet
from layerfs.store.pointers import DAY_NS, Retention
from layerfs.store.store import Store
from layerfs.upkeep.collect import CollectOptions, collect


def build(place: Path) -> None:
    with make_store(place, seal_bytes=200_000) as store:
        rng = random.Random(3)
        for number in range(4):
            write_file(store, "a", b"dir/%d" % number, b"line %d\n" % number * 400)
            write_file(store, "b", b"big", rng.randbytes(150_000) + b"tail")
        publish(store, "a")
        with store.lane() as lane:
            lane.apply(None, [RefSet("refs/tags/t", None, lane.refs.need_head("b"), "tag")], "t")


def same(one: Store, two: Store) -> None:
    assert one.refs.all() == two.refs.all()
    assert one.refs.layers() == two.refs.layers()
    for name, _ in one.refs.branches():
        assert files_of(one, name) == files_of(two, name)
    assert_clean(two)


def test_a_clone_is_equal_and_a_fetch_brings_only_what_is_new(tmp_path: Path) -> None:
    build(tmp_path / "s")
    clone(os.fsencode(tmp_path / "s"), os.fsencode(tmp_path / "c"), time.time_ns)
    with open_store(tmp_path / "s") as source, open_store(tmp_path / "c") as target:
        same(source, target)
        assert transfer(source, target).objects == 0
        write_file(source, "a", b"dir/new", b"one more")
        publish(source, "a")
        done = transfer(source, target)
        assert done.objects == 6 and done.layers == 1
        assert {move.how for move in done.moves} == {"forward", "same"}
        same(source, target)
        write_file(target, "a", b"other", b"way")
        assert [move.how for move in transfer(target, source).moves if move.name == HEADS + "a"] == ["forward"]
        same(source, target)


def test_names_that_parted_are_refused_and_nothing_is_copied_for_them(tmp_path: Path) -> None:
    build(tmp_path / "s")
    clone(os.fsencode(tmp_path / "s"), os.fsencode(tmp_path / "c"), time.time_ns)
    with open_store(tmp_path / "s") as source, open_store(tmp_path / "c") as target:
        theirs = write_file(source, "a", b"x", b"source")
        mine = write_file(target, "a", b"x", b"target")
        publish(source, "b")
        publish(target, "a")
        done = transfer(source, target)
        assert {move.name for move in done.refused} == {HEADS + "a", "refs/main"}
        assert target.refs.head("a") == mine and not target.objects.contains(theirs)
        forced = transfer(source, target, TransferOptions((HEADS + "a",), force=True))
        assert [move.how for move in forced.moves] == ["forced"]
        assert target.refs.head("a") == theirs
        assert_clean(target)
        with pytest.raises(NotFound):
            transfer(source, target, TransferOptions((HEADS + "none",)))
        with pytest.raises(Refused):
            transfer(source, source)


@pytest.mark.parametrize("step", ["find", "contents", "register", "nodes", "names"])
def test_a_cut_transfer_goes_on_where_it_was(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "s")
    make_store(tmp_path / "c").close()
    monkeypatch.setattr(transfer_module, "PART_BYTES", 200_000)
    seen = 0

    def die(name: str) -> None:
        nonlocal seen
        seen += name == step
        if seen == (2 if step == "register" else 1):
            os._exit(DIED)

    def work() -> None:
        with open_store(tmp_path / "s") as source, open_store(tmp_path / "c") as target:
            transfer(source, target, step=die)

    assert in_child(work) == DIED
    with open_store(tmp_path / "s") as source, open_store(tmp_path / "c") as target:
        assert_clean(target)
        done = transfer(source, target)
        if step in ("nodes", "names"):
            assert done.stored_bytes < 100_000
        same(source, target)
        collect(target, CollectOptions(Retention(time.time_ns() + DAY_NS, 90, 0)))
        same(source, target)


def test_damage_does_not_travel(tmp_path: Path) -> None:
    build(tmp_path / "s")
    with open_store(tmp_path / "s") as source:
        source.seal_open_pack()
        located = source.objects.locate(source.refs.need_head("b"))
        path = tmp_path / "s/packs" / f"{located.pack:08d}.pack"
    data = bytearray(path.read_bytes())
    data[located.place.frame + 90] ^= 4
    path.write_bytes(data)
    make_store(tmp_path / "c").close()
    with open_store(tmp_path / "s") as source, open_store(tmp_path / "c") as target:
        with pytest.raises(StoreDamaged):
            transfer(source, target)
        assert target.refs.all() == []
        assert_clean(target)


def test_no_collection_begins_while_a_transfer_runs(tmp_path: Path) -> None:
    build(tmp_path / "s")
    make_store(tmp_path / "c").close()
    with open_store(tmp_path / "s") as source, open_store(tmp_path / "c") as target:
        with source.lane() as lane:
            gone = lane.refs.need_head("b")
            lane.apply(None, [RefSet(HEADS + "b", gone, None, "d"), RefSet("refs/tags/t", gone, None, "d")], "t")
        options = CollectOptions(Retention(time.time_ns() + DAY_NS, 90, 0), wait=0.05)

        def begin(name: str) -> None:
            if name == "find":
                with pytest.raises(Busy):
                    collect(source, options)

        transfer(source, target, step=begin)
        assert files_of(target, "a") == files_of(source, "a")


WRITER = """
import sys
from pathlib import Path
from storekit import open_store, write_file
with open_store(Path(sys.argv[1])) as store:
    for number in range(int(sys.argv[3])):
        write_file(store, sys.argv[2], b"%d" % number, b"content %d" % number * 50)
"""


def test_fetching_from_a_store_that_is_written_to(tmp_path: Path) -> None:
    build(tmp_path / "s")
    make_store(tmp_path / "c").close()
    writers = [start_writer(tmp_path / "s", WRITER, name, "25") for name in ("w1", "w2")]
    with open_store(tmp_path / "s") as source, open_store(tmp_path / "c") as target:
        while any(writer.poll() is None for writer in writers):
            assert not transfer(source, target).refused
            assert_clean(target, read_data=False)
        for writer in writers:
            finish(writer)
        transfer(source, target)
        same(source, target)

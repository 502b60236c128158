"""A full disk: an error that says so, nothing published, and the store goes on when there is room again."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from storekit import HEADS, assert_clean, files_of, in_child, make_store, open_store, write_file

from layerfs.errors import NoSpace
from layerfs.objects.kinds import Kind
from layerfs.objects.moves import RefSet
from layerfs.store.pointers import DAY_NS, Retention
from layerfs.upkeep.collect import CollectOptions, collect

MEGABYTE = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path, need_root_mounts: None) -> Iterator[Path]:
    """A file system of 3 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "none", place], check=True, timeout=20)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True, timeout=20)


def fill(place: Path, leave: int) -> None:
    """Fill the disk but for ``leave`` bytes."""
    with open(place / "ballast", "wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            pass
        stream.truncate(max(0, stream.tell() - leave))


@pytest.mark.parametrize("leave", [0, 4096, 8192, 16384, 32768, 65536, 131072])
def test_a_commit_on_a_full_disk_publishes_nothing(small_disk: Path, leave: int) -> None:
    place = small_disk / "s"
    with make_store(place) as store:
        head = write_file(store, "a", b"x", b"one")
        fill(small_disk, leave)
        for size in (MEGABYTE // 2, 12 * MEGABYTE):
            with pytest.raises(NoSpace):
                write_file(store, "a", b"big", os.urandom(size))
        assert store.refs.head("a") == head
        assert files_of(store, "a") == {b"x": b"one"}
    with open_store(place) as store:
        assert store.refs.head("a") == head
        assert_clean(store)
        (small_disk / "ballast").unlink()
        write_file(store, "a", b"y", b"two")
        store.sweep()
        assert files_of(store, "a") == {b"x": b"one", b"y": b"two"}
        assert_clean(store)
    names = [name for name in os.listdir(place / "packs") if name.startswith(".")]
    assert names == []


def test_filling_up_commit_by_commit(small_disk: Path) -> None:
    """Small commits until the disk is full, with seals on the way: each one is whole or not there."""
    place = small_disk / "s"
    done: dict[bytes, bytes] = {}
    with make_store(place, seal_bytes=300_000) as store:
        while True:
            path, content = b"%06d" % len(done), os.urandom(20_000)
            try:
                write_file(store, "a", path, content)
            except NoSpace:
                break
            done[path] = content
        assert len(done) > 20
        assert files_of(store, "a") == done
    with open_store(place) as store:
        assert files_of(store, "a") == done
        assert_clean(store)


def test_creation_on_a_full_disk_can_be_tried_again(small_disk: Path) -> None:
    fill(small_disk, 0)
    with pytest.raises(NoSpace):
        make_store(small_disk / "s")
    (small_disk / "ballast").unlink()
    with make_store(small_disk / "s") as store:
        with store.batch() as batch:
            batch.put(Kind.CHUNK, b"x")
            with store.lane() as lane:
                lane.apply(batch, [], "t")
        assert_clean(store)


@pytest.mark.parametrize("closed", [False, True])
def test_history_deleting_and_collecting_work_on_a_full_disk(small_disk: Path, closed: bool) -> None:
    """Whoever wants to make room can, in a process that starts on the full disk."""
    place = small_disk / "s"
    with make_store(place, seal_bytes=200_000) as store:
        rng = random.Random(1)
        for number in range(10):
            write_file(store, "live", b"%d" % number, b"kept %d" % number * 200)
            write_file(store, "dead", b"%d" % number, rng.randbytes(60_000))
        kept = files_of(store, "live")
        if not closed:
            fill(small_disk, 0)
    if closed:
        fill(small_disk, 0)

    def read() -> None:
        with open_store(place) as store:
            assert len(store.refs.reflog(HEADS + "dead")) == 10
            assert files_of(store, "live") == kept
            with pytest.raises(NoSpace):
                write_file(store, "live", b"big", os.urandom(MEGABYTE))

    def delete() -> None:
        with open_store(place) as store, store.lane() as lane:
            lane.apply(None, [RefSet(HEADS + "dead", lane.refs.need_head("dead"), None, "delete")], "t")

    def gather() -> None:
        with open_store(place) as store:
            done = collect(store, CollectOptions(Retention(time.time_ns() + DAY_NS, 90, 0)))
            assert done.freed_bytes > 400_000
            assert store.restore_reserve()

    for work in (read, delete, gather):
        assert in_child(work) == 0, work.__name__
    with open_store(place) as store:
        assert files_of(store, "live") == kept
        write_file(store, "live", b"new", b"there is room again")
        assert_clean(store)

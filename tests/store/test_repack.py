"""Repack: nothing changes but where things lie; killed anywhere the store is what it was or what it becomes."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from storekit import (
    DIED,
    HEADS,
    assert_clean,
    copy_store,
    files_of,
    in_child,
    make_store,
    open_store,
    start_writer,
    write_file,
)

from layerfs.errors import StoreDamaged
from layerfs.ids import ObjectId
from layerfs.objects import frames, packs
from layerfs.objects.commits import read_commit
from layerfs.objects.kinds import Kind
from layerfs.objects.moves import RefSet
from layerfs.objects.packindex import PREFIXES_START, SUFFIX_BYTES
from layerfs.store.pointers import Retention, read_pointers
from layerfs.store.store import Store
from layerfs.upkeep.collect import CollectOptions, collect
from layerfs.upkeep.repack import RepackOptions, repack
from layerfs.upkeep.verify import verify_store

SEED = int(os.environ.get("CRASH_SEED", "20250101"))
STEPS = ("seal", "order", "write", "swap", "release")


def grow(store: Store, commits: int, seed: int = 1, start: int = 0) -> None:
    """Commit edits of a few files of different kinds on two branches, a large one among them."""
    generator = random.Random(seed)
    lines = [b"line %d of many, with some words in it" % number for number in range(200)]
    for number in range(start, start + commits):
        branch = f"b{number % 2}"
        lines[generator.randrange(len(lines))] = b"changed in %d" % number
        path = generator.choice([b"src/a.py", b"src/b.py", b"doc/a.txt", b"deep/er/c.c"])
        write_file(store, branch, path, b"\n".join(lines))
        if number % 7 == 0:
            noise = random.Random(number % 3).randbytes(300_000)
            write_file(store, branch, b"large.bin", noise[: 150_000 + number] + b"x" + noise[150_000:])


def everything(store: Store) -> dict[str, object]:
    """Return all a store says: pointers but for packs, and the files of both branches."""
    pointers = read_pointers(store.db)
    return {
        "refs": pointers.refs,
        "layers": pointers.layers,
        "reflog": [row._replace(sequence=0) for row in pointers.reflog],
        "workspaces": pointers.workspaces,
        "files": {branch: files_of(store, branch) for branch in ("b0", "b1")},
    }


def test_nothing_but_the_packs_changes(tmp_path: Path) -> None:
    with make_store(tmp_path / "s") as store:
        grow(store, 40)
        before = everything(store)
        done = repack(store)
        assert done.old_packs >= 1 and done.new_packs == 1
        assert done.after_bytes < done.before_bytes
        assert everything(store) == before
        assert_clean(store)
        assert repack(store) == (0, 0, 0, 0, 0), "nothing is left to repack"
    with open_store(tmp_path / "s") as store:
        assert everything(store) == before
        store.rebuild_database()
        assert everything(store) == before
        assert_clean(store)


def test_repacks_and_commits_in_turn(tmp_path: Path) -> None:
    with make_store(tmp_path / "s", seal_bytes=40_000) as store:
        for round_ in range(12):
            grow(store, 5, seed=round_, start=round_ * 5)
            before = everything(store)
            repack(store, RepackOptions(everything=round_ % 5 == 4))
            assert everything(store) == before
        assert len(store.db.packs()) < 12, "small packs are put together"
        assert_clean(store)
        store.rebuild_database()
        assert everything(store) == before


def test_what_no_name_reaches_stays(tmp_path: Path) -> None:
    with make_store(tmp_path / "s") as store:
        grow(store, 4)
        with store.batch() as batch:
            lost = batch.put(Kind.CHUNK, b"nobody names this, but it is there " * 10)
            with store.lane() as lane:
                lane.apply(batch, ())
        repack(store)
        assert store.objects.read(lost, Kind.CHUNK).startswith(b"nobody")
        assert_clean(store)


def test_content_that_does_not_compress_is_stored_as_it_is(tmp_path: Path) -> None:
    noise = random.Random(5).randbytes(100_000)
    with make_store(tmp_path / "s") as store:
        write_file(store, "b0", b"noise", noise)
        write_file(store, "b1", b"text", b"text " * 20_000)
        repack(store)
        (number,) = [row.number for row in store.db.packs() if row.role == packs.BULK]
        descriptor = store.objects.pack_descriptor(number)
        found = list(packs.scan_frames(descriptor, packs.HEADER_BYTES, os.fstat(descriptor).st_size))
        assert {scanned.head.type for scanned in found} == {frames.DENSE}
        contents = [scanned.head for scanned in found if scanned.head.flags == Kind.CHUNK]
        assert sorted(head.codec for head in contents) == [frames.RAW, frames.ZSTD]
        assert files_of(store, "b0") == {b"noise": noise}


def collect_all(store: Store) -> None:
    """Collect as long after the last change as it takes for everything to expire."""
    collect(store, CollectOptions(Retention(time.time_ns() + 10**18, 0, 0)))


def test_an_object_that_fills_a_frame_is_repacked(tmp_path: Path) -> None:
    """With the lengths that dense frames hold there is no room for it."""
    payload = b"a" * frames.MAX_RAW
    with make_store(tmp_path / "s") as store:
        grow(store, 4)
        with store.batch() as batch:
            large = batch.put(Kind.CHUNK, payload)
            with store.lane() as lane:
                lane.apply(batch, ())
        repack(store)
        assert store.objects.read(large, Kind.CHUNK) == payload
        assert_clean(store)


@pytest.mark.parametrize("row", range(0, 60, 7))
@pytest.mark.parametrize("drop", [repack, collect_all])
def test_nothing_is_dropped_because_an_index_lies(
    tmp_path: Path, drop: Callable[[Store], object], row: int
) -> None:
    """One flipped bit hides an object, or says that it lies elsewhere; the pack still has it."""
    with make_store(tmp_path / "s") as store:
        grow(store, 20)
        store.seal_open_pack()
        store.objects.refresh()
        before = everything(store)
        number = next(
            number for number in store.objects.pack_numbers() if store.objects.index(number).count > 60
        )
        count = store.objects.index(number).count
    path = tmp_path / "s" / "packs" / packs.index_file(number).decode()
    whole = path.read_bytes()
    for at in (PREFIXES_START + SUFFIX_BYTES * row + 9, PREFIXES_START + SUFFIX_BYTES * count + 7 * row):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with open_store(tmp_path / "s") as store:
            with pytest.raises(StoreDamaged, match="index of pack") as raised:
                drop(store)
            assert "--repair" in raised.value.hint
    path.write_bytes(whole)
    with open_store(tmp_path / "s") as store:
        assert everything(store) == before
        assert_clean(store)


def test_a_reader_of_the_old_packs_goes_on(tmp_path: Path) -> None:
    with make_store(tmp_path / "s") as store:
        grow(store, 20)
        with open_store(tmp_path / "s") as reader, open_store(tmp_path / "s") as late:
            before = everything(store)
            assert everything(reader) == before
            head = late.refs.head("b0")
            repack(store)
            assert everything(reader) == before
            assert head is not None and read_commit(late.objects, head).parents
            assert everything(late) == before


def test_a_batch_begun_before_is_committed_after(tmp_path: Path) -> None:
    """What it builds on and what it is like moved meanwhile."""
    with make_store(tmp_path / "s") as store, open_store(tmp_path / "s") as other:
        grow(store, 10)
        head = other.refs.need_head("b0")
        old = files_of(other, "b0")
        with other.batch() as batch:
            like = ObjectId(read_commit(other.objects, head).root)
            oid = batch.put(Kind.CHUNK, b"begun before " * 30, like=like)
            batch.prepare()
            repack(store)
            with other.lane() as lane:
                lane.apply(batch, ())
        assert other.objects.read(oid, Kind.CHUNK) == b"begun before " * 30
        assert files_of(other, "b0") == old
        assert_clean(other)


@pytest.mark.parametrize("name", STEPS)
def test_killed_before_each_step(tmp_path: Path, name: str) -> None:
    with make_store(tmp_path / "s") as store:
        grow(store, 16)
        before = everything(store)

    def work() -> None:
        def die(step: str) -> None:
            if step == name:
                os._exit(DIED)

        with open_store(tmp_path / "s") as store:
            repack(store, step=die)

    assert in_child(work) == DIED
    with open_store(tmp_path / "s") as store:
        assert everything(store) == before
        assert_clean(store)
        grow(store, 3, seed=9, start=100)
        after = everything(store)
        repack(store)
        assert everything(store) == after
        assert_clean(store)
        left = [entry for entry in os.listdir(tmp_path / "s" / "packs") if entry.startswith(".")]
        assert not left, "leftovers of the dead are swept"


CHILD = """
import os, sys, time
from layerfs.upkeep.repack import repack
from layerfs.store.store import Store
with Store.open(os.fsencode(sys.argv[1]), clock=time.time_ns) as store:
    print("ready", flush=True)
    repack(store)
    print("done", flush=True)
"""


@pytest.mark.parametrize("points", [12, pytest.param(80, marks=pytest.mark.full)])
def test_killed_at_random_moments(tmp_path: Path, points: int) -> None:
    generator = random.Random(SEED)
    print(f"seed {SEED}")
    with make_store(tmp_path / "s", seal_bytes=100_000) as store:
        grow(store, 40)
        before = everything(store)
    early = 0
    for point in range(points):
        target = tmp_path / f"t{point}"
        copy_store(tmp_path / "s", target)
        child = start_writer(target, CHILD)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(generator.uniform(0, 0.25))
        child.send_signal(signal.SIGKILL)
        early += b"done" not in child.communicate(timeout=60)[0]
        with open_store(target) as store:
            assert everything(store) == before
            assert_clean(store)
            store.rebuild_database()
            assert everything(store) == before
    assert early, "no kill came before the end"


@pytest.mark.parametrize("first", ["repack", "collect"])
def test_with_a_collection(tmp_path: Path, first: str) -> None:
    """A branch goes, in dense frames or in deltas: what remains reads, what went gives its room back."""
    options = CollectOptions(Retention(time.time_ns() + 10**12, 0, 0), wait=5.0)
    with make_store(tmp_path / "s") as store:
        grow(store, 30)
        kept = files_of(store, "b1")
        head = store.refs.need_head("b0")
        if first == "repack":
            repack(store)
        with store.lane() as lane:
            lane.apply(None, [RefSet(HEADS + "b0", head, None, "delete")])
        collect(store, options)
        assert files_of(store, "b1") == kept
        assert not store.objects.contains(head)
        assert_clean(store)
        repack(store, RepackOptions(everything=True))
        assert files_of(store, "b1") == kept
        assert_clean(store)
        store.rebuild_database()
        assert files_of(store, "b1") == kept


def test_beside_writers(tmp_path: Path) -> None:
    """Writers commit to their branches all the time; every commit they were told of is there."""
    with make_store(tmp_path / "s", seal_bytes=60_000) as store:
        write_file(store, "b0", b"first", b"0")
    stop = threading.Event()
    written: dict[str, int] = {"b1": 0, "b2": 0}
    failures: list[BaseException] = []

    def writer(branch: str) -> None:
        try:
            with open_store(tmp_path / "s", seal_bytes=60_000) as store:
                while not stop.is_set():
                    number = written[branch] + 1
                    write_file(store, branch, b"f%d" % (number % 20), b"content %d\n" % number * 50)
                    written[branch] = number
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=writer, args=(branch,)) for branch in written]
    for thread in threads:
        thread.start()
    with open_store(tmp_path / "s", seal_bytes=60_000) as store:
        for _ in range(8):
            repack(store)
            time.sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    with open_store(tmp_path / "s") as store:
        report = verify_store(store, read_data=True)
        assert report.clean, report.problems
        for branch, number in written.items():
            assert number > 3
            assert files_of(store, branch)[b"f%d" % (number % 20)] == b"content %d\n" % number * 50
            assert len(store.refs.reflog(HEADS + branch)) == number

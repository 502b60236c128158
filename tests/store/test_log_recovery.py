"""After a crash, a power loss or the loss of the database a store opens at the last acknowledged state, by itself."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from storekit import (
    DIED,
    FaultyFiles,
    assert_clean,
    copy_store,
    files_of,
    in_child,
    make_store,
    open_store,
    until_clean,
    write_file,
)

from layerfs.errors import LayerfsError, StoreDamaged
from layerfs.objects.kinds import Kind, object_id

DATABASE = ("meta.db", "meta.db-wal", "meta.db-shm")


def drop_database(place: Path) -> None:
    for name in DATABASE:
        (place / name).unlink(missing_ok=True)


def save_database(place: Path, kept: Path) -> None:
    kept.mkdir()
    for name in DATABASE:
        if (place / name).exists():
            shutil.copy(place / name, kept / name)


def restore_database(place: Path, kept: Path) -> None:
    drop_database(place)
    for name in os.listdir(kept):
        if not name.endswith("-shm"):
            shutil.copy(kept / name, place / name)


def test_a_torn_tail_at_every_byte_opens_at_the_last_whole_batch(tmp_path: Path) -> None:
    """With the database as it was before the batch (a crash between the sync and the transaction)."""
    place = tmp_path / "s"
    with make_store(place) as store:
        first = write_file(store, "a", b"x", b"one")
    save_database(place, tmp_path / "kept")
    pack = place / "packs" / "00000001.pack"
    before = pack.stat().st_size
    with open_store(place) as store:
        second = write_file(store, "a", b"y", b"two")
    whole = pack.read_bytes()
    for length in range(before, len(whole) + 1):
        pack.write_bytes(whole[:length])
        restore_database(place, tmp_path / "kept")
        with open_store(place) as store:
            assert store.refs.head("a") == (second if length == len(whole) else first)
            assert pack.stat().st_size == (before if length < len(whole) else length)
            assert bool(store.notes) == (before < length < len(whole))
            if length % 50 == 0 or length == len(whole):
                assert_clean(store)
                write_file(store, "a", b"z", b"goes on")
                assert files_of(store, "a")[b"z"] == b"goes on"


def test_zeros_and_noise_after_the_last_batch_are_cut(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with make_store(place) as store:
        head = write_file(store, "a", b"x", b"one")
    pack = place / "packs" / "00000001.pack"
    whole = pack.read_bytes()
    for tail in (bytes(5000), os.urandom(5000), b"LFr1" * 100, whole[64:200]):
        pack.write_bytes(whole + tail)
        with open_store(place) as store:
            assert store.refs.head("a") == head
            assert pack.read_bytes() == whole
            assert_clean(store)


def test_a_lost_database_is_rebuilt_from_the_packs(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with make_store(place) as store:
        for number in range(5):
            write_file(store, f"b{number}", b"x", b"%d" % number)
        with store.batch() as batch:
            for number in range(2500):
                batch.put(Kind.CHUNK, b"bulk %d" % number)
            with store.lane() as lane:
                lane.apply(batch, [], "t")
        store.seal_open_pack()
        write_file(store, "a", b"y", b"after the seal")
        branches, reflog = store.refs.branches(), store.refs.reflog()
    drop_database(place)
    with pytest.raises(StoreDamaged, match="database"):
        open_store(place)
    with open_store(place, attach=False) as store:
        assert store.rebuild_database() == 7
        assert store.refs.branches() == branches
        assert store.refs.reflog() == reflog
        assert store.objects.contains(object_id(Kind.CHUNK, b"bulk 7"))
        assert_clean(store)
        write_file(store, "a", b"z", b"goes on")
    with open_store(place) as store:
        assert_clean(store)


@pytest.mark.parametrize("seal_bytes", [32 << 20, 1500])
def test_an_older_database_beside_newer_packs_catches_up(tmp_path: Path, seal_bytes: int) -> None:
    """Power loss with ``synchronous=NORMAL``: the database forgot moves, over any number of sealed packs."""
    place = tmp_path / "s"
    with make_store(place, seal_bytes=seal_bytes) as store:
        write_file(store, "a", b"x", b"one")
    save_database(place, tmp_path / "kept")
    with open_store(place, seal_bytes=seal_bytes) as store:
        for number in range(12):
            write_file(store, "a", b"y%d" % number, b"%d" % number)
        head, reflog = store.refs.head("a"), store.refs.reflog()
    assert (len(os.listdir(place / "packs")) > 5) == (seal_bytes == 1500)
    restore_database(place, tmp_path / "kept")
    with open_store(place, seal_bytes=seal_bytes) as store:
        assert store.refs.head("a") == head
        assert store.refs.reflog() == reflog
        assert_clean(store)
        write_file(store, "a", b"z", b"goes on")


def test_damage_before_acknowledged_moves_is_never_cut_off(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with make_store(place) as store:
        write_file(store, "a", b"x", b"one")
    save_database(place, tmp_path / "kept")
    pack = place / "packs" / "00000001.pack"
    damaged_at = pack.stat().st_size + 30
    with open_store(place) as store:
        for number in range(3):
            write_file(store, "a", b"y%d" % number, b"%d" % number)
    content = bytearray(pack.read_bytes())
    content[damaged_at] ^= 1
    pack.write_bytes(content)
    restore_database(place, tmp_path / "kept")
    with pytest.raises(StoreDamaged, match="damaged at offset"):
        open_store(place)
    assert pack.read_bytes() == bytes(content)


def test_a_pack_shorter_than_acknowledged_is_damage(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with make_store(place) as store:
        write_file(store, "a", b"x", b"one")
    pack = place / "packs" / "00000001.pack"
    pack.write_bytes(pack.read_bytes()[:-1])
    with pytest.raises(StoreDamaged, match="acknowledged"):
        open_store(place)


def check_story(place: Path, done: list[tuple[str, bytes]], more: bool) -> None:
    """What was acknowledged is there; at most one more step is."""
    with open_store(place, seal_bytes=700) as store:
        have = [("a", path) for path in sorted(files_of(store, "a"))]
        if store.objects.contains(object_id(Kind.CHUNK, b"bulk 5")):
            have.append(("bulk", b""))
        have += [("b", path) for path in files_of(store, "b")]
        assert have[: len(done)] == done
        assert len(have) <= len(done) + more
        assert_clean(store)
        write_file(store, "c", b"next", b"works")
        with store.lane():
            pass
        store.sweep()
        leftovers = [name for name in os.listdir(place / "packs") if name.startswith(".")]
        assert leftovers == []
        assert_clean(store)
    drop_database(place)
    with open_store(place, attach=False, seal_bytes=700) as store:
        store.rebuild_database()
        assert files_of(store, "c") == {b"next": b"works"}
        assert_clean(store)


def run_story(place: Path, files: FaultyFiles, journal: Path) -> None:
    """Do some of everything with small packs, noting each acknowledged step in ``journal``."""
    with open(journal, "wb", buffering=0) as done, open_store(place, files=files, seal_bytes=700) as store:
        for number in range(4):
            write_file(store, "a", b"f%d" % number, b"%d" % number)
            done.write(b"a f%d\n" % number)
        with store.batch(threads=1) as batch:
            for number in range(2100):
                batch.put(Kind.CHUNK, b"bulk %d" % number)
            batch.prepare()
            with store.lane() as lane:
                lane.apply(batch, [], "t")
        done.write(b"bulk \n")
        write_file(store, "b", b"last", b"last")
        done.write(b"b last\n")


@pytest.mark.parametrize("kind", ["error", "crash", "power"])
def test_every_durable_call_may_be_the_last(tmp_path: Path, kind: str) -> None:
    """Fail, die before, or lose power before the n-th write, sync or rename, for every n of a story with seals."""
    make_store(tmp_path / "empty").close()
    journal = tmp_path / "journal"

    def run(point: int) -> bool:
        place = tmp_path / f"{kind}{point}"
        copy_store(tmp_path / "empty", place)
        files = FaultyFiles(point, crash=kind != "error", power=kind == "power")
        stopped = False
        if kind == "error":
            try:
                run_story(place, files, journal)
            except LayerfsError:
                stopped = True
            finally:
                files.done()
            clean = files.calls < point
        else:
            code = in_child(lambda: run_story(place, files, journal))
            assert code in (0, DIED)
            clean = not (stopped := code == DIED)
        done = acknowledged(journal)
        check_story(place, done, more=stopped)
        shutil.rmtree(place)
        return clean

    points = until_clean(run)
    assert points > 35


def acknowledged(journal: Path) -> list[tuple[str, bytes]]:
    """Return the steps a story noted."""
    rows = [line.split(b" ") for line in journal.read_bytes().splitlines()]
    return [(branch.decode("ascii"), path) for branch, path in rows]


def test_flipped_bytes_are_named_with_commit_and_path(tmp_path: Path) -> None:
    """Any byte of any pack or index: reading or fsck says so, and nothing wrong is ever returned."""
    from layerfs.upkeep.verify import verify_store

    place = tmp_path / "s"
    contents = {b"d/%d" % number: os.urandom(200) + b"%d" % number for number in range(6)}
    with make_store(place) as store:
        for path, content in contents.items():
            write_file(store, "a", path, content)
        store.seal_open_pack()
        write_file(store, "a", b"open", b"in the open pack")
        contents[b"open"] = b"in the open pack"
    chance = random.Random(7)
    for name in sorted(os.listdir(place / "packs")):
        target = place / "packs" / name
        good = target.read_bytes()
        for _ in range(40):
            at = chance.randrange(len(good))
            bad = bytearray(good)
            bad[at] ^= 1 << chance.randrange(8)
            target.write_bytes(bad)
            with open_store(place) as store:
                report = verify_store(store, read_data=True)
                assert not report.clean, f"{name} at {at}"
                try:
                    assert files_of(store, "a") == contents
                except StoreDamaged:
                    reached = [problem for problem in report.problems if problem.oid is not None]
                    assert reached and all(problem.commit for problem in reached), report.problems
        target.write_bytes(good)
    with open_store(place) as store:
        assert_clean(store)
        assert files_of(store, "a") == contents

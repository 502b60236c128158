"""Collection: what names reach stays, the rest goes, whoever writes, reads or dies meanwhile."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from storekit import (
    DIED,
    HEADS,
    FaultyFiles,
    assert_clean,
    copy_store,
    files_of,
    in_child,
    make_store,
    open_store,
    write_file,
)

from layerfs.durable.metadb import MetaDb
from layerfs.errors import Busy, MissingObject, NoSpace, StoreDamaged
from layerfs.objects.kinds import Kind
from layerfs.objects.moves import RefSet
from layerfs.store.pointers import DAY_NS, Retention
from layerfs.store.refs import branch_ref
from layerfs.store.store import Store
from layerfs.upkeep.collect import Collected, CollectOptions, collect

STEPS = ("seal", "mark", "condemn", "mark again", "copy", "swap", "release")


def run_gc(store: Store, step: Callable[[str], None] = lambda name: None, **options: object) -> Collected:
    """Collect with nothing kept of deleted branches."""
    retention = Retention(time.time_ns() + DAY_NS, 90, 0)
    return collect(store, CollectOptions(retention, **options), "t", step=step)  # type: ignore[arg-type]


def drop_branch(store: Store, name: str) -> None:
    with store.lane() as lane:
        lane.apply(None, [RefSet(branch_ref(name), lane.refs.need_head(name), None, "delete")], "t")


def pack_bytes(place: Path) -> int:
    return sum(path.stat().st_size for path in (place / "packs").iterdir())


def garbage(number: int) -> bytes:
    return random.Random(number).randbytes(30_000)


def text(version: int) -> bytes:
    lines = [b"line %d of a file that changes little" % number for number in range(400)]
    lines[version % 400] = b"changed in %d" % version
    return b"\n".join(lines)


def build(place: Path) -> dict[bytes, bytes]:
    """A store with a live branch, part of whose frames also hold what only a dead branch had."""
    with make_store(place, seal_bytes=120_000) as store:
        for number in range(6):
            write_file(store, "live", b"dir/%d" % number, b"kept %d" % number * 500)
            write_file(store, "live", b"text", text(number))
            write_file(store, "dead", b"x/%d" % number, garbage(number))
            write_file(store, "dead", b"text", text(100 + number))
        drop_branch(store, "dead")
        return files_of(store, "live")


def test_dead_branches_give_their_room_back(tmp_path: Path) -> None:
    place = tmp_path / "s"
    kept = build(place)
    before = pack_bytes(place)
    with open_store(place) as store:
        planned = run_gc(store, dry_run=True)
        assert pack_bytes(place) == before and planned.dropped_objects > 0
        done = run_gc(store)
        assert done.freed_bytes > 150_000 and pack_bytes(place) < before - 150_000
        assert files_of(store, "live") == kept
        assert_clean(store)
        assert store.refs.reflog(HEADS + "dead") == []
        assert run_gc(store) == Collected(kept_objects=done.kept_objects)
    with open_store(place) as store:
        pointers = store.refs.all(), store.refs.reflog(), store.db.packs(), store.db.state()
        store.rebuild_database()
        assert (store.refs.all(), store.refs.reflog(), store.db.packs(), store.db.state()) == pointers
        assert_clean(store)
        write_file(store, "live", b"more", b"after the rebuild")
        assert files_of(store, "live") == {**kept, b"more": b"after the rebuild"}


def test_a_thousand_dead_branches(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with make_store(place) as store:
        head = write_file(store, "live", b"a", b"a")
        run_gc(store)
        empty = pack_bytes(place)
        for number in range(20):
            write_file(store, f"h{number}", b"f", garbage(number))
        with store.lane() as lane:
            names = [(f"d{number}", head) for number in range(1000)]
            lane.apply(None, [RefSet(branch_ref(name), None, commit, "fork") for name, commit in names], "t")
            gone = [RefSet(branch_ref(name), commit, None, "delete") for name, commit in lane.refs.branches()]
            lane.apply(None, [op for op in gone if op.name != HEADS + "live"], "t")
        assert pack_bytes(place) > empty + 500_000
        run_gc(store)
        assert pack_bytes(place) < empty + 20_000
        assert [name for name, _ in store.refs.branches()] == ["live"]
        assert_clean(store)


def test_deleted_branches_can_be_had_back_for_a_while(tmp_path: Path) -> None:
    now = time.time_ns()
    with make_store(tmp_path / "s") as store:
        first = write_file(store, "a", b"x", garbage(1))
        drop_branch(store, "a")
        keep = Retention(now + 13 * DAY_NS, 90, 14)
        collect(store, CollectOptions(keep))
        assert store.refs.reflog(HEADS + "a")[0].old == first
        with store.lane() as lane:
            lane.apply(None, [RefSet(branch_ref("back"), None, first, "fork")], "t")
        assert files_of(store, "back") == {b"x": garbage(1)}
        drop_branch(store, "back")
        collect(store, CollectOptions(keep._replace(now_ns=now + 15 * DAY_NS)))
        assert store.refs.reflog() == [] and not store.objects.contains(first)
        assert_clean(store)


def test_the_reflog_of_a_living_branch_expires_later(tmp_path: Path) -> None:
    with make_store(tmp_path / "s") as store:
        for number in range(3):
            write_file(store, "a", b"x", garbage(number))
        with store.lane() as lane:
            head = lane.refs.need_head("a")
            old = store.refs.reflog(HEADS + "a")[1].new
            assert old is not None
            lane.apply(None, [RefSet(branch_ref("a"), head, old, "reset")], "t")
        collect(store, CollectOptions(Retention(time.time_ns() + 80 * DAY_NS, 90, 0)))
        assert store.objects.contains(head)
        collect(store, CollectOptions(Retention(time.time_ns() + 100 * DAY_NS, 90, 0)))
        assert not store.objects.contains(head)
        assert files_of(store, "a") == {b"x": garbage(1)}
        assert_clean(store)


@pytest.mark.parametrize("step", STEPS)
def test_dying_at_a_step_and_committing_the_same_bytes_again(tmp_path: Path, step: str) -> None:
    """C5: an interrupted collection makes no later commit rely on what it was about to drop."""
    place = tmp_path / "s"
    kept = build(place)

    def die(name: str) -> None:
        if name == step:
            os._exit(DIED)

    def work() -> None:
        with open_store(place) as store:
            run_gc(store, die)

    assert in_child(work) == DIED
    with open_store(place) as store:
        assert files_of(store, "live") == kept
        for number in range(6):
            write_file(store, "again", b"x/%d" % number, garbage(number))
        assert_clean(store)
        run_gc(store)
        assert_clean(store)
        assert files_of(store, "again") == {b"x/%d" % number: garbage(number) for number in range(6)}
        assert files_of(store, "live") == kept
    names = {path.name for path in (place / "packs").iterdir()}
    assert not [name for name in names if name.startswith(".")]
    with open_store(place) as store:
        known = {row.number for row in store.db.packs()} | {store.db.state().open_pack}
    assert {int(name[:8]) for name in names} == known


@pytest.mark.parametrize("power", [False, True])
def test_dying_at_every_durable_call(tmp_path: Path, power: bool, request: pytest.FixtureRequest) -> None:
    place = tmp_path / "s"
    kept = build(place)
    full = request.config.getoption("--full")
    point = 0
    while True:
        point += 1 if full else 2
        work_place = tmp_path / f"w{point}"
        copy_store(place, work_place)

        def work(work_place: Path = work_place, point: int = point) -> None:
            files = FaultyFiles(point, crash=True, power=power)
            with open_store(work_place, files=files) as store:
                run_gc(store)

        code = in_child(work)
        with open_store(work_place) as store:
            assert files_of(store, "live") == kept
            write_file(store, "again", b"x", garbage(2))
            assert_clean(store)
            store.rebuild_database()
            assert files_of(store, "again") == {b"x": garbage(2)}
            assert_clean(store)
        if code == 0:
            break
        assert code == DIED
    assert point > 10


@pytest.mark.parametrize("step", STEPS)
def test_commits_at_every_step(tmp_path: Path, step: str) -> None:
    """Somebody stores what is about to be dropped, builds on it, and takes a dead commit back, between two steps."""
    place = tmp_path / "s"
    kept = build(place)
    with open_store(place) as store:
        dead = next(row.old for row in store.refs.reflog(HEADS + "dead") if row.old is not None)

        def meddle(name: str) -> None:
            if name != step or step == "swap":
                return
            with open_store(place) as other:
                for number in range(6):
                    write_file(other, "again", b"y/%d" % number, garbage(number))
                if other.objects.contains(dead):
                    with other.lane() as lane:
                        lane.apply(None, [RefSet(branch_ref("saved"), None, dead, "fork")], "t")
                drop_branch(other, "live")
                with other.lane() as lane:
                    head = other.refs.reflog(HEADS + "live")[0].old
                    lane.apply(None, [RefSet(branch_ref("live"), None, head, "fork")], "t")

        run_gc(store, meddle)
        assert_clean(store)
        assert files_of(store, "live") == kept
        if step != "swap":
            assert files_of(store, "again") == {b"y/%d" % number: garbage(number) for number in range(6)}
        if store.refs.head("saved") is not None:
            assert files_of(store, "saved")[b"x/5"] == garbage(5)
        store.rebuild_database()
        assert_clean(store)


def test_a_batch_begun_before_is_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "s"
    build(place)
    with open_store(place) as store, open_store(place) as other:
        with other.batch() as batch:
            batch.put(Kind.CHUNK, garbage(3))
            assert batch.stats.new_objects == 0
            with pytest.raises(Busy):
                run_gc(store, wait=0.05)
        assert_clean(store)
        run_gc(store, wait=0.05)
        assert_clean(store)


def test_a_batch_begun_meanwhile_does_not_rely_on_what_goes(tmp_path: Path) -> None:
    place = tmp_path / "s"
    build(place)
    with open_store(place) as store, open_store(place) as other:
        batches = []

        def begin(name: str) -> None:
            if name == "copy":
                batch = other.batch()
                batch.put(Kind.CHUNK, garbage(3))
                assert batch.stats.new_objects == 1
                batches.append(batch)

        run_gc(store, begin)
        (batch,) = batches
        with other.lane() as lane:
            lane.apply(batch, [], "t")
        batch.close()
        assert other.objects.find(batch.put(Kind.CHUNK, garbage(3))) == (Kind.CHUNK, garbage(3))


def test_building_on_a_state_that_was_collected_is_refused(tmp_path: Path) -> None:
    from layerfs.objects.commits import Commit, put_commit, read_commit

    place = tmp_path / "s"
    build(place)
    with open_store(place) as store, open_store(place) as other:
        dead = next(row.old for row in store.refs.reflog(HEADS + "dead") if row.old is not None)
        root = read_commit(other.objects, dead).root
        batches = []

        def begin(name: str) -> None:
            if name == "copy":
                batch = other.batch()
                batches.append((batch, put_commit(batch, Commit(root, (), 0, 0, "t", "on the dead"))))

        run_gc(store, begin)
        ((batch, commit),) = batches
        with other.lane() as lane, pytest.raises(Busy):
            lane.apply(batch, [RefSet(branch_ref("n"), None, commit, "t")], "t")
        batch.close()
        with other.lane() as lane, pytest.raises(MissingObject):
            lane.apply(None, [RefSet(branch_ref("n"), None, dead, "t")], "t")
        assert_clean(store)


def test_whoever_had_the_store_open_does_not_rely_on_what_went(tmp_path: Path) -> None:
    place = tmp_path / "s"
    kept = build(place)
    with open_store(place) as long, open_store(place) as store:
        assert files_of(long, "live") == kept
        dead = next(row.old for row in long.refs.reflog(HEADS + "dead") if row.new is None)
        assert dead is not None and long.objects.contains(dead)
        run_gc(store)
        write_file(long, "live", b"x/0", garbage(0))
        write_file(long, "live", b"text", text(100))
        with long.lane() as lane, pytest.raises(MissingObject):
            lane.apply(None, [RefSet(branch_ref("n"), None, dead, "t")], "t")
        assert_clean(store)
        assert files_of(store, "live") == kept | {b"x/0": garbage(0), b"text": text(100)}


def test_readers_go_on_over_dropped_packs(tmp_path: Path) -> None:
    place = tmp_path / "s"
    kept = build(place)
    with open_store(place) as store, open_store(place) as reader, open_store(place) as late:
        assert files_of(reader, "live") == kept
        run_gc(store)
        assert files_of(reader, "live") == kept
        assert files_of(late, "live") == kept
        assert late.objects.pack_numbers() == store.objects.pack_numbers()


def test_nothing_is_dropped_from_a_store_that_lacks_something(tmp_path: Path) -> None:
    place = tmp_path / "s"
    kept = build(place)
    with open_store(place) as store:
        located = store.objects.locate(store.refs.need_head("live"))
        path = place / "packs" / f"{located.pack:08d}.pack"
    data = bytearray(path.read_bytes())
    data[located.place.frame + 70] ^= 1
    path.write_bytes(data)
    before = sorted(os.listdir(place / "packs"))
    with open_store(place) as store:
        with pytest.raises(StoreDamaged):
            run_gc(store)
        assert set(before) <= set(os.listdir(place / "packs"))
        data[located.place.frame + 70] ^= 1
        path.write_bytes(data)
    with open_store(place) as store:
        run_gc(store)
        assert files_of(store, "live") == kept


def test_small_packs_are_put_together(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with make_store(place) as store:
        for number in range(12):
            write_file(store, "a", b"%d" % number, b"%d" % number * 300)
            store.seal_open_pack()
        run_gc(store)
        assert len(store.db.packs()) <= 2
        assert len(files_of(store, "a")) == 12
        assert_clean(store)


def test_one_collection_at_a_time(tmp_path: Path) -> None:
    place = tmp_path / "s"
    build(place)
    with open_store(place) as store, open_store(place) as other:

        def second(name: str) -> None:
            with pytest.raises(Busy):
                run_gc(other)

        run_gc(store, second)


def test_every_durable_call_failing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """An error, nothing dropped that is needed, and the next collection does the work."""
    place = tmp_path / "s"
    kept = build(place)
    point = 0
    failed = True
    while failed:
        point += 1 if request.config.getoption("--full") else 3
        work_place = tmp_path / f"w{point}"
        copy_store(place, work_place)
        files = FaultyFiles(point)
        with open_store(work_place, files=files) as store:
            try:
                run_gc(store)
                failed = False
            except NoSpace:
                failed = True
            files.fail_at = None
            assert files_of(store, "live") == kept
            assert_clean(store)
            write_file(store, "again", b"x", garbage(2))
            run_gc(store)
            assert_clean(store)
        files.done()
        with open_store(work_place) as store:
            store.rebuild_database()
            assert files_of(store, "live") == kept
            assert files_of(store, "again") == {b"x": garbage(2)}
            assert_clean(store)
    assert point > 8


def test_a_database_that_refuses_the_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log pack that says the restart is taken back with the packs it names, or the next writer would believe it."""
    place = tmp_path / "s"
    kept = build(place)
    with open_store(place) as store:
        original = MetaDb.restart

        def refuse(self: MetaDb, base: int) -> None:
            original(self, base)
            raise NoSpace("injected")

        monkeypatch.setattr(MetaDb, "restart", refuse)
        with pytest.raises(NoSpace):
            run_gc(store)
        monkeypatch.undo()
        write_file(store, "again", b"x", garbage(2))
        assert files_of(store, "live") == kept
        assert_clean(store)
    with open_store(place) as store:
        run_gc(store)
        assert files_of(store, "live") == kept
        assert_clean(store)

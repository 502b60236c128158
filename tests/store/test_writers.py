"""Many processes on one store: all writers land, killed ones leave nothing half done, readers never wait."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from storekit import (
    HEADS,
    assert_clean,
    files_of,
    finish,
    kill,
    make_store,
    open_store,
    start_writer,
    write_file,
)

from layerfs.errors import Busy
from layerfs.objects.kinds import Kind

WRITER = """
import sys, time
from pathlib import Path
from storekit import open_store, write_file
place, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
while not (place.parent / "go").exists():
    time.sleep(0.001)
with open_store(place) as store:
    for number in range(count):
        write_file(store, "shared", f"{name}/{number}".encode(), f"{name} {number}".encode() * 20)
        print(f"{name}/{number} {time.monotonic()}", flush=True)
"""

BUSY_WRITER = """
import itertools, os, sys
from pathlib import Path
from layerfs.objects.kinds import Kind
from storekit import open_store, write_file
place, name = Path(sys.argv[1]), sys.argv[2]
with open_store(place, seal_bytes=20_000) as store:
    for number in itertools.count():
        if number % 7 == 3:
            with store.batch() as batch:
                for piece in range(2100):
                    batch.put(Kind.CHUNK, f"{name} {number} {piece}".encode())
                batch.prepare()
                with store.lane() as lane:
                    lane.apply(batch, [], "bulk")
        write_file(store, "shared", f"{name}/{number}".encode(), os.urandom(700))
        print(f"{name}/{number}", flush=True)
"""


def everybody(place: Path, writers: int, count: int) -> tuple[float, list[list[float]]]:
    """Let writers commit to one branch at once; return the time taken and when each commit was done."""
    with make_store(place) as store:
        write_file(store, "shared", b"first", b"x")
    processes = [start_writer(place, WRITER, f"w{number}", str(count)) for number in range(writers)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    started = time.monotonic()
    (place.parent / "go").touch()
    times = []
    for process in processes:
        rows = finish(process).splitlines()
        assert len(rows) == count
        times.append([float(row.split()[1]) - started for row in rows])
    taken = max(done[-1] for done in times)
    with open_store(place) as store:
        files = files_of(store, "shared")
        assert len(files) == writers * count + 1
        assert files[b"w0/0"] == b"w0 0" * 20
        assert len(store.refs.reflog(HEADS + "shared")) == writers * count + 1
        assert_clean(store)
    return taken, times


def test_sixteen_writers_on_one_branch_all_land_and_fairly(tmp_path: Path) -> None:
    count = 20
    taken, times = everybody(tmp_path / "s", 16, count)
    half = taken / 2
    done_at_half = sorted(sum(1 for moment in writer if moment <= half) for writer in times)
    print(f"done at half time, slowest to fastest: {done_at_half}")
    first = sorted(writer[0] for writer in times)
    assert first[-1] <= 0.75 * taken, "somebody waited for nearly everybody else to end"


@pytest.mark.parametrize("rounds", [12, pytest.param(200, marks=pytest.mark.full)])
def test_killed_writers_lose_nothing_they_acknowledged(tmp_path: Path, rounds: int) -> None:
    place = tmp_path / "s"
    make_store(place).close()
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    acknowledged: set[bytes] = set()
    for turn in range(rounds):
        writers = [start_writer(place, BUSY_WRITER, f"r{turn}w{number}") for number in range(2)]
        for process in writers:
            assert process.stdout is not None
            acknowledged.add(process.stdout.readline().strip())
        time.sleep(chance.random() * 0.3)
        for process in writers:
            whole = kill(process).rpartition(b"\n")[0]
            acknowledged.update(whole.splitlines() if whole else ())
        with open_store(place, seal_bytes=20_000) as store:
            files = files_of(store, "shared")
            assert acknowledged - {b""} <= files.keys()
            assert_clean(store, read_data=turn % 5 == 0)
            write_file(store, "shared", b"after", b"%d" % turn)
            with store.batch() as batch:
                batch.put(Kind.EXTENT, b"x%d" % turn)
            store.sweep()
        assert not [name for name in os.listdir(place / "packs") if name.startswith(".")]
    with open_store(place) as store:
        registered = {row.number for row in store.db.packs()} | {store.db.state().open_pack}
        present = Counter(name.partition(".")[2] for name in os.listdir(place / "packs"))
        assert present["pack"] == len(registered)


def test_the_lane_is_bounded_and_not_entered_twice(tmp_path: Path) -> None:
    with make_store(tmp_path / "s") as store, open_store(tmp_path / "s") as other:
        with store.lane():
            started = time.monotonic()
            for timeout in (0.0, 0.2):
                with pytest.raises(Busy), other.lane(timeout):
                    raise AssertionError("two in the lane")
            assert 0.15 < time.monotonic() - started < 5
            with pytest.raises(RuntimeError, match="twice"), store.lane():
                raise AssertionError("entered twice")
        with other.lane(5), pytest.raises(Busy), store.lane(0.05):
            raise AssertionError("two in the lane")
        with store.lane(5):
            pass


def test_a_killed_holder_frees_the_lane(tmp_path: Path) -> None:
    place = tmp_path / "s"
    make_store(place).close()
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom storekit import open_store\n"
        "with open_store(Path(sys.argv[1])) as store, store.lane():\n    print('in', flush=True)\n    time.sleep(600)\n"
    )
    holder = start_writer(place, script)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"in\n"
    with open_store(place) as store:
        with pytest.raises(Busy), store.lane(0.05):
            raise AssertionError("two in the lane")
        kill(holder)
        with store.lane(5):
            pass


def test_readers_go_on_while_somebody_is_in_the_lane_and_see_packs_made_meanwhile(tmp_path: Path) -> None:
    with make_store(tmp_path / "s", seal_bytes=4000) as writer, open_store(tmp_path / "s") as reader:
        for number in range(40):
            write_file(writer, "a", b"%d" % number, os.urandom(300))
            assert len(files_of(reader, "a")) == number + 1
        assert len(reader.objects.pack_numbers()) > 3
        with writer.lane():
            assert len(files_of(reader, "a")) == 40
            with open_store(tmp_path / "s") as late:
                assert len(files_of(late, "a")) == 40


def test_durable_commits_of_one_process_are_fast(tmp_path: Path) -> None:
    """The goal is 500 a second for a bare batch; a loaded machine must still do a fifth of it."""
    from layerfs.ids import CommitId
    from layerfs.objects.kinds import Kind
    from layerfs.objects.moves import RefSet

    with make_store(tmp_path / "s") as store:
        old = None
        count = 300
        started = time.perf_counter()
        for number in range(count):
            with store.batch() as batch:
                for _ in range(3):
                    batch.put(Kind.TREE, os.urandom(300))
                new = CommitId(batch.put(Kind.COMMIT, b"%d" % number))
                batch.prepare()
                with store.lane() as lane:
                    lane.apply(batch, [RefSet("refs/heads/a", old, new, "t")], "t")
            old = new
        rate = count / (time.perf_counter() - started)
    print(f"one writer: {rate:.0f} durable commits/s")
    assert rate >= 100

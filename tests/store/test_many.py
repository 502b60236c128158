"""Many processes at one store: writers, readers, copies, collections and repacks at once, and nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from storekit import assert_clean, files_of, finish, make_store, open_store, start_writer

WRITER = """
import sys
from pathlib import Path
from storekit import open_store, write_file
place, branch, name, count = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
with open_store(place, seal_bytes=300_000) as store:
    for number in range(count):
        write_file(store, branch, b"%s/%d" % (name.encode(), number), b"content %d " % (number % 7) * 90)
"""

READER = """
import sys, time
from pathlib import Path
from storekit import files_of, open_store
from layerfs.upkeep.verify import verify_store
place, stop = Path(sys.argv[1]), Path(sys.argv[2])
with open_store(place) as store:
    while not stop.exists():
        for name, _ in store.refs.branches():
            files_of(store, name)
        report = verify_store(store)
        assert report.clean, report.problems
        time.sleep(0.02)
"""

KEEPER = """
import sys, time
from pathlib import Path
from storekit import HEADS, open_store, write_file
from layerfs.upkeep.collect import CollectOptions, collect
from layerfs.errors import Busy
from layerfs.objects.moves import RefSet
from layerfs.store.pointers import Retention
from layerfs.upkeep.repack import repack
place, stop, what = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
rounds = 0
with open_store(place) as store:
    while not stop.exists() or not rounds:
        try:
            if what == "gc":
                write_file(store, "dead", b"x", b"content %d " % (rounds % 7) * 90)
                with store.lane() as lane:
                    lane.apply(None, [RefSet(HEADS + "dead", lane.refs.need_head("dead"), None, "d")], "t")
                collect(store, CollectOptions(Retention(time.time_ns(), 90, 0)))
            else:
                repack(store)
            rounds += 1
            time.sleep(0.05)
        except Busy as error:
            assert "collection or repack" in str(error), error
            time.sleep(0.005)
print(rounds)
"""


def race(tmp_path: Path, writers: int, count: int, branches: int) -> None:
    place, stop = tmp_path / "s", tmp_path / "stop"
    make_store(place).close()
    running = [
        start_writer(place, WRITER, f"b{number % branches}", f"w{number}", str(count)) for number in range(writers)
    ]
    beside = [
        start_writer(place, READER, str(stop)),
        start_writer(place, KEEPER, str(stop), "gc"),
        start_writer(place, KEEPER, str(stop), "repack"),
    ]
    try:
        for process in running:
            finish(process, 900)
    finally:
        stop.touch()
        outs = [process.communicate(timeout=300) for process in beside]
    for process, (_, err) in zip(beside, outs, strict=True):
        assert process.returncode == 0, err.decode(errors="replace")
    print("collections", int(outs[1][0]), "repacks", int(outs[2][0]))
    with open_store(place) as store:
        assert_clean(store)
        for branch in range(branches):
            wanted = {
                b"w%d/%d" % (writer, number): b"content %d " % (number % 7) * 90
                for writer in range(branch, writers, branches)
                for number in range(count)
            }
            assert files_of(store, f"b{branch}") == wanted
        store.rebuild_database()
        assert_clean(store)


@pytest.mark.parametrize("branches", [1, 4])
def test_writers_readers_and_upkeep_at_once(tmp_path: Path, branches: int) -> None:
    race(tmp_path, 4, 12, branches)


@pytest.mark.full
@pytest.mark.parametrize("branches", [1, 16])
def test_sixteen_writers_readers_and_upkeep_at_once(tmp_path: Path, branches: int) -> None:
    race(tmp_path, 16, 200, branches)

"""What dead processes leave is removed, what a living one is writing is not, and no two write over each other."""

from __future__ import annotations

import os
import time
from pathlib import Path

from storekit import DIED, assert_clean, in_child, make_store, open_store, write_file

from layerfs.capture.statcache import write_cache
from layerfs.durable.atomicfile import Files
from layerfs.store.pointers import Retention
from layerfs.upkeep.collect import CollectOptions, collect


def hidden(place: Path) -> list[str]:
    return sorted(name for name in (*os.listdir(place), *os.listdir(place / "packs")) if name.startswith("."))


def test_a_collection_removes_what_died_while_replacing_a_file(tmp_path: Path) -> None:
    place = tmp_path / "s"
    make_store(place).close()

    class DyingFiles(Files):
        def rename(self, dir_fd: int, old: bytes, new: bytes) -> None:
            os._exit(DIED)

    def die() -> None:
        with open_store(place) as store:
            directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            DyingFiles().replace(directory, b"config", b"{}")
            store.close()

    for _ in range(5):
        assert in_child(die) == DIED
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    name, living = Files().create_locked(directory, b".new-config-")
    assert len(hidden(place)) == 6
    with open_store(place) as store:
        write_file(store, "a", b"x", b"x")
        collect(store, CollectOptions(Retention(time.time_ns(), 90, 14)))
        assert hidden(place) == [os.fsdecode(name)]
        os.close(living)
        collect(store, CollectOptions(Retention(time.time_ns(), 90, 14)))
        assert hidden(place) == []
        assert_clean(store)
    os.close(directory)


def test_a_cache_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    """Two that know different states must not mix them, nor fail because the other was faster."""
    path = os.fsencode(tmp_path / "cache")
    write_cache(path, (b"old",), None)
    Path(os.fsdecode(path) + ".new").write_bytes(b"left by a dead process, and longer than what comes next")
    write_cache(path, (b"new",), None)
    assert (tmp_path / "cache").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["cache"]
    writers = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for _ in range(60):
                    write_cache(path, (b"%d" % number * 5000,), None)
                code = 0
            finally:
                os._exit(code)
        writers.append(child)
    seen = set()
    for child in writers:
        seen.add((tmp_path / "cache").read_bytes())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    seen.add((tmp_path / "cache").read_bytes())
    assert seen <= {b"new", *(b"%d" % number * 5000 for number in range(4))}

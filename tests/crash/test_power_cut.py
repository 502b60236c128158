"""Power cuts of a real kernel file system: an atomic image of the block device, taken under load, opens as promised.

A btrfs on a loop device holds ``inner.img``, which is loop-mounted as ext4 and holds the store. A reflink copy of
``inner.img``, made while a writer is at work, is what the device held at that instant: what ext4 had not written yet is
lost, as in a power cut. Each image is mounted (ext4 replays its journal), and the store in it is opened and compared
with what had been acknowledged before the copy began.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from storekit import assert_clean, files_of, kill, make_store, open_store, start_writer, write_file

SEED = int(os.environ.get("CRASH_SEED", "20250101"))
POINTS = 20
FULL_POINTS = 400
POINTS_OF_ONE_STORE = 20
INNER_BYTES = 64 << 20

LOAD = """
import itertools, sys, time
from pathlib import Path
from layerfs.upkeep.collect import CollectOptions, collect
from layerfs.objects.kinds import Kind
from layerfs.objects.moves import RefSet
from layerfs.store.pointers import Retention
from layerfs.upkeep.repack import repack
from storekit import HEADS, open_store, write_file

def drop(store, name):
    with store.lane() as lane:
        lane.apply(None, [RefSet(HEADS + name, lane.refs.need_head(name), None, "delete")], "t")

with open_store(Path(sys.argv[1]), seal_bytes=60_000) as store:
    for number in itertools.count():
        write_file(store, "a", b"d/%d" % (number % 50), b"content %d " % number * 60)
        print("a", number, flush=True)
        if number % 5 == 2:
            write_file(store, "dead", b"x", b"%d" % number * 3000)
            drop(store, "dead")
        if number % 11 == 7:
            with store.batch() as batch:
                for piece in range(2100):
                    batch.put(Kind.CHUNK, b"%d %d" % (number, piece))
                batch.prepare()
                with store.lane() as lane:
                    lane.apply(batch, [], "bulk")
        if number % 7 == 4:
            collect(store, CollectOptions(Retention(time.time_ns() + 1, 0, 0)))
            print("gc", number, flush=True)
        if number % 13 == 9:
            repack(store)
            print("repack", number, flush=True)
"""


class Machine(NamedTuple):
    """The mounted outer file system, and where the inner one is mounted."""

    outer: Path
    inner: Path

    @property
    def image(self) -> Path:
        """The block device, as a file."""
        return self.outer / "inner.img"


def call(*words: str | Path) -> None:
    done = subprocess.run(words, check=False, capture_output=True, timeout=60)
    assert done.returncode == 0, (words, done.stderr.decode(errors="replace"))


@pytest.fixture
def machine(tmp_path: Path, need_root_mounts: None) -> Iterator[Machine]:
    """The file systems; all of it is in a mount namespace of this process, and loop devices go with their mounts."""
    from mounting import enter_private_namespace

    enter_private_namespace()
    place = Machine(tmp_path / "outer", tmp_path / "inner")
    for directory in place:
        directory.mkdir()
    disk = tmp_path / "outer.img"
    try:
        with open(disk, "wb") as stream:
            stream.truncate(1 << 30)
        call("mkfs.btrfs", "-q", disk)
        call("mount", "-o", "loop,noatime", disk, place.outer)
        with open(place.image, "wb") as stream:
            stream.truncate(INNER_BYTES)
        call("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", place.image)
        call("mount", "-o", "loop", place.image, place.inner)
    except (AssertionError, OSError) as error:
        _unmount(place)
        pytest.skip(f"loop-mounted btrfs and ext4 do not work here: {error}")
    yield place
    _unmount(place)


def _unmount(place: Machine) -> None:
    for directory in (place.inner.with_name("after"), place.inner, place.outer):
        if os.path.ismount(directory):
            call("umount", directory)


class Seen(NamedTuple):
    """What one image held."""

    moves: int
    torn: bool


def test_power_cuts_under_load(machine: Machine, request: pytest.FixtureRequest) -> None:
    points = FULL_POINTS if request.config.getoption("--full") else POINTS
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    done = torn = behind = 0
    while done < points:
        place = machine.inner / f"s{done}"
        make_store(place).close()
        writer = start_writer(place, LOAD)
        acknowledged = Acknowledged(writer)
        try:
            for _ in range(min(POINTS_OF_ONE_STORE, points - done)):
                time.sleep(rng.uniform(0.01, 0.25))
                assert writer.poll() is None, writer.communicate()[1].decode(errors="replace")
                before = acknowledged.now()
                image = machine.outer / "crash.img"
                call("cp", "--reflink=always", machine.image, image)
                seen = check(machine, image, place.name, before)
                torn += seen.torn
                behind += seen.moves
                done += 1
        finally:
            kill(writer)
        shutil.rmtree(place)
    print(f"{done} power cuts, nothing lost; {torn} torn tails were cut off, {behind} moves replayed")


class Acknowledged:
    """The numbers of the commits that a writer has said to be done."""

    def __init__(self, writer: subprocess.Popen[bytes]) -> None:
        assert writer.stdout is not None
        self._pipe = writer.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self._text = b""

    def now(self) -> int:
        """Return the last commit acknowledged by now, -1 for none."""
        while True:
            try:
                more = os.read(self._pipe, 65536)
            except BlockingIOError:
                break
            if not more:
                break
            self._text += more
        whole = self._text.rpartition(b"\n")[0].splitlines()
        return max((int(line[2:]) for line in whole if line.startswith(b"a ")), default=-1)


def content(last: int) -> dict[bytes, bytes]:
    """Return the files of the branch after commit ``last``."""
    return {b"d/%d" % (number % 50): b"content %d " % number * 60 for number in range(last + 1)}


def check(machine: Machine, image: Path, name: str, before: int) -> Seen:
    """Start the machine from the image: the store opens at a whole commit, the last acknowledged or a later one."""
    after = machine.inner.with_name("after")
    after.mkdir(exist_ok=True)
    call("mount", "-o", "loop", image, after)
    try:
        place = after / name
        with open_store(place, attach=False) as store:
            store.attach_as_is()
            known = store.db.state().sequence
        with open_store(place) as store:
            found = files_of(store, "a")
            last = max((int(data.split()[1]) for data in found.values()), default=-1)
            assert last >= before, f"commit {before} was acknowledged, {last} is the last there is"
            assert found == content(last), "a commit is there in part"
            moves, torn = store.db.state().sequence - known, any("cut" in note for note in store.notes)
            assert_clean(store)
            write_file(store, "a", b"goes on", b"goes on")
            store.sweep()
            store.rebuild_database()
            assert files_of(store, "a") == {**content(last), b"goes on": b"goes on"}
            assert_clean(store)
    finally:
        call("umount", after)
        image.unlink()
    return Seen(moves, torn)

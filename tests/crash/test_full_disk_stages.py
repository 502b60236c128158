"""A full disk at every stage: the command says so and publishes nothing, what is there can be read, and room heals it.

Each stage of the kill sweep runs on a small ext4 on a loop device that is full but for some bytes. The outcome is judged
as a cut is: by the stage's own check, once there is room again.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_stage import STAGES, Cut, Restage
from project import Project, assert_no_traceback, mounts_below
from store_stages import AT_ONCE, STORE_STAGES, open_at
from storekit import files_of, write_file
from world import Outcome

from layerfs.errors import NoSpace

SEED = int(os.environ.get("CRASH_SEED", "20250101"))
BY_NAME = {stage.name: stage for stage in (*STAGES, *STORE_STAGES)}
LEAVES = (0, 4096, 16384, 65536, 262144, 1 << 20)
DISK_BYTES = 96 << 20


@pytest.fixture
def small_disk(memory: Path) -> Iterator[Path]:
    """An ext4 of its own on a loop device; what a test mounts on it is gone before it."""
    image, place = memory / "disk.img", memory / "disk"
    place.mkdir()
    with open(image, "wb") as stream:
        stream.truncate(DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, timeout=60)
    subprocess.run(["mount", "-o", "loop", image, place], check=True, timeout=60)
    yield place
    for mount in reversed(mounts_below(place)):
        subprocess.run(["umount", mount], check=True, timeout=60)


class Ballast:
    """A file that takes all room but some bytes."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / "ballast"

    def fill(self, leave: int) -> None:
        """Take all that is free but ``leave`` bytes."""
        with open(self._path, "wb") as stream:
            length, step = 0, DISK_BYTES
            while step >= 4096:
                try:
                    os.posix_fallocate(stream.fileno(), length, step)
                    length += step
                except OSError:
                    step //= 2
            os.ftruncate(stream.fileno(), max(0, length - leave))

    def drop(self) -> None:
        """Give the room back."""
        self._path.unlink(missing_ok=True)


def run_full(restage: Restage, disk: Path, leave: int) -> int:
    """Run the stage's command on a full disk and judge it; return its exit code."""
    ballast = Ballast(disk)
    ballast.drop()
    project = restage.fresh()
    ballast.fill(leave)
    child = project.start_any(restage.stage.argv())
    out, err = child.communicate(timeout=120)
    done = Outcome(child.returncode, out, err)
    try:
        assert_no_traceback(done)
        assert done.code in (0, 3, 40), done.err
        if done.code == 40:
            assert b"no space" in done.err or restage.stage.name == "repair", done.err
        if restage.stage.name != "repair":
            _read(project)
        ballast.drop()
        restage.stage.check(project, Cut(done.code, out if done.code == 0 else b"", err))
    except BaseException:
        print(
            f"{restage.stage.name} with {leave} bytes left: exit {done.code}\n{err.decode(errors='replace')}"
        )
        raise
    return done.code


def _read(project: Project) -> None:
    """Whoever only looks needs no room, or says that there is none."""
    if not (project.work / "store.layerfs").is_dir():
        return
    for words in (["log", "live"], ["branch"], ["workspace", "list"]):
        looked = project.run(*words, "--store", project.work / "store.layerfs")
        assert_no_traceback(looked)
        assert looked.code in (0, 40), (words, looked.err)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_disk_is_full(small_disk: Path, name: str, request: pytest.FixtureRequest) -> None:
    rng = random.Random(f"{SEED} full {name}")
    leaves = LEAVES if request.config.getoption("--full") else rng.sample(LEAVES, 2)
    restage = Restage(BY_NAME[name], small_disk / "project")
    try:
        codes = [run_full(restage, small_disk, leave) for leave in leaves]
    finally:
        restage.project.close()
    print(f"{name}: {len(codes)} points, {codes.count(40)} of them without room")


def test_room_can_be_made_where_there_is_none(small_disk: Path) -> None:
    """On a disk without a free byte: read history, delete a branch, collect, and commit into the room that gives."""
    (stage,) = (stage for stage in STORE_STAGES if stage.name == "gc")
    project = Project(small_disk / "project")
    ballast = Ballast(small_disk)
    try:
        stage.build(project)
        with open_at(project.store, 500_000) as store:
            for number in range(12):
                write_file(store, "dead", b"%d" % number, random.Random(number).randbytes(300_000))
            kept = files_of(store, "live")
        project.write(text="changed\n", large=random.Random(0).randbytes(3_000_000))
        ballast.fill(0)
        refused = project.run("commit", "-m", "no room", cwd=project.source)
        assert refused.code == 40 and b"no space" in refused.err, refused.err
        with open_at(project.store) as store, pytest.raises(NoSpace):
            for number in range(60):
                write_file(store, "greedy", b"%d" % number, random.Random(number).randbytes(60_000))
        assert len(project.document("log", "dead")["commits"]) == 12
        project.document("branch", "-D", "dead")
        done = project.document("gc", *AT_ONCE)
        assert done["freed_bytes"] > 3_000_000
        project.commit(project.source)
        project.fsck()
        with open_at(project.store) as store:
            assert files_of(store, "live") == kept
    finally:
        project.close()

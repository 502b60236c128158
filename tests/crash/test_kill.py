"""kill -9 at random moments and at every system call: nothing acknowledged is lost, nothing is half done.

The commands are real processes. Random moments are spread over the time the command takes here; the seed is printed and
``CRASH_SEED`` sets it. The sweep kills at the k-th call of each kind that changes the disk, without luck; the error sweep
lets such calls fail instead. The normal tier takes a sample of each, the full tier much more.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from crash_stage import STAGES, Cut, Restage, opens_clean, remains
from project import Project, assert_no_traceback
from store_stages import STORE_STAGES
from world import Outcome

SEED = int(os.environ.get("CRASH_SEED", "20250101"))
POINTS = 2
FULL_POINTS = 30
SWEPT = 3
SYSCALLS = (
    "write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,"
    "link,linkat,unlink,unlinkat,ftruncate,mkdir,mkdirat,openat"
)
BY_NAME = {stage.name: stage for stage in (*STAGES, *STORE_STAGES)}


@pytest.fixture(autouse=True)
def private_mounts(need_overlay: None) -> None:
    """Every mount a killed command leaves ends with this process at the latest."""
    from mounting import enter_private_namespace

    enter_private_namespace()


def kill_at_random(restage: Restage, points: int, rng: random.Random) -> int:
    """Kill the stage's command at ``points`` moments and check each; return how many kills came before the answer."""
    took = restage.duration()
    early = 0
    for _ in range(points):
        project = restage.fresh()
        moment = rng.uniform(min(0.06, took / 3), took * 1.05)
        child = project.start_any(restage.stage.argv())
        time.sleep(moment)
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate(timeout=60)
        cut = Cut(child.returncode, out, err)
        early += cut.answer is None
        try:
            restage.stage.check(project, cut)
        except BaseException:
            print(f"{restage.stage.name}: killed after {moment:.4f} of {took:.4f} s, seed {SEED}")
            raise
    return early


@pytest.mark.parametrize("name", BY_NAME)
def test_killed_at_a_random_moment(memory: Path, name: str) -> None:
    print(f"seed {SEED}")
    restage = Restage(BY_NAME[name], memory / "project")
    try:
        kill_at_random(restage, POINTS, random.Random(f"{SEED} {name}"))
    finally:
        restage.project.close()


@pytest.mark.full
@pytest.mark.parametrize("name", BY_NAME)
def test_killed_at_many_random_moments(memory: Path, name: str) -> None:
    restage = Restage(BY_NAME[name], memory / "project")
    try:
        early = kill_at_random(restage, FULL_POINTS, random.Random(f"{SEED} full {name}"))
    finally:
        restage.project.close()
    assert early > FULL_POINTS // 3, "hardly any kill came before the answer"


class Call(NamedTuple):
    """The ``number``-th call of this kind in one thread; ``changes`` is False for an open that makes nothing."""

    name: str
    number: int
    changes: bool = True
    is_log: bool = False
    """Whether it writes or syncs a pack, an index or the directory of these, which is what durability rests on."""


_LINE = re.compile(r"^(\d+) +(\w+)\((?:\d+<([^>]*)>)?")


def calls_of(restage: Restage, syscalls: str = SYSCALLS) -> list[Call]:
    """Run the command under strace; return its calls from the moment it touches a store or the captured tree."""
    project = restage.fresh()
    log = project.root / "strace.log"
    child = project.start_any(
        [
            "strace",
            "-f",
            "-qq",
            "-y",
            "-o",
            log,
            "-e",
            f"trace=?{syscalls.replace(',', ',?')}",
            *restage.stage.argv(),
        ]
    )
    _, err = child.communicate(timeout=120)
    assert child.returncode == 0, err.decode(errors="replace")
    counts: dict[tuple[str, str], int] = {}
    calls: list[Call] = []
    began = False
    for line in log.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        thread, name, on = match.groups()
        counts[thread, name] = counts.get((thread, name), 0) + 1
        began = began or ".layerfs" in line or "data/layerfs" in line or "lane.lock" in line
        if began and "__pycache__" not in line and "/lib/" not in line:
            is_log = on is not None and "/packs" in on
            calls.append(Call(name, counts[thread, name], name != "openat" or "O_CREAT" in line, is_log))
    return list(dict.fromkeys(calls))


def inject(restage: Restage, call: Call, fault: str) -> tuple[Project, Cut]:
    """Run the command on a fresh stage with a fault in one call."""
    project = restage.fresh()
    child = project.start_any(
        [
            "strace",
            "-f",
            "-qq",
            "-o",
            os.devnull,
            "-e",
            f"trace={call.name}",
            "-e",
            f"inject={call.name}:{fault}:when={call.number}",
            *restage.stage.argv(),
        ]
    )
    out, err = child.communicate(timeout=120)
    return project, Cut(child.returncode, out, err)


def sweep(restage: Restage, count: int | None, rng: random.Random) -> int:
    calls = [call for call in calls_of(restage) if call.changes]
    chosen = calls if count is None else _sample(calls, count, rng)
    for call in chosen:
        project, cut = inject(restage, call, "signal=KILL")
        try:
            restage.stage.check(project, cut._replace(code=-9 if cut.code == 137 else cut.code))
        except BaseException:
            print(f"{restage.stage.name}: killed at {call}")
            raise
    return len(chosen)


def _sample(calls: list[Call], count: int, rng: random.Random) -> list[Call]:
    """Choose calls so that rare kinds, such as renames, are among them as well as frequent ones."""
    kinds = sorted({call.name for call in calls})
    chosen: list[Call] = []
    while len(chosen) < min(count, len(calls)):
        kind = rng.choice(kinds)
        left = [call for call in calls if call.name == kind and call not in chosen]
        if left:
            chosen.append(rng.choice(left))
    return chosen


@pytest.mark.parametrize("name", BY_NAME)
def test_killed_at_a_system_call(need_strace: None, memory: Path, name: str) -> None:
    restage = Restage(BY_NAME[name], memory / "project")
    try:
        sweep(restage, SWEPT, random.Random(f"{SEED} calls {name}"))
    finally:
        restage.project.close()


@pytest.mark.full
@pytest.mark.parametrize("name", BY_NAME)
def test_killed_at_every_system_call(need_strace: None, memory: Path, name: str) -> None:
    restage = Restage(BY_NAME[name], memory / "project")
    try:
        points = sweep(restage, None, random.Random())
    finally:
        restage.project.close()
    print(f"{name}: {points} points")


FAULTS = (
    ("fsync", "error=EIO"),
    ("fdatasync", "error=EIO"),
    ("pwrite64", "error=ENOSPC"),
    ("pwrite64", "error=EIO"),
    ("write", "error=ENOSPC"),
    ("ftruncate", "error=ENOSPC"),
    ("openat", "error=EMFILE"),
    ("mkdir", "error=ENOSPC"),
    ("rename", "error=EIO"),
    ("renameat", "error=EIO"),
)


def fail_calls(restage: Restage, count: int | None, rng: random.Random) -> int:
    """Let calls fail one by one; each time the answer must be one clear line or success, and the check holds."""
    calls = calls_of(restage)
    points = [(call, fault) for name, fault in FAULTS for call in calls if call.name == name]
    if count is not None:
        kinds = sorted({(call.name, fault) for call, fault in points})
        rng.shuffle(kinds)
        points = [
            rng.choice([point for point in points if (point[0].name, point[1]) == kind])
            for kind in kinds[:count]
        ]
    for call, fault in points:
        project, cut = inject(restage, call, fault)
        try:
            _assert_clear(cut, call)
            restage.stage.check(project, cut if cut.code == 0 else cut._replace(out=b""))
        except BaseException:
            print(
                f"{restage.stage.name}: {fault} in {call}: exit {cut.code}\n{cut.err.decode(errors='replace')}"
            )
            raise
    return len(points)


def _assert_clear(cut: Cut, call: Call) -> None:
    assert_no_traceback(Outcome(cut.code, cut.out, cut.err))
    if cut.code in (0, 3):
        assert not (call.is_log and call.name in ("fsync", "fdatasync")), (
            "a sync of the log failed, and was believed"
        )
        return
    lines = [line for line in cut.err.splitlines() if line.startswith(b"layerfs: error: ")]
    assert len(lines) == 1, cut.err
    if call.name in ("fsync", "fdatasync", "pwrite64"):
        assert cut.code == 40, "a store that cannot write is exit code 40"


@pytest.mark.parametrize(
    "name", ["init", "commit", "bulk-commit", "publish", "gc", "repack", "purge", "fetch", "mount"]
)
def test_a_system_call_fails(need_strace: None, memory: Path, name: str) -> None:
    restage = Restage(BY_NAME[name], memory / "project")
    try:
        fail_calls(restage, 3, random.Random(f"{SEED} faults {name}"))
    finally:
        restage.project.close()


@pytest.mark.full
@pytest.mark.parametrize("name", BY_NAME)
def test_every_system_call_fails_once(need_strace: None, memory: Path, name: str) -> None:
    restage = Restage(BY_NAME[name], memory / "project")
    try:
        points = fail_calls(restage, None, random.Random())
    finally:
        restage.project.close()
    print(f"{name}: {points} points")


def test_what_killed_commits_leave_does_not_grow(project: Project) -> None:
    """One store, killed again and again in big commits: afterwards it holds what one that was never killed holds."""
    rng = random.Random(SEED)
    project.write(base="x")
    project.init()
    for number in range(2300):
        project.write(**{f"many{number % 7}__{number}": f"{number} {rng.random()}\n"})
    for _ in range(8):
        child = project.start("commit", "-m", "killed")
        time.sleep(rng.uniform(0.1, 0.5))
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate(timeout=60)
        opens_clean(project)
    project.commit(project.source)
    project.write(last="y" * 20_000_000)
    project.commit(project.source)
    left = remains(project.store)
    assert not left, left
    packs = [path for path in (project.store / "packs").iterdir() if path.suffix == ".pack"]
    assert len(packs) <= 8
    opens_clean(project)
    size = sum(path.stat().st_size for path in project.store.rglob("*") if path.is_file())
    assert size < 8_000_000

"""Commits beside a program that writes: with --freeze each commit is of one instant."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from world import World

from layerfs.errors import Busy
from layerfs.workspace import freeze
from layerfs.workspace.freeze import frozen

WRITER = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("pragma journal_mode=wal")
db.execute("create table if not exists t (a integer, b integer)")
n = 0
while True:
    db.execute("begin")
    db.execute("insert into t values (?, ?)", (n, n))
    db.execute("insert into t values (?, ?)", (n, -n))
    db.execute("commit")
    n += 1
"""


def start_writer(path: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    while not path.exists() or not path.with_name(path.name + "-wal").exists():
        time.sleep(0.01)
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()


@pytest.mark.parametrize("engine", ["source", "overlay"])
def test_a_database_is_whole_in_every_frozen_commit(
    world: World, engine: str, request: pytest.FixtureRequest
) -> None:
    project = world.work / "project"
    project.mkdir()
    (project / "file").write_bytes(b"x")
    world.ok("init", cwd=project)
    place = project
    if engine == "overlay":
        request.getfixturevalue("need_overlay")
        place = Path(world.ok("mount", "work", cwd=project).text.strip())
    writer = start_writer(place / "data.db")
    rounds = 200 if request.config.getoption("--full") else 6
    try:
        for number in range(rounds):
            world.ok("commit", "--freeze", "-m", f"round {number}", cwd=place)
            assert state_of(writer.pid) != "T"
    finally:
        stop(writer)
    if engine == "overlay":
        world.ok("unmount", "work", "--discard", cwd=project)
    for number in range(rounds):
        target = world.work / f"out{number}"
        world.ok("checkout", f"work~{number}", "--to", target, cwd=project)
        with sqlite3.connect(target / "data.db") as db:
            assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
            assert db.execute("select coalesce(sum(b), 0), count(*) % 2 from t").fetchone() == (0, 0)


PACED = WRITER.replace("n += 1", "n += 1; print(n, flush=True); time.sleep(0 if n % 50 else 0.06)")
"""Fifty transactions at a time, and a pause in which a commit may come through."""


@pytest.mark.parametrize("engine", ["source", "overlay"])
@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_database_is_whole_or_refused_in_every_other_commit(
    world: World, engine: str, mode: str, request: pytest.FixtureRequest
) -> None:
    project = world.work / "project"
    project.mkdir()
    (project / "file").write_bytes(b"x")
    world.ok("init", cwd=project)
    place = project
    if engine == "overlay":
        request.getfixturevalue("need_overlay")
        place = Path(world.ok("mount", "work", cwd=project).text.strip())
    script = PACED.replace("journal_mode=wal", f"journal_mode={mode}; pragma wal_autocheckpoint=7")
    script = script.replace('db.execute("pragma', 'db.executescript("pragma')
    log = world.work / "acknowledged"
    with log.open("wb") as output:
        writer = subprocess.Popen([sys.executable, "-c", script, str(place / "data.db")], stdout=output)
    made: list[tuple[int, int]] = []
    refused = 0
    rounds = 200 if request.config.getoption("--full") else 12
    try:
        while not log.stat().st_size:
            time.sleep(0.01)
        for number in range(rounds):
            acknowledged = int(log.read_bytes().splitlines()[-1])
            outcome = world.run("commit", "-m", f"round {number}", cwd=place)
            assert outcome.code in (0, 13), outcome.text
            refused += outcome.code == 13
            if outcome.code == 0:
                made.append((number, acknowledged))
            else:
                assert b"data.db" in outcome.err
    finally:
        stop(writer)
    print(f"{len(made)} commits, {refused} refused")
    assert made, "no commit came through the pauses"
    if engine == "overlay":
        world.ok("unmount", "work", "--discard", cwd=project)
    for back, (number, acknowledged) in enumerate(reversed(made)):
        target = world.work / f"out{number}"
        world.ok("checkout", f"work~{back}", "--to", target, cwd=project)
        with sqlite3.connect(target / "data.db") as db:
            assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
            total, count = db.execute("select coalesce(sum(b), 0), count(*) from t").fetchone()
            assert total == 0 and count % 2 == 0
            assert count // 2 >= acknowledged, "what was committed before the commit began is missing from it"


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_what_was_frozen_goes_on_and_bystanders_never_stop(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    user = subprocess.Popen(["sleep", "60"], cwd=inside)
    bystander = subprocess.Popen(["sleep", "60"], cwd=outside)
    try:
        while not os.path.samefile(f"/proc/{user.pid}/cwd", inside):
            time.sleep(0.01)
        starter = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!"], cwd=inside, stdout=subprocess.PIPE)
        assert starter.stdout is not None
        orphan = int(starter.stdout.readline())
        starter.wait()
        with frozen(os.fsencode(inside)) as held:
            assert state_of(bystander.pid) != "T"
            assert [holder.pid for holder in held] == [orphan]
            assert state_of(orphan) in "Tt"
        assert state_of(orphan) not in "Tt"
        os.kill(orphan, signal.SIGKILL)
    finally:
        stop(user)
        stop(bystander)


STORM = """
import os, sys, time
while True:
    if not os.fork():
        for number in range(20):
            with open(f"{os.getpid() % 50}", "w") as out:
                out.write(str(time.monotonic_ns()))
        os._exit(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    time.sleep(0.001)
"""


def contents(top: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in top.iterdir()}


def test_processes_started_while_others_are_stopped_are_stopped_too(tmp_path: Path) -> None:
    """A parent that starts children all the time, which all write: while it is frozen nothing moves."""
    command = f"'{sys.executable}' -c '{STORM}' & echo $!"
    starter = subprocess.Popen(["sh", "-c", command], cwd=tmp_path, stdout=subprocess.PIPE)
    assert starter.stdout is not None
    storm = int(starter.stdout.readline())
    starter.wait()
    try:
        while len(list(tmp_path.iterdir())) < 20:
            time.sleep(0.01)
        for _ in range(10):
            with frozen(os.fsencode(tmp_path)) as held:
                assert storm in [holder.pid for holder in held]
                before = contents(tmp_path)
                time.sleep(0.05)
                assert contents(tmp_path) == before
            time.sleep(0.02)
        assert contents(tmp_path) != before, "it goes on afterwards"
    finally:
        os.kill(storm, signal.SIGCONT)
        os.kill(storm, signal.SIGKILL)


def test_what_was_not_all_stopped_is_not_called_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freeze, "ROUNDS", 1)
    starter = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!"], cwd=tmp_path, stdout=subprocess.PIPE)
    assert starter.stdout is not None
    orphan = int(starter.stdout.readline())
    starter.wait()
    try:
        with pytest.raises(Busy, match="start new ones"), frozen(os.fsencode(tmp_path)):
            pytest.fail("one look that found somebody is not enough")
        assert state_of(orphan) not in "Tt", "whoever was stopped goes on"
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_commit_from_a_directory(world: World) -> None:
    project, job = world.work / "project", world.work / "job"
    project.mkdir()
    job.mkdir()
    (project / "file").write_bytes(b"x")
    world.ok("init", cwd=project)
    (job / "artefact").write_bytes(b"built elsewhere")
    made = world.ok(
        "commit", "--from", job, "--as", "nightly", "-m", "build 1", "--json", cwd=project
    ).document
    assert made["data"]["branch"] == "nightly"
    (job / "artefact").write_bytes(b"built again")
    world.ok("commit", "--from", job, "--branch", "nightly", "-m", "build 2", cwd=project)
    assert world.ok("show", "nightly:artefact", cwd=project).out == b"built again"
    assert world.ok("show", "nightly~1:artefact", cwd=project).out == b"built elsewhere"
    assert world.ok("status", cwd=project).text.endswith("nothing changed since the last commit\n")

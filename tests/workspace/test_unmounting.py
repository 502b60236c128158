"""Unmounting what somebody still uses: refused with names, or forced, and never at the price of work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from project import Project, mounts_below, refusal

WRITER = """
import os, signal, sys, time
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
file = open("log", "ab", buffering=0)
open("ready", "w").close()
number = 0
while True:
    number += 1
    file.write(b"%08d\\n" % number)
    time.sleep(0.001)
"""


@pytest.fixture(autouse=True)
def as_root(overlay_mounts: None) -> None:
    """Mounts end with this process."""


@pytest.fixture
def captured(project: Project) -> Project:
    project.write(a="one\n", d__b="b\n")
    project.init()
    return project


def start_writer(project: Project, place: Path, how: str = "plain") -> subprocess.Popen[bytes]:
    child = project.start_any([sys.executable, "-c", WRITER, how], cwd=place)
    deadline = time.monotonic() + 20
    while not (place / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return child


@pytest.mark.parametrize("how", ["plain", "stubborn"])
def test_force_ends_the_writers_and_keeps_what_they_wrote(captured: Project, how: str) -> None:
    place = captured.fork("f")
    writer = start_writer(captured, place, how)
    standing = captured.start_any(["sleep", "4500"], cwd=place / "d")
    for _ in range(2):
        done = captured.run("unmount", "f", "--discard", cwd=captured.source)
        message = refusal(done, 11)
    assert str(writer.pid) in message and str(standing.pid) in message
    assert b"--force" in done.err
    assert writer.poll() is None and standing.poll() is None
    done = captured.run("unmount", "f", "--force", cwd=captured.source)
    assert done.code == 0, done
    assert f"ended pid {writer.pid}".encode() in done.err and b"brings them back" in done.err, done.err
    assert writer.wait(10) and standing.wait(10)
    assert mounts_below(captured.root) == []
    written = (captured.store / "workspaces/f/upper/log").read_bytes()
    assert written.endswith(b"\n") and written.count(b"\n") > 3
    place = captured.mount("f", where=place)
    assert (place / "log").read_bytes() == written
    assert set(captured.changes(place)) == {"log", "ready"}
    captured.document("unmount", "f", "--discard")
    captured.fsck()


def test_force_with_commit_commits_what_the_writers_wrote(captured: Project) -> None:
    place = captured.fork("f")
    start_writer(captured, place)
    data = captured.document("unmount", "f", "--force", "--commit", "-m", "so far")
    assert data["committed"]["commit"] and not data["kept"] and len(data["ended"]) == 1
    out = captured.checkout("f")
    lines = (out / "log").read_bytes().splitlines()
    assert lines == [b"%08d" % number for number in range(1, len(lines) + 1)] and lines
    assert mounts_below(captured.root) == []


def test_force_with_nothing_to_keep_removes_the_workspace(captured: Project) -> None:
    place = captured.fork("f")
    child = captured.start_any(["sleep", "4500"], cwd=place)
    data = captured.document("unmount", "f", "--force")
    assert [one["pid"] for one in data["ended"]] == [child.pid]
    assert [row["name"] for row in captured.document("workspace", "list")["workspaces"]] == ["source"]


def test_force_never_ends_who_asks_for_it(captured: Project) -> None:
    place = captured.fork("f")
    command = f"cd {place} && {sys.executable} -m layerfs unmount --force; echo code $?"
    done = captured.execute(["sh", "-c", command])
    assert done.text == "code 11\n" and b"leave the directory" in done.err, done
    assert captured.document("status", cwd=place)["workspace"] == "f"
    captured.document("unmount", "f")


def test_a_copy_somebody_writes_to_is_not_removed(captured: Project) -> None:
    place = captured.fork("f", "copy")
    writer = start_writer(captured, place)
    assert str(writer.pid) in refusal(captured.run("unmount", "f", "--discard", cwd=captured.source), 11)
    assert (place / "a").read_bytes() == b"one\n"
    assert "uncommitted" in refusal(captured.run("unmount", "f", "--force", cwd=captured.source), 13)
    assert writer.wait(10) and (place / "log").stat().st_size
    captured.document("unmount", "f", "--discard")
    assert not place.exists()


def test_a_mapped_and_an_executed_file_keep_a_workspace_busy(captured: Project) -> None:
    place = captured.fork("f")
    with open("/bin/sleep", "rb") as source:
        (place / "sleeps").write_bytes(source.read())
    os.chmod(place / "sleeps", 0o755)
    children = [
        captured.start_any([place / "sleeps", "4500"], cwd=captured.source),
        captured.start_any(
            [sys.executable, "-c", f"import mmap, time; f = open('{place}/a', 'rb'); m = mmap.mmap(f.fileno(), 0, "
             "prot=mmap.PROT_READ); f.close(); time.sleep(4500)"],
            cwd=captured.source,
        ),
    ]
    deadline = time.monotonic() + 10
    message = ""
    while not all(str(child.pid) in message for child in children) and time.monotonic() < deadline:
        message = refusal(captured.run("unmount", "f", "--discard", cwd=captured.source), 11)
    assert all(str(child.pid) in message for child in children), message
    assert len(captured.document("unmount", "f", "--discard", "--force")["ended"]) == 2

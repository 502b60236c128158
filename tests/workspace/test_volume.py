"""Large amounts: directories of very many names, files written in very many pieces, mappings that last."""

from __future__ import annotations

import functools
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from project import Project


@pytest.fixture(autouse=True)
def as_root(overlay_mounts: None) -> None:
    """Mounts end with this process."""


def fill(top: Path, count: int) -> None:
    top.mkdir()
    directory = os.open(top, os.O_RDONLY)
    for number in range(count):
        os.close(os.open(f"name{number:07}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=directory))
    os.close(directory)


def list_all(top: Path) -> tuple[int, float]:
    """Return how many names a directory has, each once, and the seconds of CPU that listing it took."""
    before = os.times()
    listed = subprocess.run(["ls", "-f", top], stdout=subprocess.PIPE, check=True).stdout.splitlines()
    after = os.times()
    names = set(listed) - {b".", b".."}
    assert len(names) == len(listed) - 2, "no name twice"
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return len(names), spent


def check_many_names(project: Project, count: int) -> None:
    fill(project.source / "many", count)
    project.init()
    place = project.fork("f")
    found, first = list_all(place / "many")
    assert found == count
    (place / "many/added").touch()
    os.unlink(place / f"many/name{7:07}")
    found, merged = list_all(place / "many")
    assert found == count
    assert merged < 10 * first + 2, "linear, also when both layers have the directory"
    seen = 0
    with os.scandir(place / "many") as entries:
        for number, entry in enumerate(entries):
            seen += 1
            if number % 2:
                os.unlink(entry.path)
    assert seen == count
    left = list_all(place / "many")[0]
    assert left == count - count // 2
    project.commit(place)
    assert project.changes(place) == {}
    assert len(os.listdir(project.checkout("f") / "many")) == left
    project.document("unmount", "f")


def test_a_directory_of_many_names(project: Project) -> None:
    check_many_names(project, 5_000)


@pytest.mark.full
def test_a_directory_of_a_million_names(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "run", functools.partial(project.run, timeout=1800))
    check_many_names(project, 1_000_000)


def store_size(project: Project) -> int:
    return sum(path.stat().st_size for path in (project.store / "packs").iterdir())


MEASURED = """
import sys
from layerfs.cli.main import main

code = main(sys.argv[1:])
with open("/proc/self/status", encoding="ascii") as file:
    peak = next(line for line in file if line.startswith("VmHWM:")).split()[1]
sys.stderr.write(f"peak {peak}\\n")
sys.exit(code)
"""


def commit_peak(project: Project, place: Path) -> int:
    """Commit; return the peak of memory, in bytes.

    The process says it itself: what its parent is told of children counts what the parent had at the fork as well.
    """
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "commit", "-m", "x"],
        cwd=place,
        env=project.environment(),
        capture_output=True,
        check=True,
    )
    return int(done.stderr.split()[-1]) * 1024


@pytest.mark.parametrize("engine", ["overlay", "copy"])
def test_a_file_written_in_many_small_pieces(project: Project, engine: str) -> None:
    size = 64 << 20
    project.write(a="x\n")
    project.init()
    place = project.fork("f", engine)
    block = os.urandom(1 << 20)
    with open(place / "log", "wb", buffering=0) as file:
        for at in range(0, size, 1 << 20):
            for piece in range(0, 1 << 20, 4096):
                file.write(block[piece : piece + 100] + at.to_bytes(8, "little") + block[piece + 108 : piece + 4096])
    before = store_size(project)
    peak = commit_peak(project, place)
    with open(place / "log", "r+b", buffering=0) as file:
        for number in range(10_000):
            file.seek((number * 7919 * 4096) % size)
            file.write(bytes((number % 256,)))
    peak = max(peak, commit_peak(project, place))
    assert store_size(project) - before <= 2 * size * 1.01, "two states of noise, the second changed everywhere"
    assert peak < 200 << 20, peak
    assert project.changes(place) == {}
    project.document("unmount", "f")


def test_what_was_mapped_and_synced_is_there_after_a_remount(project: Project) -> None:
    project.write(data=bytes(8192))
    project.init()
    place = project.fork("f")
    script = (
        "import mmap, os, sys\n"
        "file = open('data', 'r+b'); view = mmap.mmap(file.fileno(), 8192)\n"
        "view[4096:4101] = b'child'; print(view[0:6].decode()); view.flush()\n"
    )
    with open(place / "data", "r+b") as file, mmap.mmap(file.fileno(), 8192) as view:
        view[0:6] = b"parent"
        assert project.execute([sys.executable, "-c", script], cwd=place).text == "parent\n"
        assert view[4096:4101] == b"child"
        view.flush()
    subprocess.run(["umount", place], check=True, timeout=20)
    project.document("mount", "f", place)
    data = (place / "data").read_bytes()
    assert data[:6] == b"parent" and data[4096:4101] == b"child"
    project.document("unmount", "f", "--commit", "-m", "mapped")
    assert (project.checkout("f") / "data").read_bytes() == data


def pour(top: Path, size: int, files: int) -> None:
    """Let a large file appear, of bytes that do not repeat, and very many small ones."""
    with (top / "large").open("wb") as file:
        for number in range(size >> 20):
            file.write(number.to_bytes(4, "big") * (1 << 18))
    for number in range(files):
        if number % 1_000 == 0:
            (top / f"d{number // 1_000}").mkdir()
        (top / f"d{number // 1_000}/{number}").write_bytes(b"%d\n" % number)


def check_nothing_is_too_much(project: Project, size: int, files: int) -> None:
    """A22: no cap blocks the commands that come after, folders of many small files count, and growth is shown."""
    project.write(text="here before\n")
    project.init()
    place = project.fork("f")
    pour(place, size, files)
    shown = project.changes(place)
    assert len(shown) == 1 + files + -(-files // 1_000)
    project.commit(place)
    assert project.changes(place) == {}
    before = project.document("stats", "main")
    after = project.document("stats", "f")
    assert after["state"]["files"] - before["state"]["files"] == files + 1
    assert after["state"]["bytes"] - before["state"]["bytes"] > size
    assert after["kinds"]["chunk"]["objects"] > files
    assert project.document("log", "f")["commits"][0]["message"] == "work"
    (place / "one more").write_text("x\n")
    project.commit(place)
    assert (project.checkout("f") / "large").stat().st_size == size
    project.document("unmount", "f")


def test_a_large_file_and_many_small_ones_appear(project: Project) -> None:
    check_nothing_is_too_much(project, 64 << 20, 3_000)


@pytest.mark.full
def test_three_gigabytes_and_two_hundred_thousand_files_appear(project: Project) -> None:
    check_nothing_is_too_much(project, 3 << 30, 200_000)

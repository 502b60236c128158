"""File system behaviour of workspaces: what a plain directory does, or a difference named in layerfs-posix(7)."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import posix_model
import posix_suite
import pytest
from mounting import SOURCE
from stranger import Stranger
from world import ROOT

from layerfs.workspace.overlay import Layers, mount_overlay, unmount

OVERLAY = {
    "a-mapping-made-before-the-first-write",
    "an-overlay-with-its-upper-here",
    "file-handles",
    "hard-link-group-of-the-base",
    "rename-of-two-names-of-a-base-file",
}
"""What an overlay does differently; the manual page says why, and nothing else may differ."""

IN_A_USER_NAMESPACE = OVERLAY - {"an-overlay-with-its-upper-here"} | {
    "giving-a-file-away",
    "inode-number-of-a-new-name-of-a-base-file",
    "rename-base-directory",
}


@pytest.fixture(autouse=True)
def as_root(overlay_mounts: None) -> None:
    """Mounts end with this process."""


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory everybody may enter: some checks act as somebody else."""
    path = Path(tempfile.mkdtemp(prefix="layerfs-posix-"))
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path)


def layerfs(top: Path, *words: str | Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LAYERFS_AUTHOR": "T <t@example.org>"}
    command = [sys.executable, "-m", "layerfs", *words]
    done = subprocess.run(command, cwd=top / "source", env=environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, (words, done.stderr)


def different(plain: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    assert plain.keys() == other.keys()
    return {name: (plain[name], other[name]) for name in plain if plain[name] != other[name]}


@pytest.mark.parametrize("engine", ["overlay", "copy"])
def test_a_workspace_behaves_like_a_plain_directory(top: Path, engine: str) -> None:
    for name in ("plain", "source"):
        (top / name).mkdir(mode=0o755)
        posix_suite.prepare(top / name)
    layerfs(top, "init", "--store", top / "store")
    plain = posix_suite.observe(top / "plain")
    assert not [name for name, found in plain.items() if "unexpected" in str(found)], plain
    layerfs(top, "mount", "main", top / "place", "--engine", engine)
    try:
        found = posix_suite.observe(top / "place")
    finally:
        layerfs(top, "unmount", "main", "--discard")
    assert different(plain, found).keys() == (OVERLAY if engine == "overlay" else set()), different(plain, found)


@pytest.mark.usefixtures("need_user_namespace")
def test_a_run_without_root_behaves_like_a_plain_directory(stranger: Stranger) -> None:
    script = stranger.top / "repo/tests/posix_suite.py"
    make = f"import sys; sys.path[:0] = ['{script.parent}']; import posix_suite; from pathlib import Path; "
    plain_top = stranger.home / "plain"
    for place in (plain_top, stranger.source):
        made = stranger.execute(
            [stranger.python, "-c", make + f"Path('{place}').mkdir(exist_ok=True); posix_suite.prepare(Path('{place}'))"]
        )
        assert made.code == 0, made
    done = stranger.execute([stranger.python, script, plain_top])
    assert done.code == 0, done
    plain = json.loads(done.out)
    assert not [name for name, found in plain.items() if "unexpected" in str(found)], plain
    stranger.ok("init")
    found = json.loads(stranger.ok("run", "main", "--discard", "--", stranger.python, script, stranger.source).out)
    assert different(plain, found).keys() == IN_A_USER_NAMESPACE, different(plain, found)


def test_the_manual_page_names_every_difference() -> None:
    page = (ROOT / "man/layerfs-posix.7").read_text().replace("\\-", "-")
    listed = OVERLAY | IN_A_USER_NAMESPACE
    for name in listed:
        assert f"\ncheck {name}\n" in page, name
    assert page.count("\ncheck ") == len(listed), "and no others"


def make_place(top: Path, engine: str, number: int) -> Path:
    """Return a prepared directory: plain, or an overlay of its own over the one base."""
    place = top / f"place{number}"
    if engine == "plain":
        posix_model.prepare(place)
        return place
    for name in (place, top / f"upper{number}", top / f"work{number}"):
        name.mkdir()
    lower, upper, work = (os.fsencode(top / name) for name in ("base", f"upper{number}", f"work{number}"))
    mount_overlay(Layers((lower,), upper, work), os.fsencode(place), source=SOURCE, volatile=True)
    return place


@pytest.mark.parametrize("engine", ["plain", "overlay"])
def test_files_against_a_model(top: Path, engine: str, pytestconfig: pytest.Config) -> None:
    numbers = itertools.count()
    posix_model.prepare(top / "base")

    def end(place: Path) -> None:
        if engine == "overlay":
            unmount(os.fsencode(place), SOURCE)

    examples = 1000 if pytestconfig.getoption("--full") else 60
    posix_model.run_model(lambda: make_place(top, engine, next(numbers)), end, examples)


@pytest.mark.usefixtures("need_user_namespace")
def test_files_of_a_run_without_root_against_a_model(stranger: Stranger, pytestconfig: pytest.Config) -> None:
    count = 2400 if pytestconfig.getoption("--full") else 400
    start = f"import sys; sys.path[:0] = ['{stranger.top}/repo/tests']; import posix_model; from pathlib import Path\n"
    make = f"for n in range({count}): posix_model.prepare(Path('{stranger.source}') / f'm{{n:04}}')"
    made = stranger.execute([stranger.python, "-c", start + make])
    assert made.code == 0, made
    stranger.ok("init")
    run = start + f"posix_model.main('{stranger.source}')"
    stranger.ok("run", "main", "--discard", "--", stranger.python, "-c", run)

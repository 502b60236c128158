"""Copies on a file system with reflinks: large files are clones of a cached base, equal, private, and free."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import Project, difference, seen

SIZE = 24 << 20


@pytest.fixture(autouse=True)
def as_root(overlay_mounts: None) -> None:
    """Mounts end with this process."""


@pytest.fixture(params=["btrfs", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small file system with reflinks, on a loop device."""
    program = shutil.which(f"mkfs.{request.param}")
    if program is None:
        pytest.skip(f"mkfs.{request.param} is not installed")
    image, place = tmp_path / "image", tmp_path / "disk"
    with open(image, "wb") as file:
        file.truncate(400 << 20)
    subprocess.run([program, "-q", image], check=True, timeout=60, capture_output=True)
    place.mkdir()
    mounted = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, timeout=60, check=False)
    if mounted.returncode:
        pytest.skip(f"{request.param} cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True, timeout=60)


def used(place: Path) -> int:
    os.sync()
    info = os.statvfs(place)
    return (info.f_blocks - info.f_bfree) * info.f_frsize


def test_a_copy_shares_blocks_with_the_cached_base(project: Project, disk: Path) -> None:
    project.write(big=os.urandom(SIZE), d__other=os.urandom(SIZE // 4), small="small\n")
    os.truncate(project.source / "d/other", SIZE)
    project.init("--store", disk / "store")
    before = seen(project.source)
    project.document("warm", "main")
    start = used(disk)
    places = [project.mount(name, "copy", disk / name) for name in ("main", "work")]
    assert used(disk) - start < SIZE // 2, "two copies, and not one of them was written"
    for place in places:
        assert difference(before, seen(place)) == {}
    with open(places[0] / "big", "r+b") as file:
        file.write(b"only in this copy")
    assert difference(before, seen(places[1])) == {}
    assert project.changes(places[0]) == {"big": "M"}
    with open(places[1] / "d/other", "r+b") as file:
        file.seek(100)
        file.write(b"changed")
    project.commit(places[1])
    project.document("unmount", "main", "--discard")
    project.document("unmount", "work")
    third = project.mount("work", "copy", disk / "third")
    assert used(disk) - start < SIZE * 2, "what is the same as in the base is still shared"
    assert difference(seen(project.checkout("work")), seen(third)) == {}
    layer = next(path for path in (disk / "store/cache").iterdir() if path.is_dir())
    assert difference(before, seen(layer)) == {}, "the cached base never changes"
    project.document("unmount", "work")
    project.fsck()


def test_a_base_that_is_not_what_it_was_is_not_cloned(project: Project, disk: Path) -> None:
    project.write(big=os.urandom(SIZE // 8))
    project.init("--store", disk / "store")
    project.document("warm", "main")
    layer = next(path for path in (disk / "store/cache").iterdir() if path.is_dir())
    (layer / "big").write_bytes(b"somebody was here")
    place = project.mount("main", "copy", disk / "place")
    assert (place / "big").read_bytes() == (project.source / "big").read_bytes()
    project.document("unmount", "main")

"""Fixtures of the workspace tests: real mounts, in a mount namespace that ends with the test process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounting import enter_private_namespace
from stranger import Stranger, a_stranger


@pytest.fixture
def overlay_mounts(need_overlay: None) -> None:
    """Let a test mount overlays in this very process; a forgotten mount cannot outlive it."""
    enter_private_namespace()


@pytest.fixture
def stranger(overlay_mounts: None) -> Iterator[Stranger]:
    """Uid 1000, for whom the directories of the interpreter and the program are mounted where he may go."""
    with a_stranger() as somebody:
        yield somebody


@pytest.fixture
def overlay_disk(stranger: Stranger) -> Iterator[Path]:
    """A directory of his on overlayfs, where no overlay can have its upper, as in a plain container."""
    place = stranger.top / "container"
    for name in ("lower", "upper", "work"):
        (stranger.top / name).mkdir()
    os.chown(stranger.top / "upper", stranger.uid, stranger.uid)
    place.mkdir()
    places = f"lowerdir={stranger.top}/lower,upperdir={stranger.top}/upper,workdir={stranger.top}/work"
    subprocess.run(["mount", "-t", "overlay", "container", "-o", places, place], check=True, timeout=20)
    yield place
    subprocess.run(["umount", "-l", place], check=True, timeout=20)

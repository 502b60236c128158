"""Fixtures of the crash tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def need_strace() -> None:
    """The test injects faults into system calls."""
    done = None
    if shutil.which("strace"):
        done = subprocess.run(["strace", "-f", "-qq", "-o", os.devnull, "true"], check=False, timeout=30)
    if done is None or done.returncode != 0:
        pytest.skip("strace cannot trace here")


@pytest.fixture
def memory(tmp_path: Path, need_root_mounts: None) -> Iterator[Path]:
    """A directory in memory: what a killed process leaves does not depend on a disk, and syncs cost nothing there."""
    from mounting import enter_private_namespace

    enter_private_namespace()
    place = tmp_path / "memory"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "none", place], check=True, timeout=20)
    yield place
    subprocess.run(["umount", "-l", place], check=True, timeout=20)

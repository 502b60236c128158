"""The test suites of other programs judge workspaces: every outcome as on a plain directory (full tier)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stranger import Stranger
from world import ROOT

JUDGES = ("cpython", "sqlite", "git", "stress-ng", "fio")
SECONDS = 3600


@pytest.mark.full
@pytest.mark.parametrize("judge", JUDGES)
def test_workspaces_of_root_give_the_outcomes_of_a_plain_directory(
    judge: str, tmp_path: Path, overlay_mounts: None
) -> None:
    words = [ROOT / "benchmarks/judges.py", "--only", judge, "--top", tmp_path, "--place", "overlay,copy"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=SECONDS, check=False)
    if "left out" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


@pytest.mark.full
@pytest.mark.parametrize("judge", JUDGES)
def test_workspaces_without_root_give_the_outcomes_of_a_plain_directory(
    judge: str, stranger: Stranger, need_user_namespace: None
) -> None:
    sources = Path(os.environ.get("TMPDIR", "/tmp")) / "layerfs-judges"
    script = stranger.top / "repo/benchmarks/judges.py"
    words = [script, "--only", judge, "--place", "run,copy", "--top", stranger.home]
    done = subprocess.run(
        [stranger.python, *words, "--sources", sources],
        cwd=stranger.source,
        env=stranger.environment(),
        user=stranger.uid,
        group=stranger.uid,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if "left out" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]

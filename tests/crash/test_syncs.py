"""C10: what a durable commit of ten thousand objects syncs: its pack, the pack's index, and the log, each once.

Apart from that, the directory of the packs, and what SQLite syncs when a process begins and ends with its database.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from project import Project


def test_a_commit_of_ten_thousand_objects_syncs_three_files_at_most(
    need_strace: None, project: Project
) -> None:
    project.write(first="x")
    project.init()
    for number in range(10_000):
        project.write(**{f"d{number % 40}__f{number}": f"content {number}\n"})
    log = project.root / "strace.log"
    trace: list[str | Path] = ["strace", "-f", "-qq", "-y", "-o", log, "-e", "trace=fsync,fdatasync,syncfs"]
    done = project.execute([*trace, sys.executable, "-m", "layerfs", "commit", "-m", "x"], cwd=project.source)
    assert done.code == 0, done.err
    calls = re.findall(r"(fsync|fdatasync|syncfs)\(\d+<([^>]*)>", log.read_text())
    files = [path for _, path in calls if "/packs/" in path]
    assert 1 <= len(files) <= 3 and len(calls) <= 10, calls
    project.fsck()

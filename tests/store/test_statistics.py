"""Statistics: what a store says of its growth is what its commits take."""

from __future__ import annotations

import random

from project import Project

COMMITS = 6


def test_growth_is_that_of_the_commits_and_not_of_the_first_capture(project: Project) -> None:
    (project.source / "blob").write_bytes(random.Random(1).randbytes(60_000))
    project.write(text="".join(f"{number}\n" for number in range(300)))
    project.init()
    assert project.document("stats")["log_bytes"] < 1_000
    for number in range(COMMITS):
        with (project.source / "text").open("a", encoding="utf-8") as file:
            file.write(f"line {number}\n")
        project.document("commit", "-m", f"commit {number}", cwd=project.source)
    found = project.document("stats")
    assert 100 * COMMITS < found["log_bytes"] < 2_000 * COMMITS
    assert found["per_commit_bytes"] == found["log_bytes"] // COMMITS
    assert found["commits"] == COMMITS + 1

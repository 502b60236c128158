"""Names of branches and tags: git's rules, and nothing that could be another kind of revision."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from layerfs.errors import UsageError
from layerfs.store.refs import branch_ref, check_name, name_problem, short_ref

GOOD = ["a", "agent-1", "feature/x", "x.y", "über", "v1.0", "fix@home", "L", "Lx", "beef", "a" * 200, "feature", "x-L7"]
BAD_FOR_GIT = [
    "", ".a", "a..b", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b", "a/", "/a", "a//b", "a.lock", "a/.b",
    "a.", "a@{1}", "@", "a\x7f", "a\tb", "a\nb", "x.lock/y",
]  # fmt: skip
BAD_HERE = ["main", "HEAD", "refs", "refs/heads/x", "L7", "l12", "abcdef", "ABCDEF01", "deadbeef", "-x", "@x", "a" * 201]


@pytest.mark.parametrize("name", GOOD)
def test_good_names(name: str) -> None:
    assert check_name(name) == name
    assert short_ref(branch_ref(name)) == name


@pytest.mark.parametrize("name", BAD_FOR_GIT + BAD_HERE)
def test_bad_names(name: str) -> None:
    assert name_problem(name)
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle")
def test_git_agrees() -> None:
    def git_takes(name: str) -> bool:
        return subprocess.run(["git", "check-ref-format", "refs/heads/" + name], check=False).returncode == 0

    for name in GOOD:
        assert git_takes(name), name
    for name in BAD_FOR_GIT:
        if name != "@":
            assert not git_takes(name), name

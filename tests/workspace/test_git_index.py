"""Git's index in a workspace: the first status reads no more than it must, and file identities are stable."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from project import Project

FILES = 2000
SETTINGS = {
    "default": [],
    "no ctime": ["-c", "core.trustctime=false"],
    "minimal": ["-c", "core.checkStat=minimal", "-c", "core.trustctime=false"],
}


@pytest.fixture(autouse=True)
def as_root(overlay_mounts: None) -> None:
    """Mounts end with this process."""


@pytest.fixture
def repository(project: Project) -> Project:
    for name in ("git", "strace"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    for number in range(FILES):
        path = project.source / f"d{number % 20}/f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"content %d\n" % number)
        os.utime(path, ns=(10**18, 10**18 + number))
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x"]):
        assert project.execute(["git", *words], cwd=project.source).code == 0
    assert project.execute(["git", "status", "--porcelain"], cwd=project.source).out == b""
    project.init()
    return project


def git(project: Project, place: Path, *words: str) -> None:
    """Run git in a place, which must work."""
    done = project.execute(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=place)
    assert done.code == 0, done


def reads(project: Project, place: Path, settings: list[str], trace: Path) -> int:
    """Run git status in a place; return how many tracked files it opened. The index stays as it is."""
    words = ["strace", "-f", "-qq", "-e", "trace=openat", "-o", trace, "git", "--no-optional-locks", *settings]
    done = project.execute([*words, "status", "--porcelain"], cwd=place)
    assert (done.code, done.out) == (0, b""), done
    return sum(1 for line in trace.read_text().splitlines() if '"d' in line and "/f" in line)


def test_the_first_status_in_a_mount(repository: Project, tmp_path: Path) -> None:
    """With git's default every tracked file is read once: restored files have new change times and inodes.

    With the settings that ``layerfs run`` gives, none is, in no engine. Once git has written its index, the default reads
    none either, in this workspace and in every later mount of what it commits.
    """
    counts = {}
    for engine in ("overlay", "copy"):
        place = repository.fork(engine, engine)
        for name, settings in SETTINGS.items():
            counts[engine, name] = reads(repository, place, settings, tmp_path / "trace")
    assert {key: count for key, count in counts.items() if key[1] == "minimal"} == {
        ("overlay", "minimal"): 0,
        ("copy", "minimal"): 0,
    }
    assert counts["overlay", "default"] <= FILES and counts["overlay", "no ctime"] <= FILES
    place = repository.work / "ws-overlay"
    assert repository.execute(["git", "status", "--porcelain"], cwd=place).out == b"", "this one writes the index"
    assert reads(repository, place, [], tmp_path / "trace") == 0
    (place / ".git/description").write_text("something that is work\n")
    repository.commit(place, "work, and git's index with it")
    repository.document("unmount", "overlay")
    place = repository.mount("overlay", "overlay", place)
    assert reads(repository, place, [], tmp_path / "trace") == 0, "inodes and change times are those of the layers"
    repository.document("fork", "again", "--from", "overlay")
    again = repository.mount("again")
    assert reads(repository, again, [], tmp_path / "trace") == 0, "and other workspaces show the same"


def test_a_repository_with_these_settings_is_never_read_and_a_large_one_without_is_told(
    repository: Project, tmp_path: Path
) -> None:
    def said(name: str) -> bytes:
        repository.document("fork", name, "--from", "work")
        return repository.run("mount", name, repository.work / name, cwd=repository.source).err

    assert b"git status" not in said("small")
    long_index = repository.source / ".git/index"
    plain = long_index.read_bytes()
    long_index.write_bytes(plain + bytes(1 << 20))
    repository.commit(repository.source)
    assert b"'git config core.checkStat minimal'" in said("large")
    long_index.write_bytes(plain)
    for setting in (("core.checkStat", "minimal"), ("core.trustctime", "false")):
        git(repository, repository.source, "config", *setting)
    repository.commit(repository.source)
    assert b"git status" not in said("settled")
    assert reads(repository, repository.work / "settled", [], tmp_path / "trace") == 0


@pytest.mark.parametrize("engine", ["overlay", "copy", "source"])
def test_what_git_remembers_of_files_it_looked_at_is_nobodys_work(repository: Project, engine: str) -> None:
    """A status writes the index; whoever did no more than that has nothing to commit, to lose or to be asked about."""
    place = repository.source if engine == "source" else repository.fork("f", engine)
    if engine == "source":
        os.utime(place / "d0/f0", ns=(10**18, 10**18 + 1))
        repository.commit(place, "a time")
    index = (place / ".git/index").read_bytes()
    git(repository, place, "status")
    assert (place / ".git/index").read_bytes() != index, "else nothing is shown here"
    assert repository.changes(place) == {}
    assert repository.run("diff", "--exit-code", cwd=place).code == 0
    assert repository.run("commit", "-m", "nothing", cwd=place).text == "nothing to commit\n"
    (place / "d1/f1").write_bytes(b"work\n")
    git(repository, place, "add", ".")
    assert {".git/index", "d1/f1"} <= repository.changes(place).keys(), "what is staged is work"
    repository.commit(place)
    git(repository, place, "status")
    assert repository.changes(place) == {}
    if engine != "source":
        (place / "d1/f1").touch()
        git(repository, place, "status")
        assert repository.changes(place) == {"d1/f1": "M"}
        os.utime(place / "d1/f1", ns=(1, 1))
        repository.commit(place)
        git(repository, place, "status")
        repository.document("unmount", "f")
        assert [row["name"] for row in repository.document("workspace", "list")["workspaces"]] == ["source"]


@pytest.mark.parametrize("way", ["run", "shell environment"])
def test_the_first_status_in_a_run_reads_nothing(repository: Project, tmp_path: Path, way: str) -> None:
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-qq", "-e", "trace=openat", "-o", trace, "git", "status", "--porcelain"]
    if way != "run":
        command = ["sh", "-c", f"strace -f -qq -e trace=openat -o {trace} git status --porcelain"]
    done = repository.run("run", "main", "--discard", "--", *command, cwd=repository.source)
    assert (done.code, done.out) == (0, b""), done
    assert not [line for line in trace.read_text().splitlines() if '"d' in line and "/f" in line]


def identities(top: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(top)): (os.lstat(path).st_ino, os.lstat(path).st_ctime_ns)
        for path in top.rglob("*")
        if ".git" not in path.parts and path.name != ".layerfs"
    }


def test_inodes_and_change_times_are_stable_across_remounts(project: Project) -> None:
    project.write(a="a\n", d__b="b\n", d__c="c\n")
    (project.source / "link").symlink_to("a")
    project.init()
    place = project.fork("f")
    before = identities(place)
    project.document("unmount", "f")
    place = project.mount("f", where=place)
    assert identities(place) == before, "nothing was changed"
    (place / "a").write_bytes(b"changed\n")
    (place / "new").write_bytes(b"new\n")
    inodes = {name: inode for name, (inode, _) in identities(place).items()}
    assert inodes["a"] == before["a"][0], "a copy-up keeps the number"
    subprocess.run(["umount", place], check=True, timeout=20)
    project.document("mount", "f", place)
    assert {name: inode for name, (inode, _) in identities(place).items()} == inodes, "healed, with its upper"
    project.commit(place)
    project.document("unmount", "f")
    place = project.mount("f", where=place)
    after = identities(place)
    assert {name for name in before if after[name] != before[name]} <= {"a", "d", "new"}, "only what was changed"
    other = project.fork("g", start="f")
    assert identities(other) == after, "every workspace of a state shows the same"
    project.document("unmount", "g")
    project.document("unmount", "f")

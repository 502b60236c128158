"""Bad input by hand: hostile revisions and names, damaged stores, closed directories, full disks; never a traceback.

Each is one clear error line and a documented exit code, and what was acknowledged before is still there afterwards.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import Project, assert_no_traceback, refusal, seen
from world import World

from layerfs.cli.registry import COMMANDS, Needs

REVISIONS: tuple[str | bytes, ...] = (
    "",
    " ",
    "@{",
    "@{99999999999999999999}",
    "main~99999999999999999999999",
    "main^2",
    "main:..",
    "main:/etc/passwd",
    b"main:\xff",
    b"\xff\xfe",
    "L0",
    "L99999999999999999999",
    "0" * 64,
    "f" * 65,
    "refs/heads/../x",
    "a\nb",
    "x" * 5000,
    "a..b",
    "^main",
    "main@{yesterday}",
    "@^^^^",
    "main:f:f",
    "\u00e9",
    "main:nope",
)
SWEPT = ("rev-parse", "mount", "diff", "restore", "fork")
RANGES = ("log", "diff")
"""Commands that take any number of words: an empty one is none, and two dots make a range."""


@pytest.fixture
def small(project: Project) -> Project:
    project.write(f="a\n", d__g="b\n")
    project.init()
    return project


@pytest.mark.parametrize("revision", REVISIONS, ids=range(len(REVISIONS)))
def test_hostile_revisions(small: Project, revision: str | bytes) -> None:
    held = seen(small.source)
    before = small.run("show-ref", cwd=small.source).out
    for name in SWEPT:
        words: list[str | bytes | Path] = [name, revision]
        if name == "mount":
            words += [small.work / "ws", "--engine", "copy"]
        elif name == "fork":
            words = ["fork", "new", "--from", revision]
        done = small.run(*words, cwd=small.source)
        assert_no_traceback(done)
        assert done.code != 0 or (name in RANGES and b".." in os.fsencode(revision)), (
            words,
            done.out,
        )
        assert b"layerfs: error: " in done.err or done.code == 0
    assert seen(small.source) == held
    assert small.run("show-ref", cwd=small.source).out == before
    assert not (small.work / "ws").exists()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-x",
        "a b",
        "..",
        "a..b",
        "a/",
        "/a",
        "a//b",
        "main",
        "L1",
        "HEAD~1",
        "a\nb",
        "x" * 300,
        "@",
        "a:b",
        "a.lock",
    ],
)
def test_names_that_no_branch_may_have(small: Project, name: str) -> None:
    for words in (
        ["fork", "--", name],
        ["commit", "--allow-empty", "-m", "x", "--as", name],
        ["tag", "--", name],
    ):
        done = small.run(*words, cwd=small.source)
        assert_no_traceback(done)
        if done.code == 0:
            continue
        assert b"layerfs: error: " in done.err
    listed = small.document("show-ref")["refs"]
    for ref in listed:
        assert not ref["name"].endswith(("/", ".lock")) or ref["name"] == f"refs/tags/{name}"
    small.fsck()


@pytest.mark.parametrize("row", [row for row in COMMANDS if row.name != "help"], ids=lambda row: row.name)
def test_no_command_meets_nothing_or_too_much_with_a_traceback(world: World, row: object) -> None:
    name, needs = row.name, row.needs  # type: ignore[attr-defined]
    for words in (
        [],
        ["--no-such-option"],
        ["a", "b", "c", "d", "e"],
        ["--store", "/dev/null"],
        ["-C", "/nowhere"],
    ):
        if name == "init" and not words:
            continue
        done = world.run(*name.split(), *words)
        assert_no_traceback(done)
        if needs is not Needs.NONE:
            assert done.code != 0
            assert b"layerfs: error: " in done.err


def damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 0x55
    os.chmod(path, 0o600)
    path.write_bytes(data)


COMMANDS_ON_DAMAGE = (
    ["status"],
    ["log"],
    ["commit", "-m", "x"],
    ["checkout", "main", "--to", "../out"],
    ["publish", "work"],
    ["verify-pack"],
    ["workspace", "list"],
)


@pytest.mark.parametrize("what", ["format", "meta.db", "pack", "idx"])
@pytest.mark.parametrize("where", [0, 40, -20])
def test_flipped_bytes_are_found_never_returned(project: Project, what: str, where: int) -> None:
    for number in range(20):
        project.write(**{f"f{number}": os.urandom(9000)})
    project.write(big=os.urandom(9_000_000 if what == "idx" else 200_000))
    project.init()
    wanted = seen(project.source)
    for path in project.store.glob("meta.db-*"):
        path.unlink()
    victims = {
        "format": [project.store / "format"],
        "meta.db": [project.store / "meta.db"],
        "pack": sorted(project.store.glob("packs/*.pack")),
        "idx": sorted(project.store.glob("packs/*.idx")),
    }[what]
    assert victims
    for victim in victims:
        damage(victim, where)
    project.write(new="new\n")
    failed = 0
    for words in COMMANDS_ON_DAMAGE:
        done = project.run(*words, cwd=project.source)
        assert_no_traceback(done)
        if words[0] == "verify-pack" and done.code == 1:
            failed += 1
        elif done.code not in (0, 1, 3):
            failed += 1
            assert done.code in (10, 13, 20, 30, 40), (words, done)
            assert done.err.count(b"layerfs: error: ") == 1
        elif words[0] == "checkout":
            found = seen(project.work / "out")
            assert found == wanted, "wrong bytes were returned"
        if (project.work / "out").exists():
            shutil.rmtree(project.work / "out")
    if what == "pack" and where > 0:
        assert failed, "nothing noticed the damage"


@pytest.mark.parametrize(
    "how", ["a file", "empty", "dangling", "garbage pointer", "no packs", "format gone", "fifo"]
)
def test_stores_that_are_none(small: Project, how: str) -> None:
    store = small.store
    pointer = small.source / ".layerfs"
    if how == "a file":
        shutil.rmtree(store)
        store.write_bytes(b"not a store\n")
    elif how == "empty":
        shutil.rmtree(store)
        store.mkdir()
    elif how == "dangling":
        pointer.write_bytes(b"/nowhere/at/all\n")
    elif how == "garbage pointer":
        pointer.write_bytes(os.urandom(5000).replace(b"\n", b"") + b"\n")
    elif how == "no packs":
        shutil.rmtree(store / "packs")
    elif how == "format gone":
        (store / "format").unlink()
    else:
        (store / "format").unlink()
        os.mkfifo(store / "format")
    for words in (
        ["status"],
        ["commit", "-m", "x"],
        ["log"],
        ["mount", "main"],
        ["checkout", "main", "--to", "../o"],
    ):
        done = small.run(*words, cwd=small.source, timeout=30)
        line = refusal(done, done.code)
        assert done.code in (10, 30), (words, line)


@pytest.fixture
def little_disk(need_root_mounts: None, tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    place = tmp_path / "little"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", place], check=True, timeout=20)
    yield place
    subprocess.run(["umount", "-l", place], check=True, timeout=20)


def test_a_full_disk_publishes_nothing_and_can_still_be_read(project: Project, little_disk: Path) -> None:
    project.write(a="a\n", b=os.urandom(2_000_000))
    project.init("--store", little_disk / "store")
    before = seen(project.source)
    project.write(huge=os.urandom(30_000_000))
    for words in (["commit", "-m", "x"], ["commit", "-m", "x", "--as", "other"]):
        message = refusal(project.run(*words, cwd=project.source), 40)
        assert "no space" in message.lower() or "space" in message.lower()
    filler = little_disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    (project.source / "huge").write_bytes(b"small\n")
    done = project.run("commit", "-m", "x", cwd=project.source)
    assert_no_traceback(done)
    assert done.code in (0, 40), done.err
    for words in (
        ["log"],
        ["status"],
        ["branch"],
        ["workspace", "list"],
        ["checkout", "main", "--to", "../out"],
    ):
        done = project.run(*words, cwd=project.source)
        assert_no_traceback(done)
        assert done.code == 0, (words, done.err)
    assert seen(project.work / "out") == before
    filler.unlink()
    assert project.run("commit", "-m", "x", cwd=project.source).code == 0
    assert (project.checkout("work") / "huge").read_bytes() == b"small\n"
    project.fsck()


def test_an_init_on_a_full_disk_leaves_nothing(project: Project, little_disk: Path) -> None:
    project.write(huge=os.urandom(30_000_000))
    refusal(project.run("init", "--store", little_disk / "store", cwd=project.source), 40)
    assert not (little_disk / "store").exists()
    assert sorted(os.listdir(project.source)) == ["huge"]


def test_a_checkout_onto_a_full_disk_says_so(project: Project, little_disk: Path) -> None:
    project.write(huge=os.urandom(30_000_000))
    project.init()
    message = refusal(project.run("checkout", "main", "--to", little_disk / "out", cwd=project.source), 40)
    assert "space" in message and "huge" in message
    assert os.listdir(little_disk) == [], "the directory was new, so it is gone again"
    (little_disk / "mine").mkdir(mode=0o750)
    refusal(project.run("checkout", "main", "--to", little_disk / "mine", cwd=project.source), 40)
    assert os.listdir(little_disk / "mine") == [], "this one was there and empty, and is so again"
    assert stat.S_IMODE(os.lstat(little_disk / "mine").st_mode) == 0o750
    message = refusal(
        project.run("mount", "main", little_disk / "ws", "--engine", "copy", cwd=project.source), 40
    )
    assert "main" not in [row["name"] for row in project.document("workspace", "list")["workspaces"]]


def test_deep_trees_and_long_paths(project: Project) -> None:
    """Paths far beyond PATH_MAX: captured, compared, checked out, removed."""
    top = os.open(project.source, os.O_RDONLY)
    at = top
    depth = 400
    for level in range(depth):
        os.mkdir(f"level-{level}", dir_fd=at)
        inner = os.open(f"level-{level}", os.O_RDONLY, dir_fd=at)
        if at != top:
            os.close(at)
        at = inner
    os.close(os.open("leaf", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=at))
    os.close(at)
    os.close(top)
    project.init()
    for words in (
        ["status"],
        ["commit", "-m", "x", "--allow-empty"],
        ["ls-tree", "-r", "main"],
        ["checkout", "main", "--to", "../out"],
    ):
        done = project.run(*words, cwd=project.source)
        assert_no_traceback(done)
        assert done.code == 0, (words, done.err[:500])
    for place in (project.source, project.work / "out"):
        assert (
            subprocess.run(["find", place, "-name", "leaf"], capture_output=True, check=True).stdout.count(
                b"\n"
            )
            == 1
        )
        subprocess.run(["rm", "-rf", place / "level-0"], check=True, timeout=60)
    assert project.run("status", cwd=project.source).code == 0


@pytest.mark.parametrize("what", ["message", "expect", "exclude", "author"])
def test_odd_option_values(small: Project, what: str) -> None:
    small.write(f="new\n")
    words: dict[str, list[list[str | bytes]]] = {
        "message": [["commit", "-m", "\udcff"], ["commit", "-m", ""], ["commit", "-m", "x" * 100_000]],
        "expect": [
            ["publish", "work", "--expect", "x"],
            ["publish", "work", "--expect", "L-1"],
            ["commit", "--expect", "q"],
        ],
        "exclude": [["init", "--exclude", "[", small.work], ["init", "--exclude", "", small.work]],
        "author": [["commit", "--author", "\udcff\n"], ["commit", "--author", ""]],
    }
    for line in words[what]:
        done = small.run(
            *[os.fsencode(word) if isinstance(word, str) else word for word in line], cwd=small.source
        )
        assert_no_traceback(done)
    small.fsck()

"""Lines of work meet: merge, join, publish in every mode, update and restore; nobody's work is lost or covered unseen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from project import Project, difference, refusal, seen

LINES = "".join(f"{number}\n" for number in range(1, 13))


@pytest.fixture
def p(project: Project) -> Project:
    project.write(text=LINES, d__one="1\n", d__two="2\n", gone="x\n")
    project.init()
    return project


def edit(place: Path, **lines: str) -> None:
    """Replace numbered lines of ``text``: ``edit(place, _3="three")``."""
    text = (place / "text").read_text().splitlines()
    for name, line in lines.items():
        text[int(name[1:]) - 1] = line
    (place / "text").write_text("".join(f"{line}\n" for line in text))


def branch(p: Project, name: str, *, start: str = "main") -> Path:
    return p.fork(name, "copy", start=start)


def test_merge_combines_content_modes_deletes_and_kinds(p: Project) -> None:
    a, b = branch(p, "a"), branch(p, "b")
    edit(a, _1="ONE")
    os.chmod(a / "d/one", 0o755)
    os.unlink(a / "gone")
    (a / "only a").write_text("a\n")
    edit(b, _12="TWELVE")
    os.chmod(b / "d/two", 0o600)
    (b / "new dir").mkdir()
    os.symlink("../text", b / "new dir/link")
    p.commit(a)
    p.commit(b)
    merged = p.document("merge", "b", "--into", "a")
    assert merged["how"] == "merge"
    out = p.checkout("a")
    assert (out / "text").read_text() == LINES.replace("1\n", "ONE\n", 1).replace("12\n", "TWELVE\n")
    assert os.stat(out / "d/one").st_mode & 0o777 == 0o755
    assert os.stat(out / "d/two").st_mode & 0o777 == 0o600
    assert not (out / "gone").exists()
    assert os.readlink(out / "new dir/link") == "../text"
    assert p.document("merge", "b", "--into", "a")["how"] is None
    parents = p.document("log", "a")["commits"][0]["parents"]
    assert len(parents) == 2
    p.document("update", cwd=a)
    assert difference(seen(a, times=False), seen(out, times=False)) == {}
    p.fsck()


CONFLICTS = {
    "content": (lambda place: edit(place, _5="A"), lambda place: edit(place, _5="B"), "text"),
    "delete against change": (
        lambda place: os.unlink(place / "text"),
        lambda place: edit(place, _5="B"),
        "text",
    ),
    "add against add": (
        lambda place: (place / "new").write_text("a\n"),
        lambda place: (place / "new").write_text("b\n"),
        "new",
    ),
    "file against directory": (
        lambda place: (place / "new").write_text("a\n"),
        lambda place: (place / "new/below").mkdir(parents=True),
        "new",
    ),
    "binary": (
        lambda place: (place / "gone").write_bytes(b"\0a"),
        lambda place: (place / "gone").write_bytes(b"\0b"),
        "gone",
    ),
}


@pytest.mark.parametrize("kind", CONFLICTS)
@pytest.mark.parametrize("flip", [False, True])
def test_a_conflict_creates_nothing(p: Project, kind: str, flip: bool) -> None:
    ours, theirs, path = CONFLICTS[kind]
    a, b = branch(p, "a"), branch(p, "b")
    (theirs if flip else ours)(a)
    (ours if flip else theirs)(b)
    (b / "innocent").write_text("x\n")
    p.commit(a)
    p.commit(b)
    before = p.run("show-ref", cwd=p.source).out
    for words in (["merge", "b", "--into", "a"], ["merge", "b", "--into", "a", "--as", "new"]):
        found = p.document(*words, codes=(1,))
        assert path in [conflict["path"].split("/")[0] for conflict in found["conflicts"]]
    p.document("publish", "a")
    before = p.run("show-ref", cwd=p.source).out
    assert p.document("publish", "b", codes=(1,))["layer"] is None
    held = seen(b)
    assert p.document("update", "main", codes=(1,), cwd=b)["changes"] == []
    assert seen(b) == held
    assert p.run("show-ref", cwd=p.source).out == before
    assert p.changes(b) == {}


def test_update_carries_uncommitted_work(p: Project) -> None:
    a = branch(p, "a")
    edit(a, _1="ONE")
    (a / "from a").write_text("a\n")
    os.unlink(a / "gone")
    p.commit(a)
    edit(p.source, _12="uncommitted")
    (p.source / "mine").write_text("mine\n")
    (p.source / "d/one").write_text("mine too\n")
    p.document("update", "a")
    assert (p.source / "text").read_text().splitlines()[0::11] == ["ONE", "uncommitted"]
    assert (p.source / "mine").read_text() == "mine\n"
    assert not (p.source / "gone").exists()
    assert p.changes(p.source) == {"text": "M", "mine": "A", "d/one": "M"}
    p.commit(p.source)
    parents = p.document("log", "work")["commits"][0]["parents"]
    assert parents == [p.document("log", "a")["commits"][0]["commit"]]


@pytest.mark.parametrize("engine", ["overlay", "copy"])
def test_after_an_update_only_the_workspaces_own_work_shows(p: Project, engine: str) -> None:
    """What came in beside it has the time of the update, so that no build takes it for older than what was made here."""
    a = branch(p, "a")
    (a / "from a").write_text("a\n")
    os.utime(a / "from a", (1_600_000_000, 1_600_000_000))
    p.commit(a)
    p.document("fork", "b")
    b = p.mount("b", engine)
    (b / "mine").write_text("mine\n")
    p.document("update", "a", cwd=b)
    assert os.stat(b / "from a").st_mtime > 1_700_000_000
    assert p.changes(b) == {"mine": "A"}
    (b / "committed").write_text("b\n")
    p.commit(b)
    assert p.changes(b) == {}
    (b / "mine").write_text("mine again\n")
    for number in (1, 2):
        (a / "from a").write_text(f"a, {number}\n")
        (a / f"new {number}").write_text("a\n")
        p.commit(a)
        p.document("update", "a", cwd=b)
        assert p.changes(b) == {"mine": "M"}
    os.utime(b / "new 1", (1_700_000_000, 1_700_000_000))
    assert p.changes(b) == {"mine": "M", "new 1": "M"}, "another time is a change"
    (b / "mine").write_text("mine\n")
    held = seen(b)
    p.commit(b)
    assert p.changes(b) == {}
    assert difference(held, seen(p.checkout("b"))) == {}
    p.document("unmount", "b")


def test_update_that_conflicts_with_uncommitted_work_leaves_everything(p: Project) -> None:
    a = branch(p, "a")
    edit(a, _1="ONE")
    (a / "from a").write_text("a\n")
    p.commit(a)
    edit(p.source, _1="mine")
    held = seen(p.source)
    assert p.document("update", "a", codes=(1,))["conflicts"][0]["path"] == "text"
    assert seen(p.source) == held
    assert p.changes(p.source) == {"text": "M"}


def test_update_refuses_what_an_untracked_file_would_lose(p: Project) -> None:
    a = branch(p, "a")
    (a / "new").write_text("theirs\n")
    p.commit(a)
    (p.source / "new").write_text("mine, never committed\n")
    assert p.document("update", "a", codes=(1,))["conflicts"][0]["path"] == "new"
    assert (p.source / "new").read_text() == "mine, never committed\n"


def test_restore_is_byte_equal_and_loses_nothing(p: Project) -> None:
    first = seen(p.source)
    edit(p.source, _1="later")
    (p.source / "later").write_text("x\n")
    (p.source / "d/deep").mkdir()
    (p.source / "d/deep/er").write_text("x\n")
    os.unlink(p.source / "gone")
    os.chmod(p.source / "d/one", 0o700)
    p.commit(p.source)
    p.document("restore", "L1")
    assert difference(first, seen(p.source)) == {}
    p.commit(p.source, "as it was")
    assert difference(first, seen(p.checkout("work"))) == {}
    (p.source / "text").write_text("uncommitted\n")
    (p.source / "untracked").write_text("uncommitted\n")
    held = seen(p.source)
    assert "text" in refusal(p.run("restore", "work~1", cwd=p.source), 13)
    assert seen(p.source) == held
    p.document("restore", "work~1", "d")
    assert (p.source / "d/deep/er").exists()
    assert (p.source / "text").read_text() == "uncommitted\n"
    refusal(p.run("restore", "work~1", "untracked", cwd=p.source), 13)
    refusal(p.run("restore", "work~1", "text", cwd=p.source), 13)
    refusal(p.run("restore", "work~1", "no such path", cwd=p.source), 10)
    p.document("restore", "work~1", "--discard")
    assert not (p.source / "untracked").exists()
    assert (p.source / "later").exists()


def test_publish_covers_only_when_told_and_says_what(p: Project) -> None:
    a, b = branch(p, "a"), branch(p, "b")
    edit(a, _1="A")
    (a / "only a").write_text("a\n")
    edit(b, _1="B")
    p.commit(a)
    p.commit(b)
    p.document("publish", "a")
    refusal(p.run("publish", "b", "--mode", "ff", cwd=p.source), 13)
    refusal(p.run("publish", "b", "--expect", "L1", "--mode", "overwrite", cwd=p.source), 12)
    p.document("publish", "b", codes=(1,))
    assert p.document("layers")["layers"][0]["number"] == 2
    done = p.document("publish", "b", "--expect", "L2", "--mode", "overwrite")
    assert done["covered_layers"] == [2]
    assert sorted(one["path"] for one in done["covered_paths"]) == ["only a", "text"]
    assert difference(seen(b), seen(p.checkout("main"))) == {}
    shown = p.document("layers")["layers"][0]
    assert shown["covered_layers"] == [2] and len(shown["covered_ids"]) == 1
    edit(a, _12="more of a")
    p.commit(a)
    back = p.document("publish", "a", codes=(0, 1))
    assert back["layer"] is not None or back["conflicts"], "a covered branch is never up to date"
    p.fsck()


def test_publishing_a_covered_branch_again_brings_its_work_back(p: Project) -> None:
    a, b = branch(p, "a"), branch(p, "b")
    (a / "only a").write_text("a\n")
    (b / "only b").write_text("b\n")
    p.commit(a)
    p.commit(b)
    p.document("publish", "a")
    p.document("publish", "b", "--mode", "overwrite")
    assert not (p.checkout("main") / "only a").exists()
    p.document("publish", "a")
    out = p.checkout("main")
    assert (out / "only a").exists()
    assert (out / "only b").exists()


def test_rewritten_times_are_no_changes_and_hide_none(p: Project) -> None:
    """A16: two forks that touch every file and change different ones; the merge has each declared path and no others."""
    a, b = branch(p, "a"), branch(p, "b")
    for place, stamp in ((a, 1_600_000_000_000_000_001), (b, 1_600_000_000_000_000_002)):
        for path in ("text", "d/one", "d/two", "gone"):
            os.utime(place / path, ns=(stamp, stamp))
    (a / "d/one").write_text("A\n")
    os.utime(a / "d/one", ns=(5, 5))
    (b / "d/two").write_text("B\n")
    os.utime(b / "d/two", ns=(5, 5))
    p.commit(a)
    p.commit(b)
    done = p.document("merge", "b", "--into", "a")
    assert (done["how"], done["conflicts"]) == ("merge", [])
    out = p.checkout("a")
    assert [(out / name).read_text() for name in ("d/one", "d/two", "text")] == ["A\n", "B\n", LINES]


def test_git_heads_of_two_forks_do_not_overwrite_each_other(project: Project) -> None:
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")

    def run(place: Path, *words: str) -> None:
        done = project.execute([*git, *words], cwd=place)
        assert done.code == 0, done.err

    project.write(one="1\n", two="2\n")
    run(project.source, "init", "-q", ".")
    run(project.source, "add", ".")
    run(project.source, "commit", "-q", "-m", "0")
    project.init()
    a, b = project.fork("a", "copy"), project.fork("b", "copy")
    for place, name in ((a, "one"), (b, "two")):
        (place / name).write_text(f"changed in {place.name}\n")
        run(place, "commit", "-q", "-a", "-m", name)
        project.commit(place)
    done = project.run("merge", "b", "--into", "a", "--json", cwd=project.source)
    assert done.code in (0, 1)
    if done.code == 0:
        out = project.checkout("a")
        assert (out / "one").read_text().startswith("changed")
        assert (out / "two").read_text().startswith("changed")
        run(out, "fsck", "--strict")
    else:
        paths = [conflict["path"] for conflict in done.document["data"]["conflicts"]]
        assert all(path.startswith(".git/") for path in paths), paths

"""What the EXAMPLES of a porcelain page call the plumbing it amounts to does amount to it: same ids, same names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from world import World


@pytest.fixture
def project(world: World) -> World:
    """A captured directory with a second commit on its branch."""
    (world.work / "file").write_text("one\n", encoding="utf-8")
    world.ok("init")
    (world.work / "file").write_text("two\n", encoding="utf-8")
    world.ok("commit", "-m", "two")
    return world


def refs(world: World) -> list[str]:
    return world.ok("show-ref").text.splitlines()


Step = Callable[[], object]


def both_ways(world: World, porcelain: Step, undo: Step, plumbing: Step) -> None:
    """Run a command, take it back, run its plumbing, and demand the same refs."""
    porcelain()
    after = refs(world)
    undo()
    plumbing()
    assert refs(world) == after


def test_fork(project: World) -> None:
    head = project.ok("rev-parse", "main").text.strip()
    both_ways(
        project,
        lambda: project.ok("fork", "fix-a", "--from", "main"),
        lambda: project.ok("branch", "-d", "fix-a"),
        lambda: project.ok("update-ref", "refs/heads/fix-a", head, "0" * 64),
    )


def test_tag(project: World) -> None:
    both_ways(
        project,
        lambda: project.ok("tag", "works", "main"),
        lambda: project.ok("tag", "-d", "works"),
        lambda: project.ok("update-ref", "refs/tags/works", "main"),
    )


def test_branch(project: World) -> None:
    project.ok("fork", "fix-a")
    head = project.ok("rev-parse", "fix-a").text.strip()
    both_ways(
        project,
        lambda: project.ok("branch", "-d", "fix-a"),
        lambda: project.ok("fork", "fix-a", "--from", head),
        lambda: project.ok("update-ref", "-d", "refs/heads/fix-a", head),
    )


def test_log(project: World) -> None:
    shown = [commit["commit"] for commit in project.ok("log", "work", "--joins", "--json").document["data"]["commits"]]
    assert shown == project.ok("rev-list", "work").text.split()


def test_layers(project: World) -> None:
    shown = project.ok("layers", "--json").document["data"]["layers"]
    lines = [line.split()[:3] for line in project.ok("ls-layers").text.splitlines()]
    assert [[str(layer["number"]), layer["id"], layer["commit"]] for layer in shown] == lines


def test_show_and_diff(project: World) -> None:
    raw = [line.split("\t")[1] for line in project.ok("diff-tree", "main", "work").text.splitlines()]
    document = project.ok("diff", "main", "work", "--times", "--json").document
    assert [change["path"] for change in document["data"]["changes"]] == raw
    assert project.ok("show", "work:file").out == project.ok("cat-file", "chunk", "work:file").out == b"two\n"


def test_a_commit_made_of_its_parts(project: World) -> None:
    """A tree written by plumbing is the tree that commit recorded."""
    root = project.ok("write-tree", ".").text.strip()
    assert root == project.ok("show", "work", "--json").document["data"]["root"]
    made = project.ok("commit-tree", root, "-p", "main", "-m", "again").text.strip()
    project.ok("update-ref", "refs/heads/again", made)
    assert not project.ok("diff-tree", "work", "again").out
    assert project.ok("merge-base", "work", "again").out == project.ok("rev-parse", "main").out

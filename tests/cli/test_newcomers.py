"""What a newcomer broke in an afternoon: each case once lost work, or said something that was not so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from world import World


@pytest.fixture
def project(world: World) -> Path:
    path = world.work / "project"
    path.mkdir()
    (path / "file").write_bytes(b"one\n")
    world.ok("init", "--store", world.work / "store", cwd=path)
    return path


def mount(world: World, project: Path, name: str, *options: str) -> Path:
    return Path(world.ok("mount", name, *options, cwd=project).text.strip())


def test_an_empty_word_names_nothing(world: World, project: Path) -> None:
    world.ok("fork", "a", cwd=project)
    place = mount(world, project, "a", "--engine", "copy")
    (place / "work").write_bytes(b"precious")
    for words in (
        ("run", "", "--", "true"),
        ("mount", ""),
        ("publish", ""),
        ("update", ""),
        ("merge", "", "--into", "a"),
    ):
        assert world.run(*words, cwd=project).code == 2, words
    for words in (
        ("fork", "x", "--from", ""),
        ("branch", "reset", "a", ""),
        ("update-ref", "refs/heads/a", ""),
    ):
        assert world.run(*words, cwd=project).code == 2, words
    assert world.ok("status", cwd=place).text.endswith("A\twork\n")
    world.ok("unmount", place, "--discard", cwd=project)


def test_a_mistyped_workspace_is_not_the_one_around(world: World, project: Path) -> None:
    place = mount(world, project, "work", "--engine", "copy")
    (place / "work.txt").write_bytes(b"precious")
    (place / "sub").mkdir()
    for word in ("nosuchname", "sub", "sub/nosuch", str(place / "nosuch")):
        for command in (("unmount", word, "--discard"), ("workspace", "remove", word, "--discard")):
            assert world.run(*command, cwd=place).code == 10, (command, word)
    assert (place / "work.txt").read_bytes() == b"precious"
    assert world.run("unmount", "nosuchname", cwd=project).code == 10
    world.ok("unmount", place, "--discard", cwd=Path("/"))
    assert not place.exists()


def test_a_stale_workspace_is_never_taken_for_itself(world: World, project: Path, need_overlay: None) -> None:
    world.ok("fork", "a", cwd=project)
    place = mount(world, project, "a")
    (place / "work").write_bytes(b"precious")
    subprocess.run(["umount", place], check=True)
    assert "its mount is gone" in world.ok("status", cwd=place).text
    for words in (("commit", "-m", "x"), ("restore", "L1"), ("update",)):
        assert world.run(*words, cwd=place).code == 13, words
    assert world.ok("run", "--in", "a", "--", "cat", "work", cwd=project).out == b"precious"
    place = mount(world, project, "a")
    assert (place / "work").read_bytes() == b"precious"
    subprocess.run(["umount", place], check=True)
    (place / "stray").write_bytes(b"not in the workspace")
    assert world.run("mount", "a", cwd=project).code == 13
    world.ok("workspace", "remove", "a", "--discard", cwd=project)
    assert (place / "stray").exists()


def test_a_clean_update_keeps_times(world: World, project: Path, need_overlay: None) -> None:
    world.ok("fork", "b", cwd=project)
    world.ok(
        "run",
        "b",
        "--commit",
        "-m",
        "b",
        "--",
        "sh",
        "-c",
        "echo two >new; touch -d @1600000000 new",
        cwd=project,
    )
    os.utime(project, ns=(1, 1))
    world.ok("update", "b", cwd=project)
    assert (project / "new").stat().st_mtime == 1_600_000_000
    assert world.ok("status", cwd=project).text.endswith("nothing changed since the last commit\n")


def test_runs_side_by_side_know_their_own_processes(world: World, project: Path, need_overlay: None) -> None:
    names = [f"p{number}" for number in range(5)]
    world.ok("fork", *names, cwd=project)
    for _ in range(3):
        running = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "layerfs",
                    "run",
                    name,
                    "--commit",
                    "--",
                    "sh",
                    "-c",
                    f"echo {name} >>file",
                ],
                cwd=project,
                env=world.environment(),
                stderr=subprocess.PIPE,
            )
            for name in names
        ]
        for process in running:
            _, err = process.communicate()
            assert process.returncode == 0 and b"still run" not in err, err
    listed = world.ok("workspace", "list", "--json", cwd=project).document["data"]["workspaces"]
    assert [one["name"] for one in listed] == ["source"]


def test_a_commit_that_cannot_be_is_refused_before_the_command_runs(
    world: World, project: Path, need_overlay: None
) -> None:
    done = world.run("run", "L1", "--commit", "--", "sh", "-c", "echo I RAN", cwd=project)
    assert done.code == 13 and done.out == b""


def test_a_run_document_stands_alone(world: World, project: Path, need_overlay: None) -> None:
    done = world.run("run", "work", "--json", "--", "printf", "abc", cwd=project)
    assert done.document["data"]["exit_code"] == 0
    assert b"abc" in done.err


def test_a_half_deleted_block_is_not_decided(world: World, project: Path, need_overlay: None) -> None:
    world.ok("fork", "b", cwd=project)
    world.ok("run", "b", "--commit", "--", "sh", "-c", "echo two >file", cwd=project)
    (project / "file").write_bytes(b"three\n")
    world.ok("commit", "-m", "three", cwd=project)
    assert world.run("update", "b", "--mark", cwd=project).code == 1
    (project / "file").write_bytes(b"three\n||||||| base\ntwo\n")
    assert world.run("commit", "-m", "merged", cwd=project).code == 1
    (project / "file").write_bytes(b"three\ntwo\n")
    world.ok("commit", "-m", "merged", cwd=project)


def test_taking_a_file_for_a_directory_is_done_whole(world: World, project: Path, need_overlay: None) -> None:
    world.ok("fork", "b", cwd=project)
    world.ok("run", "b", "--commit", "--", "sh", "-c", "echo file >d", cwd=project)
    (project / "d").mkdir()
    (project / "d" / "n").write_bytes(b"ours")
    world.ok("commit", "-m", "directory", cwd=project)
    assert world.run("update", "b", "--mark", cwd=project).code == 1
    world.ok("resolve", "d", "--theirs", cwd=project)
    assert (project / "d").read_bytes() == b"file\n"
    world.ok("commit", "-m", "merged", cwd=project)


def test_words_for_people(world: World, project: Path) -> None:
    assert world.run("config", "set", "workspace.engine", "fuse", cwd=project).code == 2
    assert b"layerfs commit" in world.run("add", cwd=project).err
    assert b"workspace" in world.ok("help", "workspace list", cwd=project).out
    assert b"\\(" not in world.ok("help", "init", cwd=project).out
    (project / "file").write_bytes(b"two\n")
    world.ok("commit", "-m", "esc \x1b[31m here", cwd=project)
    assert b"\x1b" not in world.ok("log", cwd=project).out


def test_a_directory_is_recorded_from_outside_of_every_workspace(world: World, project: Path) -> None:
    world.ok("fork", "nightly", cwd=project)
    job = world.work / "job"
    job.mkdir()
    (job / "artifact").write_bytes(b"built\n")
    store = world.work / "store"
    words = ("--store", store, "commit", "--from", job, "-m", "build")
    world.ok(*words, "--branch", "nightly", cwd=job)
    assert world.ok("ls-tree", "nightly", cwd=project).text.endswith("\tartifact\n")
    world.ok(*words, "--as", "hourly", cwd=job)
    assert world.ok("ls-tree", "hourly", cwd=project).text.endswith("\tartifact\n")
    assert world.run(*words, cwd=job).code == 2, "no branch is named, and there is no workspace to take it from"
    assert world.run(*words, "--branch", "nosuch", cwd=job).code == 10


def test_an_option_of_commit_that_would_do_nothing_is_refused(world: World, project: Path) -> None:
    world.ok("fork", "nightly", cwd=project)
    (project / "file").write_bytes(b"two\n")
    assert world.run("commit", "--branch", "nightly", "-m", "there", cwd=project).code == 2
    assert world.run("commit", "--from", ".", "--branch", "nightly", "--freeze", cwd=project).code == 2
    assert world.ok("status", cwd=project).text.endswith("M\tfile\n")


def test_update_from_elsewhere_names_what_the_branch_still_has(world: World, project: Path) -> None:
    world.ok("fork", "other", cwd=project)
    world.ok("commit", "--from", project, "--branch", "work", "--allow-empty", "-m", "moved on", cwd=project)
    told = world.run("update", "other", cwd=project)
    assert told.code == 0
    assert "already up to date" in told.text
    assert b"the branch is 1 commit ahead" in told.err


def test_a_moved_project_is_not_run_in_as_if_it_were_the_workspace(world: World, project: Path) -> None:
    moved = project.rename(world.work / "moved")
    ran = world.run("run", "work", "--commit", "--", "sh", "-c", "echo two >file", cwd=moved)
    assert ran.code == 13
    assert str(project).encode() in ran.err
    assert (moved / "file").read_bytes() == b"one\n"
    assert not project.exists()
    for words in (("status",), ("commit", "-m", "here"), ("restore", "main")):
        told = world.run(*words, cwd=moved)
        assert told.code == 10
        assert str(project).encode() in told.err, "where the store was captured from"
    (moved / ".layerfs").unlink()
    world.ok("init", "--store", world.work / "anew", cwd=moved)
    assert world.ok("status", cwd=moved).text.startswith("workspace source")


def test_a_copied_project_is_not_run_in_as_if_it_were_the_workspace(world: World, project: Path) -> None:
    copied = world.work / "copied"
    shutil.copytree(project, copied)
    assert world.run("run", "work", "--", "sh", "-c", "echo two >file", cwd=copied).code == 13
    assert (copied / "file").read_bytes() == b"one\n"


def test_a_workspace_that_is_a_copy_can_be_run_from(world: World, project: Path) -> None:
    world.ok("fork", "a", cwd=project)
    place = mount(world, project, "a", "--engine", "copy")
    assert world.run("run", "work", "--no-at-source", "--", "true", cwd=place).code == 0
    world.ok("unmount", place, "--discard", cwd=project)


def test_a_pointer_file_that_could_not_be_written_is_told(world: World) -> None:
    place = world.work / "place"
    place.mkdir()
    (place / ".layerfs").symlink_to("nowhere")
    made = world.run("init", "--store", world.work / "store", cwd=place)
    assert made.code == 0
    assert b"no pointer file could be written" in made.err


def test_a_call_without_a_tool_is_shown_as_one(world: World, project: Path) -> None:
    world.ok("commit", "--allow-empty", "--call-id", "81", cwd=project)
    assert "Call:      81\n" in world.ok("log", "-n", "1", cwd=project).text
    assert world.ok("log", "--oneline", "-n", "1", cwd=project).text.endswith(" (no message)\n")

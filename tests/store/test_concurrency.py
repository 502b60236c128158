"""Many at once: commits, publishes, forks and mounts of many processes all land, or say why not."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from project import Project, assert_no_traceback, refusal, seen
from world import Outcome

WRITERS = 8
FORKS = 16


@pytest.fixture
def shared(project: Project) -> Project:
    project.write(text="1\n2\n3\n4\n5\n6\n7\n8\n9\n", d__other="x\n")
    project.init()
    return project


def together(children: list[subprocess.Popen[bytes]]) -> list[Outcome]:
    """Wait for all; every one must end with a documented code."""
    done = []
    for child in children:
        out, err = child.communicate(timeout=120)
        done.append(Outcome(child.returncode, out, err))
        assert_no_traceback(done[-1])
    return done


def data(outcome: Outcome) -> Any:
    return outcome.document["data"]


def copies(project: Project, branch: str, count: int) -> list[Path]:
    """Mount ``count`` workspaces of one branch, as copies."""
    return [project.mount(branch, "copy", project.work / f"{branch}-{number}") for number in range(count)]


def test_two_branches_at_once(shared: Project) -> None:
    places = [shared.fork("a", "copy"), shared.fork("b", "copy")]
    for round_number in range(4):
        for place in places:
            (place / "text").write_text(f"{place.name} {round_number}\n")
        done = together([shared.start("commit", "-m", "x", "--json", cwd=place) for place in places])
        assert [outcome.code for outcome in done] == [0, 0]
        assert not any(data(outcome)["joined"] for outcome in done)
    for name, place in zip("ab", places, strict=True):
        assert (shared.checkout(name) / "text").read_text() == f"{place.name} 3\n"
        assert len(shared.document("log", name)["commits"]) == 5
    shared.fsck()


def test_one_branch_different_paths_both_land(shared: Project) -> None:
    shared.document("fork", "f")
    one, two = copies(shared, "f", 2)
    (one / "of one").write_text("1\n")
    (one / "text").write_text("ONE\n2\n3\n4\n5\n6\n7\n8\n9\n")
    (two / "of two").write_text("2\n")
    (two / "text").write_text("1\n2\n3\n4\n5\n6\n7\n8\nNINE\n")
    done = together([shared.start("commit", "-m", "x", "--json", cwd=place) for place in (one, two)])
    assert [outcome.code for outcome in done] == [0, 0]
    assert sorted(data(outcome)["joined"] for outcome in done) == [False, True]
    out = shared.checkout("f")
    assert (out / "text").read_text() == "ONE\n2\n3\n4\n5\n6\n7\n8\nNINE\n"
    assert (out / "of one").exists()
    assert (out / "of two").exists()
    for place in (one, two):
        shared.document("update", cwd=place)
        assert seen(place, times=False) == seen(out, times=False)
        assert shared.changes(place) == {}
    shared.fsck()


def test_the_same_line_conflicts_and_nothing_lands(shared: Project) -> None:
    shared.document("fork", "f")
    one, two = copies(shared, "f", 2)
    (one / "text").write_text("ONE\n2\n3\n4\n5\n6\n7\n8\n9\n")
    (two / "text").write_text("TWO\n2\n3\n4\n5\n6\n7\n8\n9\n")
    (two / "innocent").write_text("not published either\n")
    done = together([shared.start("commit", "-m", "x", "--json", cwd=place) for place in (one, two)])
    assert sorted(outcome.code for outcome in done) == [0, 1]
    winner, loser = (one, two) if done[0].code == 0 else (two, one)
    (conflict,) = data(next(outcome for outcome in done if outcome.code))["conflicts"]
    assert conflict["path"] == "text"
    out = shared.checkout("f")
    assert (out / "text").read_text() == (winner / "text").read_text()
    assert (out / "innocent").exists() == (winner == two)
    assert shared.changes(loser)["text"] == "M", "the loser keeps its work"
    assert shared.run("commit", "-m", "again", cwd=loser).code == 1
    shared.document("commit", "-m", "elsewhere", "--as", "rescued", cwd=loser)
    assert (shared.checkout("rescued") / "text").read_text() == (loser / "text").read_text()
    shared.fsck()


def test_eight_writers_on_one_branch_all_land(shared: Project) -> None:
    shared.document("fork", "f")
    places = copies(shared, "f", WRITERS)
    for round_number in range(2):
        for number, place in enumerate(places):
            (place / f"{number}-{round_number}").write_text(f"{number}\n" * 50)
        done = together([shared.start("commit", "-m", "x", "--json", cwd=place) for place in places])
        assert [outcome.code for outcome in done] == [0] * WRITERS, [outcome.err for outcome in done]
    out = shared.checkout("f")
    wanted = {f"{number}-{round_number}" for number in range(WRITERS) for round_number in range(2)}
    assert {path.name for path in out.iterdir()} == wanted | {"text", "d"}
    shared.fsck()


def test_publishes_that_race_lose_no_layer(shared: Project) -> None:
    names = [f"p{number}" for number in range(6)]
    for name in names:
        place = shared.fork(name, "copy")
        (place / name).write_text(f"{name}\n")
        shared.commit(place)
    done = together([shared.start("publish", name, "--json") for name in names])
    assert [outcome.code for outcome in done] == [0] * len(names), [outcome.err for outcome in done]
    layers = [layer["number"] for layer in shared.document("layers")["layers"]]
    assert layers == list(range(len(names) + 1, 0, -1))
    out = shared.checkout("main")
    assert all((out / name).read_text() == f"{name}\n" for name in names)
    shared.fsck()


def test_racing_with_an_expectation_lets_exactly_one_through(shared: Project) -> None:
    names = ["p", "q", "r", "s"]
    for name in names:
        place = shared.fork(name, "copy")
        (place / name).write_text("x\n")
        shared.commit(place)
    done = together([shared.start("publish", name, "--expect", "L1", "--json") for name in names])
    assert sorted(outcome.code for outcome in done) == [0, 12, 12, 12]
    assert len(shared.document("layers")["layers"]) == 2


def test_forks_and_mounts_in_parallel(shared: Project, need_overlay: None) -> None:
    """D9: one parent, many forks and mounts at once; the parent stays as it is and no workspace is stale."""
    from mounting import enter_private_namespace

    enter_private_namespace()
    before = seen(shared.source)
    forks = together([shared.start("fork", f"w{number}", "--json") for number in range(FORKS)])
    assert [outcome.code for outcome in forks] == [0] * FORKS
    places = [shared.work / f"w{number}" for number in range(FORKS)]
    mounts = together([shared.start("mount", place.name, place, "--engine", "overlay") for place in places])
    assert [outcome.code for outcome in mounts] == [0] * FORKS, [outcome.err for outcome in mounts]
    for place in places:
        (place / place.name).write_text("mine\n")
    commits = together([shared.start("commit", "-m", "x", cwd=place) for place in places])
    assert [outcome.code for outcome in commits] == [0] * FORKS
    assert seen(shared.source) == before
    assert shared.changes(shared.source) == {}
    rows = shared.document("workspace", "list")["workspaces"]
    assert {row["state"] for row in rows} == {"attached"}
    for place in places:
        assert {path.name for path in place.iterdir()} == {"text", "d", place.name}
    gone = together([shared.start("unmount", place.name) for place in places])
    assert [outcome.code for outcome in gone] == [0] * FORKS, [outcome.err for outcome in gone]
    shared.fsck()


def test_mounts_of_one_branch_at_once_get_their_own_workspaces(shared: Project, need_overlay: None) -> None:
    from mounting import enter_private_namespace

    enter_private_namespace()
    shared.document("fork", "f")
    places = [shared.work / f"m{number}" for number in range(6)]
    done = together([shared.start("mount", "f", place, "--json", "--engine", "overlay") for place in places])
    assert [outcome.code for outcome in done] == [0] * len(places), [outcome.err for outcome in done]
    names = [data(outcome)["name"] for outcome in done]
    assert len(set(names)) == len(places), names
    for place in places:
        (place / place.name).write_text("x\n")
        assert list(shared.changes(place)) == [place.name]


def test_a_workspace_of_a_living_run_is_nobody_elses(shared: Project, need_overlay: None) -> None:
    """What a run has in its own namespace is neither mounted a second time nor removed under it."""
    from mounting import enter_private_namespace

    enter_private_namespace()
    shared.document("fork", "f")
    running = shared.start(
        "run", "f", "--", "sh", "-c", "echo run > inrun; while [ ! -e stop ]; do sleep 0.05; done"
    )
    deadline = time.monotonic() + 20
    state = None
    while state != "private" and time.monotonic() < deadline:
        state = {row["name"]: row["state"] for row in shared.document("workspace", "list")["workspaces"]}.get(
            "f"
        )
    assert state == "private"
    place = shared.work / "elsewhere"
    assert shared.document("mount", "f", place)["name"] == "f.2"
    assert not (place / "inrun").exists()
    for words in (["workspace", "remove", "f", "--discard"], ["unmount", "f", "--discard"]):
        assert "in use by a run" in refusal(shared.run(*words, cwd=shared.source), 11)
    assert running.poll() is None
    upper = next(
        row["upper"] for row in shared.document("workspace", "list")["workspaces"] if row["name"] == "f"
    )
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=30)
    assert Path(upper, "inrun").read_text() == "run\n", "the work of a run that was ended is kept"
    shared.document("workspace", "remove", "f", "--discard")


def test_mounts_and_unmounts_of_one_workspace_at_once(shared: Project, need_overlay: None) -> None:
    """Healing, attaching and taking away race: committed work is there, and no upper is mounted twice."""
    from mounting import enter_private_namespace

    enter_private_namespace()
    place = shared.fork("f")
    (place / "work").write_text("x\n")
    shared.commit(place)
    for _ in range(4):
        children = [shared.start("unmount", "f"), shared.start("mount", "f"), shared.start("mount", "f")]
        done = together(children)
        assert {outcome.code for outcome in done} <= {0, 10, 11, 13}, [outcome.err for outcome in done]
        rows = [
            row for row in shared.document("workspace", "list")["workspaces"] if row["engine"] == "overlay"
        ]
        mounts = [
            line
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if str(shared.store) in line
        ]
        uppers = [line.partition("upperdir=")[2].partition(",")[0] for line in mounts if "upperdir=" in line]
        assert len(set(uppers)) == len(uppers), "one upper is mounted twice"
        assert len(uppers) == len([row for row in rows if row["state"] == "attached"])
        for row in rows:
            if row["state"] == "attached":
                assert (Path(row["path"]) / "work").read_text() == "x\n"
            shared.document("workspace", "remove", row["name"])
        shared.document("mount", "f")
    assert (shared.checkout("f") / "work").exists()


def test_a_status_loop_beside_commits(shared: Project) -> None:
    place = shared.fork("f", "copy")
    loop = shared.start_any(
        ["sh", "-c", 'while :; do "$@" >/dev/null 2>>err || exit 9; done', "sh", *command()], cwd=place
    )
    deadline = time.monotonic() + 6
    number = 0
    while time.monotonic() < deadline or number < 5:
        number += 1
        (place / "text").write_text(f"{number}\n" * 1000)
        shared.commit(place)
    assert loop.poll() is None, (place / "err").read_text()
    assert len(shared.document("log", "f")["commits"]) == number + 1
    shared.fsck()


def command() -> list[str]:
    import sys

    return [sys.executable, "-m", "layerfs", "status"]

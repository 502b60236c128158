"""The life of a workspace: it goes away without losing anything, comes back after accidents, captures nobody else."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from odd_tree import build_odd_tree
from project import Project, difference, mounts_below, refusal, seen
from stranger import Stranger

ENGINES = ("overlay", "copy")


@pytest.fixture(autouse=True)
def as_root(overlay_mounts: None) -> None:
    """Mounts end with this process."""


@pytest.fixture
def captured(project: Project) -> Project:
    project.write(a="one\ntwo\nthree\n", d__b="b\n", d__c="c\n")
    project.init()
    return project


def umount(place: Path) -> None:
    subprocess.run(["umount", place], check=True, timeout=20)


@pytest.mark.parametrize("engine", ENGINES)
def test_unmount_refuses_what_no_commit_has(captured: Project, engine: str) -> None:
    place = captured.fork("f", engine)
    (place / "a").write_bytes(b"changed\n")
    os.unlink(place / "d/b")
    assert "uncommitted" in refusal(captured.run("unmount", "f", cwd=captured.source), 13)
    assert "uncommitted" in refusal(captured.run("workspace", "remove", "f", cwd=captured.source), 13)
    assert captured.changes(place) == {"a": "M", "d/b": "D"}
    captured.document("unmount", "f", "--commit", "-m", "at the end")
    assert mounts_below(captured.root) == []
    out = captured.checkout("f")
    assert (out / "a").read_bytes() == b"changed\n"
    assert not (out / "d/b").exists()
    place = captured.mount("f", engine, place)
    (place / "a").write_bytes(b"dropped\n")
    captured.document("unmount", "f", "--discard")
    assert (captured.checkout("f") / "a").read_bytes() == b"changed\n"


def test_unmount_names_who_keeps_it_busy(captured: Project) -> None:
    place = captured.fork("f")
    holders = [
        captured.start_any(["sleep", "60"], cwd=place),
        captured.start_any(
            [sys.executable, "-c", "import time; f = open('a'); time.sleep(60)"], cwd=place / "d" / ".."
        ),
    ]
    deadline = time.monotonic() + 10
    while True:
        done = captured.run("unmount", "f", cwd=captured.source)
        message = refusal(done, 11)
        if all(str(child.pid) in message for child in holders) or time.monotonic() > deadline:
            break
    assert all(str(child.pid) in message for child in holders), message
    assert (place / "a").read_bytes() == b"one\ntwo\nthree\n"
    for child in holders:
        child.kill()
        child.wait(10)
    captured.document("unmount", "f")
    assert mounts_below(captured.root) == []


def test_a_mount_that_went_behind_our_back_is_healed(captured: Project) -> None:
    place = captured.fork("f")
    (place / "new").write_bytes(b"kept\n")
    (place / "a").write_bytes(b"kept too\n")
    umount(place)
    rows = {row["name"]: row["state"] for row in captured.document("workspace", "list")["workspaces"]}
    assert rows["f"] == "stale"
    healed = captured.document("mount", "f", place)
    assert healed["healed"]
    assert (place / "new").read_bytes() == b"kept\n"
    assert captured.changes(place) == {"a": "M", "new": "A"}
    captured.commit(place)
    umount(place)
    shutil.rmtree(captured.store / "cache")
    os.mkdir(captured.store / "cache", 0o700)
    assert captured.document("mount", "f")["healed"], "a cleared cache is filled again"
    assert (place / "a").read_bytes() == b"kept too\n"
    assert captured.changes(place) == {}
    captured.document("unmount", "f")
    captured.fsck()


def test_a_stale_workspace_still_commits_and_unmounts(captured: Project) -> None:
    place = captured.fork("f")
    (place / "new").write_bytes(b"kept\n")
    umount(place)
    refusal(captured.run("unmount", "f", cwd=captured.source), 13)
    captured.document("unmount", "f", "--commit", "-m", "without the mount")
    assert (captured.checkout("f") / "new").read_bytes() == b"kept\n"


def test_a_mount_point_inside_the_captured_root_is_not_captured(captured: Project) -> None:
    inside = captured.source / "inside"
    captured.document("fork", "f", "g")
    for engine, name in (("overlay", "f"), ("copy", "g")):
        place = captured.mount(name, engine, inside / name)
        (place / "secret").write_bytes(b"of the workspace\n")
    found = captured.changes(captured.source)
    assert not any("secret" in path or path.endswith("/a") for path in found), found
    captured.run("commit", "-m", "with workspaces inside", cwd=captured.source)
    listed = captured.run("ls-tree", "-r", "work", cwd=captured.source).text
    assert "secret" not in listed
    assert captured.changes(inside / "f") == {"secret": "A"}
    nested = captured.document("status", cwd=inside / "g")
    assert nested["workspace"] == "g"
    for name in ("f", "g"):
        captured.document("unmount", name, "--discard")


def test_a_store_inside_the_captured_directory_is_refused(project: Project) -> None:
    project.write(a="x")
    refusal(project.run("init", "--store", project.source / "store", cwd=project.source), 13)
    refusal(project.run("init", "--store", project.source, cwd=project.source), 13)
    inside = project.work / "outer"
    (inside / "project").mkdir(parents=True)
    refusal(project.run("init", "--store", project.work, cwd=inside / "project"), 13)
    link = project.work / "link"
    link.symlink_to(project.source)
    refusal(project.run("init", "--store", link / "store", cwd=project.source), 13)
    refusal(project.run("init", cwd=Path("/")), 20)
    refusal(project.run("init", "--store", project.work / "store", "/", cwd=project.work), 13)
    assert not os.path.lexists("/.layerfs"), "every store lies below the root of all"
    done = project.run("init", cwd=project.source, env={"XDG_DATA_HOME": str(project.source / "data")})
    assert done.code in (13, 20), done
    assert sorted(os.listdir(project.source)) == ["a"], "a refused init leaves nothing"
    project.init()


def test_a_second_init_says_so(captured: Project) -> None:
    for command in (["init"], ["init", "--store", str(captured.work / "other")]):
        assert "captured already" in refusal(captured.run(*command, cwd=captured.source), 13)
    os.unlink(captured.source / ".layerfs")
    assert "captured already" in refusal(captured.run("init", cwd=captured.source), 13)
    assert captured.run("status", cwd=captured.source).code == 0
    assert not (captured.work / "other").exists()


def test_two_inits_at_once_leave_one_good_store(project: Project) -> None:
    for number in range(200):
        project.write(**{f"f{number}": os.urandom(3000)})
    before = seen(project.source)
    children = [project.start("init") for _ in range(5)]
    codes = sorted(child.wait(60) for child in children)
    assert codes[0] == 0
    assert set(codes[1:]) <= {11, 13}, codes
    (project.store,) = (project.home / "data/layerfs").iterdir()
    project.fsck()
    assert difference(before, seen(project.checkout("main"))) == {}


def test_workspaces_within_workspaces(captured: Project) -> None:
    outer = captured.fork("outer")
    inner = captured.fork("inner", "copy")
    captured.document("unmount", "inner")
    inner = captured.mount("inner", "overlay", outer / "below" / "inner")
    (inner / "x").write_bytes(b"inner\n")
    assert captured.document("status", cwd=inner)["workspace"] == "inner"
    assert captured.document("status", cwd=outer)["workspace"] == "outer"
    captured.commit(inner)
    captured.commit(outer)
    assert "x" not in captured.run("ls-tree", "-r", "outer", cwd=captured.source).text
    refusal(captured.run("unmount", "outer", cwd=captured.source), 11)
    captured.document("unmount", "inner")
    captured.document("unmount", "outer")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_mount_point_that_became_a_symlink_leads_nowhere(captured: Project, engine: str) -> None:
    place = captured.fork("f", engine)
    victim = captured.work / "victim"
    victim.mkdir()
    (victim / "precious").write_bytes(b"not yours\n")
    (place / "new").write_bytes(b"work\n")
    if engine == "overlay":
        umount(place)
        os.rmdir(place)
    else:
        os.rename(place, captured.work / "moved away")
    place.symlink_to(victim)
    for words in (
        ["unmount", "f", "--discard"],
        ["workspace", "list"],
        ["mount", "f"],
        ["workspace", "remove", "f", "--discard"],
    ):
        done = captured.run(*words, cwd=captured.source)
        assert b"Traceback" not in done.err, done.err.decode()
        assert os.listdir(victim) == ["precious"]
        assert (victim / "precious").read_bytes() == b"not yours\n"


@pytest.mark.parametrize("where", ["a file", "full", "taken", "the store"])
def test_places_where_nothing_can_be_mounted(captured: Project, where: str) -> None:
    captured.document("fork", "f", "g")
    place = captured.work / "place"
    if where == "a file":
        place.write_bytes(b"mine\n")
    elif where == "full":
        place.mkdir()
        (place / "mine").write_bytes(b"mine\n")
    elif where == "taken":
        captured.mount("g", "overlay", place)
    else:
        place = captured.store / "packs"
    for engine in ENGINES:
        refusal(captured.run("mount", "f", place, "--engine", engine, cwd=captured.source), 13)
        assert "f" not in [row["name"] for row in captured.document("workspace", "list")["workspaces"]]


def test_a_copy_leaves_what_no_capture_includes(project: Project) -> None:
    project.write(a="x", cache__big="data")
    project.init("--exclude", "cache")
    place = project.fork("f", "copy")
    assert not (place / "cache").exists()
    (place / "cache").mkdir()
    (place / "cache/mine").write_bytes(b"not captured\n")
    assert project.changes(place) == {}
    project.document("unmount", "f")
    assert (place / "cache/mine").read_bytes() == b"not captured\n"
    assert sorted(os.listdir(place)) == ["cache"]


@pytest.mark.parametrize("engine", ENGINES)
def test_work_between_commit_and_unmount_is_kept(captured: Project, engine: str) -> None:
    place = captured.fork("f", engine)
    (place / "a").write_bytes(b"committed\n")
    captured.commit(place)
    (place / "late").write_bytes(b"late\n")
    refusal(captured.run("unmount", "f", cwd=captured.source), 13)
    assert (place / "late").read_bytes() == b"late\n"
    captured.commit(place)
    captured.document("unmount", "f")
    assert (captured.checkout("f") / "late").read_bytes() == b"late\n"


def test_a_directory_that_vanished_is_named(captured: Project) -> None:
    place = captured.fork("f", "copy")
    shutil.rmtree(place)
    rows = {row["name"]: row["state"] for row in captured.document("workspace", "list")["workspaces"]}
    assert rows["f"] == "stale"
    captured.document("workspace", "remove", "f")
    captured.mount("f", "copy", place)


def test_everything_works_without_root(stranger: Stranger) -> None:
    source = stranger.source
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(stranger.uid)
            os.setuid(stranger.uid)
            os.umask(0o022)
            build_odd_tree(source, root=False)
            for name in ("one", "one/two", "one/two/three"):
                (source / name).mkdir()
                (source / name / "file").write_bytes(b"in a read-only directory\n")
            for name in ("one/two/three", "one/two", "one"):
                os.chmod(source / name, 0o555)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    done = stranger.run("init")
    assert done.code == 0, done.err.decode()
    before = seen(source)
    assert stranger.ok("status", "--exit-code").code == 0
    target = stranger.home / "out"
    stranger.ok("checkout", "main", "--to", target)
    assert difference(before, seen(target)) == {}
    assert stat.S_IMODE(os.stat(target / "one/two/three").st_mode) == 0o555
    stranger.ok("fork", "f")
    place = stranger.home / "ws"
    done = stranger.ok("mount", "f", place)
    assert b"engine copy" in done.err, done.err
    assert difference(before, seen(place)) == {}
    (place / "plain").write_bytes(b"changed by root, who is allowed to\n")
    os.chmod(place / "one/two", 0o755)
    (place / "one/two/new").write_bytes(b"new\n")
    os.chown(place / "one/two/new", stranger.uid, stranger.uid)
    os.chmod(place / "one/two", 0o555)
    stranger.ok("commit", "-m", "without root", cwd=place)
    stranger.ok("publish", "f")
    stranger.ok("update", "main")
    wanted = seen(place)
    assert difference(wanted, seen(source)) == {}
    stranger.ok("restore", "L1")
    assert difference(before, seen(source)) == {}
    stranger.ok("unmount", "f")
    assert not place.exists()
    refusal(stranger.run("mount", "f", place, "--engine", "overlay"), 20)
    assert not place.exists()


def test_what_cannot_be_read_without_root_is_named(stranger: Stranger) -> None:
    for name in ("fine", "secret"):
        (stranger.source / name).write_bytes(b"x\n")
        os.chown(stranger.source / name, stranger.uid, stranger.uid)
    os.chown(stranger.source / "secret", 0, 0)
    os.chmod(stranger.source / "secret", 0o600)
    (stranger.source / "closed").mkdir(mode=0o700)
    done = stranger.run("init")
    assert done.code == 3, done.err
    assert b"'secret'" in done.err
    assert b"'closed'" in done.err
    done = stranger.run("status")
    assert done.code in (0, 3), done.err
    assert b"Traceback" not in done.err


def test_a_store_of_somebody_else_is_refused(stranger: Stranger, captured: Project) -> None:
    for words in (["status"], ["log"], ["commit", "-m", "x"]):
        done = stranger.run(*words, "--store", captured.store)
        assert done.code in (10, 13), done
        assert b"Traceback" not in done.err


def test_root_in_somebody_elses_store_leaves_it_usable(stranger: Stranger, project: Project) -> None:
    (stranger.source / "a").write_bytes(b"x\n")
    os.chown(stranger.source / "a", stranger.uid, stranger.uid)
    stranger.ok("init")
    (store,) = (stranger.home / ".local/share/layerfs").iterdir()
    (stranger.source / "a").write_bytes(b"y\n")
    project.document("commit", "-m", "as root", "--store", store, cwd=stranger.source)
    project.document("fork", "f", "--store", store, cwd=stranger.source)
    foreign = [path for path in store.rglob("*") if os.lstat(path).st_uid != stranger.uid]
    assert foreign == []
    (stranger.source / "a").write_bytes(b"z\n")
    stranger.ok("commit", "-m", "as himself")
    stranger.ok("log")

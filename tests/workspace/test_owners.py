"""Whose files they are: stores and trees of one user under the hands of another, and root in both roles."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from project import Project, refusal
from stranger import Stranger

FOREIGN = 4321


@pytest.fixture(autouse=True)
def as_root(overlay_mounts: None) -> None:
    """Mounts end with this process."""


def root_runs(stranger: Stranger, *words: str | Path, cwd: Path | None = None, codes: tuple[int, ...] = (0,)) -> bytes:
    """Run ``layerfs`` as root, in the project of somebody else."""
    done = subprocess.run(
        [stranger.python, "-m", "layerfs", *words],
        cwd=cwd or stranger.source,
        env={**stranger.environment(), "LAYERFS_AUTHOR": "Root <root@example.org>"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in codes, (words, done.returncode, done.stderr)
    return done.stdout + done.stderr


def owners_below(top: Path) -> set[int]:
    return {os.lstat(path).st_uid for path in (top, *top.rglob("*"))}


def entries(stranger: Stranger, revision: str) -> dict[str, Any]:
    return {one["path"]: one for one in stranger.document("ls-tree", "-r", revision)["entries"]}


@pytest.fixture
def mixed(stranger: Stranger) -> Stranger:
    """A project of somebody's in which some files are others', captured by root into a store that he is given."""
    source = stranger.source
    for name in ("mine", "root", "foreign", "sub/foreign", "secret", "tool"):
        stranger.write(name, f"{name}\n")
    os.chown(source / "root", 0, 0)
    os.chown(source / "foreign", FOREIGN, FOREIGN)
    os.chown(source / "sub/foreign", FOREIGN, FOREIGN)
    os.chown(source / "secret", 0, 0)
    os.chmod(source / "secret", 0o600)
    os.chmod(source / "tool", 0o4755)
    os.setxattr(source / "tool", "security.capability", bytes.fromhex("0100000200040000") + bytes(12))
    os.setxattr(source / "mine", "trusted.note", b"root's")
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    root_runs(stranger, "init")
    for path in (stranger.home / ".local", *(stranger.home / ".local").rglob("*")):
        os.chown(path, stranger.uid, stranger.uid)
    os.chown(source / ".layerfs", stranger.uid, stranger.uid)
    return stranger


def test_root_works_on_somebody_elses_store_and_it_stays_his(stranger: Stranger) -> None:
    stranger.write("a", "one\n")
    stranger.write("d/b", "two\n")
    stranger.ok("init")
    store = stranger.store
    stranger.write("a", "changed\n")
    root_runs(stranger, "status")
    root_runs(stranger, "commit", "-m", "as root")
    root_runs(stranger, "fork", "f", "g")
    root_runs(stranger, "run", "f", "--commit", "-m", "run as root", "--", "sh", "-c", "echo x > made")
    place = stranger.home / "ws"
    root_runs(stranger, "mount", "g", place, "--engine", "overlay")
    (place / "g").write_bytes(b"g\n")
    root_runs(stranger, "commit", "-m", "in the mount", cwd=place)
    root_runs(stranger, "unmount", "g")
    root_runs(stranger, "publish", "g")
    root_runs(stranger, "warm", "main")
    root_runs(stranger, "config", "set", "cache.max-size", "1000000000")
    inside = [path for path in store.rglob("*") if path.parent != store / "cache" and store / "cache" not in path.parents]
    foreign = [path for path in (*inside, *(store / "cache").iterdir()) if os.lstat(path).st_uid != stranger.uid]
    assert foreign == [], "everything but what lies in the layers is his"
    stranger.write("a", "by himself\n")
    stranger.ok("commit", "-m", "as himself")
    assert {"made"} == entries(stranger, "f").keys() - entries(stranger, "L1").keys()
    assert stranger.ok("run", "f", "--", "cat", "made").text == "x\n", "he has layers of his own kind"
    stranger.ok("fsck")
    assert stranger.ok("workspace", "list").text.splitlines()[0].startswith("source")


@pytest.mark.usefixtures("need_user_namespace")
@pytest.mark.parametrize("how", ["namespace", "copy"])
def test_a_tree_captured_by_root_keeps_its_owners_in_the_hands_of_a_user(mixed: Stranger, how: str) -> None:
    before = entries(mixed, "main")
    mixed.ok("fork", "f")
    change = "echo more >> mine; echo new > new; rm root; chmod 640 foreign"
    if how == "namespace":
        done = mixed.run("run", "f", "--commit", "-m", "mine", "--", "sh", "-c", change)
        assert done.code == 0, done
    else:
        place = mixed.home / "ws"
        done = mixed.run("mount", "f", place, "--engine", "copy")
        assert done.code == 3 and b"owners of 4 entries were not restored" in done.err, done
        assert b"'null'" in done.err and b"engine copy" in done.err
        assert mixed.document("status", cwd=place)["changes"] == []
        assert mixed.execute(["sh", "-c", change], cwd=place).code == 0
        mixed.ok("commit", "-m", "mine", cwd=place)
    after = entries(mixed, "f")
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed == {"mine", "new", "root", "foreign"}, (before, after)
    assert after["new"]["uid"] == mixed.uid and after["foreign"]["uid"] == FOREIGN
    assert after["null"]["kind"] == before["null"]["kind"] and "xattrs" in after["tool"]
    assert after["mine"]["xattrs"] == before["mine"]["xattrs"], "what he cannot see he did not remove"
    if how == "copy":
        assert mixed.document("status", cwd=place)["changes"] == []
        root_runs(mixed, "commit", "-m", "nothing of root's", cwd=place)
        assert entries(mixed, "f") == after
        mixed.ok("unmount", "f")
        assert not place.exists()


def test_a_checkout_without_root_says_once_that_owners_are_not_restored(mixed: Stranger) -> None:
    done = mixed.run("checkout", "main", "--to", mixed.home / "out")
    assert done.code == 3, "devices and capabilities are listed"
    assert done.err.count(b"owners of") == 1 and b"'null'" in done.err
    assert owners_below(mixed.home / "out") == {mixed.uid}
    assert (mixed.home / "out/secret").read_bytes() == b"secret\n", "the store is his"


def test_what_he_may_not_read_is_listed_and_kept(mixed: Stranger) -> None:
    """In the captured directory itself, where root left files that only root can read."""
    (mixed.source / "closed").mkdir(mode=0o700)
    (mixed.source / "closed/inner").write_bytes(b"root only\n")
    (mixed.source / "secret").write_bytes(b"changed by root\n")
    root_runs(mixed, "commit", "-m", "by root")
    before = entries(mixed, "work")
    (mixed.source / "secret").write_bytes(b"changed again\n")
    mixed.write("mine", "mine again\n")
    done = mixed.run("commit", "-m", "as himself")
    assert done.code == 3, done
    assert b"'secret': permission denied (kept as it was)" in done.err, done.err
    assert b"'closed': permission denied (kept as it was)" in done.err
    after = entries(mixed, "work")
    assert {name for name in before if before[name] != after.get(name)} == {"mine"}
    assert after["mine"]["xattrs"] == before["mine"]["xattrs"]
    assert mixed.run("status").code in (0, 3)
    root_runs(mixed, "commit", "-m", "by root again")
    assert entries(mixed, "work")["secret"] != before["secret"]


def test_a_mount_of_roots_cannot_be_taken_away_by_a_user(stranger: Stranger) -> None:
    stranger.write("a", "x\n")
    stranger.ok("init")
    place = stranger.home / "ws"
    root_runs(stranger, "mount", "main", place, "--engine", "overlay")
    done = stranger.run("unmount", "main")
    assert done.code in (13, 20) and b"Traceback" not in done.err, done
    (place / "new").write_bytes(b"by root\n")
    assert stranger.ok("status", cwd=place).code == 0
    root_runs(stranger, "unmount", "main", "--discard")
    root_runs(stranger, "run", "main", "--", "sh", "-c", "mkdir -p r/s; echo kept > r/s/kept; rm a")
    message = refusal(stranger.run("run", "--in", "main", "--", "true"), 20)
    assert "made by root" in message
    done = stranger.run("workspace", "remove", "main", "--discard")
    assert b"Traceback" not in done.err and done.code in (0, 13), done
    if done.code == 13:
        assert b"remove that directory as root" in done.err
        (left,) = stranger.store.glob("workspaces/.going-*")
        assert os.fsencode(left) in done.err
        assert stranger.ok("gc").code == 0, "what root left is in nobody's way"
        shutil.rmtree(left)
    assert [row["name"] for row in stranger.document("workspace", "list")["workspaces"]] == ["source"]


@pytest.mark.usefixtures("need_user_namespace")
def test_root_goes_on_in_a_users_run(stranger: Stranger) -> None:
    stranger.write("a", "x\n")
    stranger.write("d/b", "x\n")
    stranger.ok("init")
    stranger.ok("run", "main", "--", "sh", "-c", "rm -r d; mkdir d; echo user > d/new")
    said = root_runs(stranger, "run", "--in", "main", "--as", "f", "--", "sh", "-c", "ls d; cat d/new; echo root >> a")
    assert said.startswith(b"new\nuser\n"), said
    after = entries(stranger, "f")
    assert after.keys() == {"a", "d", "d/new"}
    assert {one["uid"] for one in after.values()} == {stranger.uid}


def test_a_store_of_root_and_a_tree_of_a_user(stranger: Stranger, project: Project) -> None:
    """The other way round: root captures a user's directory into root's own store, and gives back what was his."""
    stranger.write("a", "x\n")
    stranger.write("d/b", "y\n", 0o600)
    store = project.work / "store"
    project.document("init", "--store", store, cwd=stranger.source)
    (stranger.source / "a").write_bytes(b"changed\n")
    assert project.document("commit", "-m", "c", "--store", store, cwd=stranger.source)["commit"]
    out = project.work / "out"
    project.document("checkout", "main", "--to", out, "--store", store)
    assert owners_below(out) == {stranger.uid}
    assert os.stat(out / "d/b").st_mode & 0o777 == 0o600
    done = stranger.run("status")
    assert done.code in (10, 13) and b"Traceback" not in done.err, done

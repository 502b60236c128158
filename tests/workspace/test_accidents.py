"""Accidents and crowds: reboots, killed runs, stores on odd file systems, a hundred workspaces, many mounts at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import Project, difference, mounts_below, refusal, seen
from stranger import Stranger

from layerfs.history.authorship import Author
from layerfs.history.branches import fork
from layerfs.history.history import CommitReader
from layerfs.history.revision import resolve
from layerfs.objects.environment import walk
from layerfs.store.store import Store
from layerfs.store.workspacerecords import read_workspace
from layerfs.workspace.attach import MountRequest, attach
from layerfs.workspace.commit import commit_workspace
from layerfs.workspace.detach import DetachRequest, detach
from layerfs.workspace.recording import CommitRequest

BOOT_ID = "/proc/sys/kernel/random/boot_id"
AUTHOR = Author("T <t@example.org>", 1_700_000_000_000_000_000, 0)


@pytest.fixture(autouse=True)
def as_root(overlay_mounts: None) -> None:
    """Mounts end with this process."""


@pytest.fixture
def captured(project: Project) -> Project:
    project.write(a="one\n", d__b="b\n", d__c="c\n")
    project.init()
    return project


@pytest.fixture
def reboot(tmp_path: Path) -> Iterator[object]:
    """Return a function after which the machine seems to have been started anew: no mounts, another boot id."""
    done = []

    def start_anew(project: Project) -> None:
        for place in reversed(mounts_below(project.root)):
            subprocess.run(["umount", place], check=True, timeout=20)
        fake = tmp_path / "boot-id"
        fake.write_text("00000000-0000-4000-8000-000000000000\n")
        subprocess.run(["mount", "--bind", fake, BOOT_ID], check=True, timeout=20)
        done.append(True)

    yield start_anew
    if done:
        subprocess.run(["umount", BOOT_ID], check=True, timeout=20)


def states(project: Project) -> dict[str, str]:
    return {row["name"]: row["state"] for row in project.document("workspace", "list")["workspaces"]}


def test_after_a_reboot_everything_that_was_written_comes_back(captured: Project, reboot: object) -> None:
    assert callable(reboot)
    place = captured.fork("f")
    (place / "a").write_bytes(b"committed\n")
    captured.commit(place)
    (place / "d/b").write_bytes(b"not committed\n")
    os.unlink(place / "d/c")
    copy = captured.fork("g", "copy")
    (copy / "new").write_bytes(b"in the copy\n")
    assert captured.run("run", "main", "--", "sh", "-c", "echo kept > kept", cwd=captured.source).code == 0
    (captured.source / "a").write_bytes(b"in the source\n")
    layers = set(os.listdir(captured.store / "cache"))
    reboot(captured)
    assert states(captured) == {"f": "stale", "g": "attached", "main": "kept", "source": "attached"}
    assert "uncommitted" in refusal(captured.run("unmount", "f", cwd=captured.source), 13)
    done = captured.run("mount", "f", place, cwd=captured.source)
    assert done.code == 0 and b"its work is kept" in done.err, done
    assert captured.changes(place) == {"d/b": "M", "d/c": "D"}
    assert (place / "a").read_bytes() == b"committed\n"
    assert captured.changes(copy) == {"new": "A"}
    assert captured.changes(captured.source) == {"a": "M"}
    assert captured.run("run", "--in", "main", "--", "cat", "kept", cwd=captured.source).out == b"kept\n"
    assert len(layers) <= len(os.listdir(captured.store / "cache")), (
        "layers that were not synced are made anew"
    )
    captured.document("unmount", "f", "--commit", "-m", "after the reboot")
    captured.fsck()


def test_layers_that_were_synced_outlast_a_reboot(captured: Project, reboot: object) -> None:
    assert callable(reboot)
    captured.document("warm", "main")
    (layer,) = [path for path in (captured.store / "cache").iterdir() if path.is_dir()]
    before = os.stat(layer).st_ino
    reboot(captured)
    captured.mount("main")
    assert os.stat(layer).st_ino == before


def test_a_volatile_workspace_says_after_a_reboot_that_work_may_be_missing(
    captured: Project, reboot: object
) -> None:
    assert callable(reboot)
    captured.document("config", "set", "workspace.volatile", "true")
    place = captured.fork("f")
    (place / "new").write_bytes(b"x")
    reboot(captured)
    done = captured.run("mount", "f", place, cwd=captured.source)
    assert done.code == 0 and b"may be missing" in done.err, done
    assert captured.changes(place) == {"new": "A"}


def test_a_run_whose_supervisor_was_killed_leaves_its_work(captured: Project) -> None:
    script = "echo work > work; rm d/b; touch ready; exec sleep 4600"
    child = captured.start("run", "main", "--", "sh", "-c", script)
    upper = captured.store / "workspaces/main/upper"
    deadline = time.monotonic() + 30
    while not (upper / "ready").exists():
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.02)
    refusal(captured.run("workspace", "remove", "main", "--discard", cwd=captured.source), 11)
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    while states(captured)["main"] == "private":
        assert time.monotonic() < deadline + 30, "its command ends with it"
    assert states(captured)["main"] == "kept"
    done = captured.run("run", "--in", "main", "--as", "saved", "--", "cat", "work", cwd=captured.source)
    assert (done.code, done.out) == (0, b"work\n"), done
    out = captured.checkout("saved")
    assert (out / "work").read_bytes() == b"work\n" and not (out / "d/b").exists()


@pytest.mark.parametrize("who", ["root", "user"])
def test_runs_within_runs(stranger: Stranger, who: str, need_user_namespace: None) -> None:
    stranger.write("a", "one\n")
    stranger.ok("init")
    stranger.ok("fork", "inner")
    layerfs = f"{stranger.python} -m layerfs"
    script = f"echo outer > a; {layerfs} run inner --commit -m x -- sh -c 'cat a; echo inner > a'; cat a"
    command = [stranger.python, "-m", "layerfs", "run", "main", "--discard", "--", "sh", "-c", script]
    if who == "user":
        done = stranger.execute(command)
        assert done.code == 0, done
        text = done.text
    else:
        text = subprocess.run(
            command,
            cwd=stranger.source,
            env=stranger.environment(),
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout.decode()
    assert text == "one\nouter\n"
    assert stranger.ok("run", "inner", "--", "cat", "a").text == "inner\n"
    assert (stranger.source / "a").read_text() == "one\n"


def odd_disk(tmp_path: Path, kind: str) -> Path:
    place = tmp_path / "disk"
    place.mkdir()
    if kind == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", place], check=True, timeout=20)
        return place
    for name in ("lower", "upper", "work"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(["mount", "-t", "overlay", "none", "-o", options, place], check=True, timeout=20)
    return place


@pytest.mark.parametrize("kind", ["tmpfs", "overlay"])
def test_a_store_on_a_memory_disk_and_in_a_container(project: Project, tmp_path: Path, kind: str) -> None:
    disk = odd_disk(tmp_path, kind)
    try:
        project.write(a="one\n", d__b="b\n")
        project.init("--store", disk / "store")
        project.document("fork", "f")
        place = project.work / "ws"
        done = project.run("mount", "f", place, cwd=project.source)
        assert done.code == 0, done
        if kind == "overlay":
            assert b"using engine copy" in done.err and b"upper" in done.err
            refusal(
                project.run("mount", "main", project.work / "no", "--engine", "overlay", cwd=project.source),
                20,
            )
        (place / "a").write_bytes(b"two\n")
        os.unlink(place / "d/b")
        assert project.changes(place) == {"a": "M", "d/b": "D"}
        project.commit(place)
        project.document("unmount", "f")
        done = project.run("run", "f", "--", "sh", "-c", "cat a; test ! -e d/b", cwd=project.source)
        assert (done.code, done.out) == (0, b"two\n"), done
        out = project.checkout("f")
        assert (out / "a").read_bytes() == b"two\n"
        project.fsck()
    finally:
        subprocess.run(["umount", "-l", disk], check=True, timeout=20)


def test_a_hundred_workspaces_at_once(captured: Project) -> None:
    """Each is its own; none sees another's changes; each commits; all go, and nothing of them stays."""
    with Store.open(os.fsencode(captured.store), clock=time.time_ns) as store:
        names = [f"w{number:02}" for number in range(100)]
        fork(store, names, "main", None, None, AUTHOR.name)
        records = {}
        for name in names:
            path = os.fsencode(captured.work / "places" / name)
            records[name] = attach(store, MountRequest(resolve(store, name), AUTHOR, path, "overlay")).record
        assert len(mounts_below(captured.work / "places")) == 100
        for name, record in records.items():
            Path(os.fsdecode(record.path), "a").write_text(name)
            Path(os.fsdecode(record.path), f"only-{name}").touch()
        for name, record in records.items():
            assert sorted(os.listdir(record.path)) == [b"a", b"d", f"only-{name}".encode()]
            done = commit_workspace(store, record, CommitRequest(AUTHOR, name))
            assert done.commit is not None
        for name in names:
            detach(store, read_workspace(store.refs, name), DetachRequest(AUTHOR))
        reader = CommitReader(store.objects)
        for name in names:
            head = store.refs.need_head(name)
            assert {path for path, _ in walk(store.objects, reader.root(head)) if b"only" in path} == {
                f"only-{name}".encode()
            }
    assert mounts_below(captured.work / "places") == []
    assert os.listdir(captured.store / "workspaces") == ["source"]
    captured.fsck()


def test_many_processes_mount_from_one_parent_with_a_cold_cache(captured: Project) -> None:
    names = [f"p{number}" for number in range(6)]
    captured.document("fork", *names)
    before = seen(captured.source)
    children = [captured.start("mount", name, captured.work / name) for name in names]
    for child in children:
        _, err = child.communicate(timeout=120)
        assert child.returncode == 0, err
    for name in names:
        assert difference(before, seen(captured.work / name)) == {}
    layers = [path.name for path in (captured.store / "cache").iterdir() if path.is_dir()]
    assert len(layers) == 1 and not layers[0].endswith(".new")
    children = [captured.start("unmount", name) for name in names]
    assert [child.wait(120) for child in children] == [0] * len(names)
    assert mounts_below(captured.root) == []


def test_a_copy_replaced_by_a_symlink_is_not_followed(captured: Project) -> None:
    place = captured.fork("f", "copy")
    victim = captured.work / "victim"
    victim.mkdir()
    (victim / "precious").write_bytes(b"not yours\n")
    os.rename(place, captured.work / "moved")
    place.symlink_to(victim)
    for words in (["status"], ["commit", "-m", "x"]):
        done = captured.run(*words, cwd=place)
        assert b"Traceback" not in done.err and b"precious" not in done.out, done
    head = captured.run("ls-tree", "-r", "f", cwd=captured.source).text
    assert "precious" not in head
    captured.document("workspace", "remove", "f", codes=(0, 10, 13))
    assert (victim / "precious").read_bytes() == b"not yours\n"


def test_errors_of_the_file_system_arrive_as_themselves(captured: Project, tmp_path: Path) -> None:
    """ENOSPC, EACCES, ENOTEMPTY, ENAMETOOLONG, and appends several directories deep (git's HEAD log)."""
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", disk], check=True, timeout=20)
    try:
        captured.document("init", "--store", disk / "store", cwd=captured.source, codes=(0, 13))
        other = captured.work / "other"
        (other / "x/y/z").mkdir(parents=True)
        (other / "x/y/z/log").write_bytes(b"1\n")
        captured.document("init", "--store", disk / "store", cwd=other)
        place = captured.work / "ws"
        captured.document("mount", "main", place, "--store", disk / "store", "--engine", "overlay")
        with open(place / "x/y/z/log", "ab") as log:
            log.write(b"2\n")
        assert (place / "x/y/z/log").read_bytes() == b"1\n2\n"
        script = (
            "import errno, os\n"
            "def told(action):\n"
            "    try: action()\n"
            "    except OSError as error: return errno.errorcode[error.errno]\n"
            "def fill():\n"
            "    with open('fill', 'wb', buffering=0) as file:\n"
            "        while True: file.write(bytes(1 << 20))\n"
            "print(told(fill), told(lambda: os.rmdir('x')), told(lambda: open('n' * 256, 'w')))\n"
        )
        done = captured.execute([sys.executable, "-c", script], cwd=place)
        assert done.text == "ENOSPC ENOTEMPTY ENAMETOOLONG\n", done
        os.unlink(place / "fill")
        captured.document("unmount", "main", "--discard", "--store", disk / "store")
    finally:
        subprocess.run(["umount", "-l", disk], check=True, timeout=20)


def test_a_name_that_is_free_again_is_anothers_at_once(captured: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes a workspace away is past it when its name is free: the next mount of that name stands."""
    from layerfs.workspace import detach as detaching

    captured.document("fork", "f")
    with Store.open(os.fsencode(captured.store), clock=time.time_ns) as store:
        request = MountRequest(resolve(store, "f"), AUTHOR, engine="overlay")
        attach(store, request)
        drop, next_one = detaching.drop_record, []

        def drop_and_lose_the_processor(*told: object) -> None:
            drop(*told)  # type: ignore[arg-type]
            next_one.append(attach(store, request).record)

        monkeypatch.setattr(detaching, "drop_record", drop_and_lose_the_processor)
        done = detach(store, read_workspace(store.refs, "f"), DetachRequest(AUTHOR))
        monkeypatch.undo()
        assert not done.left, "nothing of the one that went is there"
        assert next_one[0].name == "f" and (Path(os.fsdecode(next_one[0].path)) / "a").read_text() == "one\n"
        assert not detach(store, read_workspace(store.refs, "f"), DetachRequest(AUTHOR)).left
        assert not os.path.lexists(next_one[0].path)

"""Stages of the crash tests: a project brought to where one command is cut, and what must hold afterwards.

A stage is built once and put back for every cut. After each cut: the store opens without help, every byte in it verifies,
each name is at a state the model allows (the one acknowledged before, or the one the command was about to make, and the
latter for sure if the command had said so), and the same command works the second time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from forked import ForkedProject
from project import Description, Project, difference, mounts_below, seen
from world import Outcome

from layerfs.store.store import Store
from layerfs.upkeep.verify import verify_store

Step = Callable[[Project], None]


class Cut(NamedTuple):
    """A command that was cut: its exit code (negative for a signal) and what it had printed."""

    code: int
    out: bytes
    err: bytes

    @property
    def answer(self) -> Any:
        """The data of the answer it had given in full, or None."""
        whole = self.out.endswith(b"\n") and self.code in (0, -9)
        return Outcome(self.code, self.out, self.err).document["data"] if whole else None


class Stage(NamedTuple):
    """A project before a command; ``ready`` is done before each cut, ``check`` looks at what the cut left."""

    name: str
    build: Step
    command: tuple[str, ...]
    check: Callable[[Project, Cut], None]
    ready: Step | None = None

    def argv(self) -> list[str | Path]:
        """Return the command as a process."""
        words = self.command if "--json" in self.command else (*self.command, "--json")
        return [sys.executable, "-m", "layerfs", *words]


class Restage:
    """Puts a built stage back before each cut."""

    def __init__(self, stage: Stage, root: Path) -> None:
        self.stage = stage
        self.project = ForkedProject(root)
        stage.build(self.project)
        self._kept = root.with_name(root.name + ".kept")
        copy_tree(root, self._kept)

    def fresh(self) -> Project:
        """Return the project as it was built, made ready for the command."""
        self.project.close()
        shutil.rmtree(self.project.root)
        copy_tree(self._kept, self.project.root)
        if self.stage.ready is not None:
            self.stage.ready(self.project)
        return self.project

    def duration(self) -> float:
        """Run the command once to its end; return how long it took. Its outcome is checked as well."""
        project = self.fresh()
        started = time.monotonic()
        child = project.start_any(self.stage.argv())
        out, err = child.communicate(timeout=120)
        took = time.monotonic() - started
        assert child.returncode == 0, err.decode(errors="replace")
        self.stage.check(project, Cut(0, out, err))
        return took


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory as it is."""
    subprocess.run(["cp", "-a", "--reflink=auto", source, target], check=True, timeout=60)


def opens_clean(project: Project) -> None:
    """Demand that the store opens without help and that every byte of it verifies."""
    with Store.open(os.fsencode(project.store), clock=time.time_ns) as store:
        report = verify_store(store, read_data=True)
        assert report.clean, report.problems


def state(project: Project, revision: str) -> Description:
    """Return what a revision holds, as a checkout shows it."""
    target = project.checkout(revision)
    description = seen(target)
    shutil.rmtree(target)
    return description


def same(one: Description, other: Description) -> bool:
    """Whether two states are equal, the times of directories aside: putting a stage back moves them."""
    return _without_directory_times(one) == _without_directory_times(other)


def _without_directory_times(description: Description) -> Description:
    return {
        path: (*entry[:3], None, *entry[4:]) if entry[0] == 0o040000 else entry
        for path, entry in description.items()
    }


def is_one_of(found: Description, before: Description, after: Description, cut: Cut) -> None:
    """Demand one of two states, and the second if the command had answered."""
    if cut.answer is not None:
        assert same(found, after), ("an acknowledged state is lost", differing(found, after))
    else:
        assert same(found, before) or same(found, after), ("half a state", differing(found, before))


def differing(one: Description, other: Description) -> list[bytes]:
    """Return the first few paths that differ."""
    return sorted(difference(one, other))[:10]


def remains(store: Path) -> list[str]:
    """Return what no finished command leaves in a store: temporary files, unfinished layers.

    The temporary file of a cache is one name, which whoever writes that cache next takes over.
    """
    found = []
    for directory in ("", "tmp", "packs", "cache", "workspaces"):
        top = store / directory
        for name in sorted(os.listdir(top)) if top.is_dir() else ():
            if name != "references.new" and (".new" in name or directory == "tmp"):
                found.append(f"{directory}/{name}")
    return found


# -- the stages -----------------------------------------------------------------------------------------------------


def _files(project: Project) -> None:
    for number in range(30):
        project.write(**{f"d{number % 4}__f{number}": f"{number}\n" * 40})
    project.write(big=bytes(range(256)) * 2000, text="one\ntwo\nthree\nfour\nfive\n")
    os.link(project.source / "big", project.source / "d1/linked")


def _edit(top: Path) -> None:
    (top / "text").write_bytes(b"one\nTWO\nthree\nfour\nfive\n")
    (top / "new").write_bytes(b"new\n" * 5000)
    os.unlink(top / "d1/f1")


_STATES: dict[str, Description] = {}


def _remember(name: str, top: Path) -> None:
    _STATES[name] = seen(top)


def _init_build(project: Project) -> None:
    _files(project)
    _remember("init", project.source)


def _init_check(project: Project, cut: Cut) -> None:
    assert same(seen(project.source), _STATES["init"])
    done = project.run("init", "--json", cwd=project.source)
    if cut.answer is not None:
        assert done.code == 13, done
    assert done.code in (0, 13), done.err.decode()
    stores = list((project.home / "data/layerfs").iterdir())
    assert len(stores) == 1, stores
    project.store = stores[0]
    opens_clean(project)
    assert same(state(project, "main"), _STATES["init"])
    assert project.changes(project.source) == {}
    left = remains(project.store)
    assert not left, left


def _commit_build(project: Project) -> None:
    _files(project)
    project.init()
    project.write(text="one\ntwo\nthree\nfour\n5\n")
    project.commit(project.source)
    _remember("commit before", project.source)
    _edit(project.source)
    _remember("commit after", project.source)


def _commit_check(project: Project, cut: Cut) -> None:
    before, after = _STATES["commit before"], _STATES["commit after"]
    opens_clean(project)
    is_one_of(state(project, "work"), before, after, cut)
    assert same(seen(project.source), after)
    project.document("commit", "-m", "again")
    assert same(state(project, "work"), after)
    assert project.changes(project.source) == {}
    opens_clean(project)
    left = remains(project.store)
    assert not left, left


def _bulk_build(project: Project) -> None:
    _files(project)
    project.init()
    _remember("bulk before", project.source)
    project.write(bulk=os.urandom(9_000_000))
    _remember("bulk after", project.source)


def _bulk_check(project: Project, cut: Cut) -> None:
    _STATES["commit before"], _STATES["commit after"] = _STATES["bulk before"], _STATES["bulk after"]
    _commit_check(project, cut)


def _two_branches(project: Project) -> None:
    _files(project)
    project.init()
    a, b = project.fork("a", "copy"), project.fork("b", "copy")
    (a / "text").write_bytes(b"ONE\ntwo\nthree\nfour\nfive\n")
    (b / "text").write_bytes(b"one\ntwo\nthree\nfour\nFIVE\n")
    (b / "from b").write_bytes(b"b\n" * 3000)
    project.commit(a)
    project.commit(b)
    for name, place in (("a", a), ("b", b)):
        _remember(name, place)
        project.document("unmount", name)
    merged = dict(_STATES["b"])
    (project.work / "merged").write_bytes(b"ONE\ntwo\nthree\nfour\nFIVE\n")
    merged[b"text"] = (*_STATES["b"][b"text"][:5], seen(project.work)[b"merged"][5], (b"text",))
    os.unlink(project.work / "merged")
    _STATES["merged"] = merged


def _timeless(description: Description) -> Description:
    """What a merge brings in has the time of the merge."""
    return {path: (*entry[:3], None, *entry[4:]) for path, entry in description.items()}


def _merge_check(project: Project, cut: Cut) -> None:
    opens_clean(project)
    is_one_of(_timeless(state(project, "a")), _timeless(_STATES["a"]), _timeless(_STATES["merged"]), cut)
    assert same(state(project, "b"), _STATES["b"])
    project.document("merge", "b", "--into", "a")
    assert same(_timeless(state(project, "a")), _timeless(_STATES["merged"]))
    opens_clean(project)
    left = remains(project.store)
    assert not left, left


def _publish_build(project: Project) -> None:
    _two_branches(project)
    project.document("publish", "a")


def _publish_check(project: Project, cut: Cut) -> None:
    opens_clean(project)
    is_one_of(_timeless(state(project, "main")), _timeless(_STATES["a"]), _timeless(_STATES["merged"]), cut)
    project.document("publish", "b")
    assert same(_timeless(state(project, "main")), _timeless(_STATES["merged"]))
    assert [layer["number"] for layer in project.document("layers")["layers"]] == [3, 2, 1]
    opens_clean(project)


def _update_build(project: Project) -> None:
    _two_branches(project)
    project.write(mine="uncommitted\n", d2__f2="uncommitted too\n")


def _update_check(project: Project, cut: Cut) -> None:
    """Work of both sides is there whatever the moment; a commit right after the cut takes back nobody's work."""
    opens_clean(project)
    for name in ("a", "b"):
        assert same(state(project, name), _STATES[name])
    assert (project.source / "mine").read_bytes() == b"uncommitted\n"
    assert (project.source / "d2/f2").read_bytes() == b"uncommitted too\n"
    project.document("commit", "-m", "right after the cut")
    project.document("update", "b")
    wanted = dict(_STATES["b"])
    found = state(project, "@") if cut.code == 0 else seen(project.source)
    for path in (b"mine", b"d2/f2", b"d2", b""):
        wanted.pop(path, None)
        found.pop(path, None)
    found, wanted = _timeless(found), _timeless(wanted)
    assert same(found, wanted), differing(found, wanted)
    assert project.changes(project.source) == {}
    opens_clean(project)


def _restore_build(project: Project) -> None:
    _two_branches(project)


def _restore_check(project: Project, cut: Cut) -> None:
    opens_clean(project)
    found = seen(project.source)
    if cut.answer is not None:
        assert same(found, _STATES["b"])
    project.document("restore", "b", "--discard")
    assert same(seen(project.source), _STATES["b"])
    project.document("commit", "-m", "as b")
    assert same(state(project, "work"), _STATES["b"])


def _mount_check(project: Project, cut: Cut) -> None:
    opens_clean(project)
    listed = project.document("workspace", "list")["workspaces"]
    place = project.work / "ws"
    if not any(row["name"] == "a" and row["state"] == "attached" for row in listed):
        assert cut.answer is None, "mount said it was done"
        project.mount("a", where=place)
    assert same(seen(place), _STATES["a"])
    (place / "more").write_bytes(b"more\n")
    project.commit(place)
    project.document("unmount", "a")
    assert mounts_below(project.root) == []
    shown = state(project, "a")
    assert b"more" in shown
    shown.pop(b"more")
    assert same(shown, _STATES["a"])
    left = remains(project.store)
    assert not left, left


def _unmount_ready(project: Project) -> None:
    place = project.mount("a", where=project.work / "ws")
    (place / "more").write_bytes(b"more\n")
    project.commit(place)
    (place / "uncommitted").write_bytes(b"kept\n")


def _unmount_check(project: Project, cut: Cut) -> None:
    opens_clean(project)
    place = project.work / "ws"
    rows = [row for row in project.document("workspace", "list")["workspaces"] if row["name"] == "a"]
    if not rows or rows[0]["state"] != "attached":
        project.mount("a", where=place)
    shown = seen(place)
    assert shown.pop(b"more")
    uncommitted = shown.pop(b"uncommitted", None)
    assert uncommitted is not None, "work is gone"
    assert same(shown, _STATES["a"])
    project.document("unmount", "a", "--commit")
    assert mounts_below(project.root) == []
    assert b"uncommitted" in state(project, "a")


def _half_a_copy_check(project: Project, cut: Cut) -> None:
    """A copy that was cut off is no workspace whose missing files are deletions; it is taken away, and made again."""
    opens_clean(project)
    place = project.work / "ws"
    listed = {row["name"]: row["state"] for row in project.document("workspace", "list")["workspaces"]}
    if listed.get("a") != "attached":
        assert cut.answer is None, "mount said it was done"
        if place.is_dir():
            done = project.run(
                "commit", "-m", "half", "-C", place, "--store", project.store, cwd=project.source
            )
            assert done.code != 0, "half a copy was committed"
        if "a" in listed:
            project.document("workspace", "remove", "a", "--discard")
        if place.is_dir():
            project.document("mount", "a", place, "--engine", "copy", codes=(0, 13))
        if not (place / ".layerfs").exists():
            shutil.rmtree(place, ignore_errors=True)
            project.mount("a", "copy", place)
    assert same(seen(place), _STATES["a"])
    (place / "more").write_bytes(b"more\n")
    project.commit(place)
    project.document("unmount", "a")
    assert not place.exists()
    shown = state(project, "a")
    assert shown.pop(b"more")
    assert same(shown, _STATES["a"])
    left = remains(project.store)
    assert not left, left


def _run_check(project: Project, cut: Cut) -> None:
    """What the command wrote is committed, or kept with its workspace, or the command had not begun."""
    opens_clean(project)
    found = state(project, "a")
    if cut.answer is not None:
        assert b"ran" in found, "an acknowledged commit is lost"
    wrote = found.pop(b"ran", None) is not None
    assert same(found, _STATES["a"])
    for row in project.document("workspace", "list")["workspaces"]:
        if row["name"] == "a":
            deadline = time.monotonic() + 10
            while row["state"] == "private" and time.monotonic() < deadline:
                row = project.document(
                    "workspace", "show", "a"
                )  # what it started dies with it, a moment later
            assert row["state"] == "kept", row
            done = project.run("run", "--in", "a", "--commit", "-m", "y", "--", "true", cwd=project.source)
            assert done.code == 0, done.err
            wrote = wrote or b"ran" in state(project, "a")
            left = [row["name"] for row in project.document("workspace", "list")["workspaces"]]
            assert left == ["source"]
    again = project.run(
        "run", "a", "--commit", "-m", "z", "--", "sh", "-c", "cat ran; echo 2 > ran", cwd=project.source
    )
    assert again.code == 0, again.err
    assert again.out == (b"1\n" if wrote else b"")
    opens_clean(project)
    assert mounts_below(project.root) == []
    left = remains(project.store)
    assert not left, left


_RUN = ("run", "a", "--commit", "-m", "x", "--json", "--", "sh", "-c", "echo 1 > ran")

STAGES = (
    Stage("init", _init_build, ("init",), _init_check),
    Stage("commit", _commit_build, ("commit", "-m", "x"), _commit_check),
    Stage("bulk-commit", _bulk_build, ("commit", "-m", "x"), _bulk_check),
    Stage("merge", _two_branches, ("merge", "b", "--into", "a"), _merge_check),
    Stage("publish", _publish_build, ("publish", "b"), _publish_check),
    Stage("update", _update_build, ("update", "b"), _update_check),
    Stage("restore", _restore_build, ("restore", "b"), _restore_check),
    Stage("mount", _two_branches, ("mount", "a", "../ws", "--engine", "overlay"), _mount_check),
    Stage("mount-copy", _two_branches, ("mount", "a", "../ws", "--engine", "copy"), _half_a_copy_check),
    Stage("run", _two_branches, _RUN, _run_check),
    Stage("unmount", _two_branches, ("unmount", "a", "--commit"), _unmount_check, _unmount_ready),
)

"""The contract of the JSON documents: it names every command, and every key and status word in it occurs.

Each document that a test sees is held against the contract (``contracted``). Here the whole life of a store goes through
every command, so that nothing is promised that no command says; what takes a broken machine or chance to happen (a
capture that meets what it cannot read) is presented from a value made by hand.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from contracted import CONTRACT, Broken, Seen, check_document, form
from project import Project
from world import World

from layerfs.capture.captured import Problem
from layerfs.cli.output import Reply, document
from layerfs.cli.registry import COMMANDS, find_command
from layerfs.history.combine import Combined
from layerfs.history.history import LoggedCommit
from layerfs.history.layerstack import StackedLayer
from layerfs.history.merging import Outcome as Merging
from layerfs.history.states import Found
from layerfs.merge.conflicts import Note, NoteKind
from layerfs.objects.commits import Commit, Read
from layerfs.objects.entry import Entry, EntryKind, device_ref
from layerfs.objects.environment import Change
from layerfs.objects.extents import Extent, build_extents
from layerfs.objects.kinds import Kind
from layerfs.objects.layers import Check, Layer
from layerfs.objects.memory import MemoryObjects
from layerfs.plumbing.objectwriting import WrittenTree
from layerfs.present.entries import present_raw_changes, present_tree
from layerfs.present.history import present_log
from layerfs.present.layers import present_layer_lines
from layerfs.present.meeting import present_merge
from layerfs.present.objects import present_readable
from layerfs.present.trees import present_written
from layerfs.present.upkeep import present_pruned
from layerfs.present.workspaces import present_detached, present_workspace
from layerfs.store.workspacerecords import Engine, WorkspaceRecord
from layerfs.upkeep.collect import Collected
from layerfs.upkeep.prune import Pruned
from layerfs.workspace.busy import Holder
from layerfs.workspace.cacheupkeep import Evicted
from layerfs.workspace.detach import Detached
from layerfs.workspace.listing import Listed, State

HOUR = 3600


def test_the_contract_names_every_command_and_no_other() -> None:
    assert set(CONTRACT.documents) == {row.name for row in COMMANDS}


def test_every_list_that_is_printed_line_by_line_is_in_the_contract() -> None:
    for row in COMMANDS:
        lists = {
            key.name for one in CONTRACT.documents[row.name] for key in one.keys if key.shape.base == "list"
        }
        assert not row.lines or row.lines in lists, row.name


def test_every_status_word_has_a_meaning() -> None:
    used = {word for forms in CONTRACT.documents.values() for one in forms for word in one.status}
    assert set(CONTRACT.status) == used | {"error"}


def test_meanings_are_sentences() -> None:
    tables = [one.keys for forms in CONTRACT.documents.values() for one in forms] + list(
        CONTRACT.types.values()
    )
    for key in (key for table in tables for key in table):
        assert key.meaning.endswith(".") and not key.meaning[0].islower(), key


GOOD: dict[str, Any] = {
    "schema": "layerfs.show-ref/1",
    "status": "ok",
    "data": {"refs": [{"name": "refs/heads/a", "commit": "0" * 64}]},
    "errors": [],
}


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"},
        {"status": "error"},
        {"data": {}},
        {"data": {"refs": [], "more": 1}},
        {"data": {"refs": {}}},
        {"data": {"refs": [{"name": "a"}]}},
        {"data": {"refs": [{"name": "a", "commit": None}]}},
        {"data": {"refs": [{"name": "a", "commit": "xyz"}]}},
        {"data": {"refs": [{"name": 1, "commit": "0" * 64}]}},
        {"data": {"refs": [{"name": "a", "commit": "0" * 64, "commit_b64": "AA=="}]}},
        {"errors": [{"code": "x", "message": "y", "hint": ""}]},
        {"errors": [{"code": "x"}], "status": "error", "data": {}},
        {"extra": 1},
    ],
    ids=str,
)
def test_what_breaks_the_contract_is_refused(change: dict[str, Any]) -> None:
    check_document(GOOD)
    with pytest.raises(Broken):
        check_document(GOOD | change)


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_a_failure_is_a_document_without_data(row: Any, world: World) -> None:
    for option in ("--json", "--json-lines") if row.lines else ("--json",):
        done = world.run(*row.name.split(), "--no-such-option", option)
        assert done.code == 2
        assert (done.document["schema"], done.document["status"], done.document["data"]) == (
            row.schema,
            "error",
            {},
        )


class Life:
    """A store, and what its documents have shown."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.seen: Seen = set()

    def __call__(
        self, *words: str | Path, cwd: Path | None = None, code: int = 0, stdin: bytes = b"", **env: str
    ) -> Any:
        """Run a command, which must answer with this code; return its data."""
        project = self.project
        row = find_command(" ".join(map(str, words[:2]))) or find_command(str(words[0]))
        assert row is not None
        done = project.run(*project._with_json(words), cwd=cwd or project.source, stdin=stdin, env=env)
        assert done.code == code, (words, done.code, done.err.decode(errors="replace"))
        self.seen |= check_document(json.loads(done.out))
        data: Any = json.loads(done.out)["data"]
        if row.lines:
            self._line_by_line(row.lines, data, words, cwd or project.source, stdin)
        return data

    def _line_by_line(
        self, key: str, data: Any, words: tuple[str | Path, ...], cwd: Path, stdin: bytes
    ) -> None:
        """Demand that ``--json-lines`` says the same, item by item."""
        at = words.index("--") if "--" in words else len(words)
        done = self.project.run(*words[:at], "--json-lines", *words[at:], cwd=cwd, stdin=stdin)
        assert done.items == data.get(key, [])
        rest = {name: value for name, value in data.items() if name != key}
        assert json.loads(done.out.splitlines()[-1])["data"] == rest

    def present(self, command: str, reply: Reply) -> None:
        """Look at an answer made by hand."""
        row = find_command(command)
        assert row is not None
        made = document(row.schema, reply.status, reply.data, reply.errors)
        self.seen |= check_document(json.loads(made))


@pytest.fixture
def life(project: Project) -> Life:
    return Life(project)


def test_every_key_and_every_status_occurs(life: Life, tmp_path: Path) -> None:
    _start(life, tmp_path)
    _lines_of_work(life)
    _objects(life)
    _workspaces(life)
    _coming_together(life)
    _elsewhere(life, tmp_path)
    _upkeep(life, tmp_path)
    _by_hand(life)
    missing = sorted(map(str, _promised() - life.seen))
    assert not missing, f"no command says: {missing}"


def _promised() -> Seen:
    """Return every key of every form and of every type that a key names, and every status."""
    promised: Seen = set()
    pending = []
    for command, forms in CONTRACT.documents.items():
        for one in forms:
            promised |= {(command, status) for status in one.status}
            pending.append((form(one), one.keys))
    while pending:
        owner, keys = pending.pop()
        for key in keys:
            if (key.origin or owner, key.name) not in promised:
                promised.add((key.origin or owner, key.name))
                leaf = key.shape.leaf
                pending += [(leaf, CONTRACT.types[leaf])] if leaf in CONTRACT.types else []
    return promised


def _start(life: Life, tmp_path: Path) -> None:
    project = life.project
    project.write(text="1\n2\n3\n4\n5\n6\n7\n", other="o\n", picture=b"\0\1\2", d__x="x\n", empty="")
    project.write(big=bytes(range(256)) * 1024)
    for number in range(300):
        project.write(**{f"many__{number}": "m"})
    (project.source / "into").symlink_to(project.source / "text")
    (project.source / "missing").symlink_to("/nowhere/at/all")
    (tmp_path / "theirs").write_text("t")
    (project.source / "foreign").symlink_to(tmp_path / "theirs")
    (project.source / os.fsdecode(b"odd\xff")).write_text("odd")
    (tmp_path / "bare").mkdir()
    life("init", "--empty", "--store", tmp_path / "nothing", cwd=tmp_path / "bare")
    project.store = Path(life("init")["store"])
    life("doctor")
    for words in (
        ["list"],
        ["get", "capture.exclude"],
        ["set", "gc.reflog-expire", "80"],
        ["unset", "gc.reflog-expire"],
    ):
        life("config", *words)
    life("help", "scripting")


def _lines_of_work(life: Life) -> None:
    life("fork", "a", "b", "c", "gone")
    life("branch")
    life("branch", "-m", "c", "d")
    life("branch", "reset", "d", "main")
    life("branch", "-d", "gone")
    life("tag", "v1", "main")
    life("tag", "v1", "main")
    life("tag")
    life("status")
    (life.project.source / "text").write_text("1\n2\nthree\n4\n5\n6\n7\n")
    life("status")
    life("diff")
    life("diff", "--stat")
    life("diff", "--name-status")
    life("commit", "-m", "three", "--agent", "me")
    life("commit", "-m", "nothing")
    life("branch", "reset", "d", "work")
    life("reflog")
    for words in ([], ["--oneline"], ["-n", "1", "--", "text"]):
        life("log", *words)
    for words in ([], ["-s"], ["--name-status"], ["L1"], ["work:text"], ["work:d"]):
        life("show", *words)
    life("blame", "text")


def _objects(life: Life) -> None:
    life("hash-object", "text", "empty")
    life("hash-object", "--stdin", stdin=b"x")
    for word in ("-t", "-s", "-e"):
        life("cat-file", word, "main")
    life("cat-file", "chunk", "main:text")
    for word in ("main:text", "main:big", "main:d", "main:many", "main", "L1"):
        life("cat-file", "-p", word)
    root = life("show", "main")["root"]
    life("cat-file", "-p", root)
    life("cat-file", "-p", life("ls-layers")["layers"][0]["id"])
    life("cat-file", "--batch", stdin=b"main\nno such thing\n")
    life("chunk-file", "big")
    life("ls-extents", "main:big")
    life("read-extent", "main:big", "5", "100")
    life("splice-extent", "main:big", "5", "1", "--zeros", "2")
    life("splice-extent", "main:text", "0", "0", "--zeros", "1", "--root")
    life("hash-object", "big", "--base", "main:big", "--range", "0:5")
    life("ls-tree", "-r", "main")
    life("write-tree", "d")
    life("commit-tree", root, "-m", "x")
    life("diff-tree", "main", "work")
    life("merge-base", "main", "work")
    life("merge-base", "--is-ancestor", "main", "work")
    life("rev-parse", "main", "work")
    life("rev-parse", "--stdin", stdin=b"main\nno such thing\n")
    life("rev-list", "work")
    life("rev-list", "--count", "work")
    life("show", "main:into")
    life("show-ref")
    life("update-ref", "refs/heads/plain", life("rev-parse", "main")["revisions"][0]["id"])
    life("update-ref", "--stdin", stdin=b"")
    life("ls-pack")
    life("ls-pack", life("ls-pack")["packs"][0]["name"])
    life("verify-pack")
    life("count-objects")
    _ranges(life)


def _ranges(life: Life) -> None:
    life("read-extent", "main:big", "10", "20")
    life("splice-extent", "main:big", "10", "2", stdin=b"xyz")
    life("splice-extent", "main:big", "10", "2", "--root", stdin=b"xyz")


def _workspaces(life: Life) -> None:
    project = life.project
    place = project.work / "a"
    life("mount", "a", place, "--engine", "copy")
    life("workspace", "list")
    life("workspace", "show", "a")
    (place / "text").write_text("new\n")
    life("restore", "main", "text", "--discard", cwd=place)
    life("restore", "main", cwd=place)
    life("update", cwd=place)
    child = project.start_any(["sh", "-c", f"echo here; exec sleep {HOUR}"], cwd=place)
    assert child.stdout is not None and child.stdout.readline()
    life("unmount", "a", "--force")
    life("mount", "a", place, "--engine", "copy")
    life("workspace", "remove", "a")
    life("run", "b", "--no-at-source", "--commit", "-m", "by run", "--", "sh", "-c", "echo r > made")
    life("shell", "b", "--no-at-source", "--commit", SHELL="/bin/true")
    life("warm", "main")


def _coming_together(life: Life) -> None:
    project = life.project
    life("fork", "ours", "theirs")
    places = {}
    for name in ("ours", "theirs"):
        place = places[name] = project.work / name
        life("mount", name, place, "--engine", "copy")
        (place / "text").write_text(f"1\n2\n3\n4\n5\n6\n{name}\n")
        (place / "picture").write_bytes(b"\0" + name.encode())
        (place / name).write_text(name)
        life("commit", "-m", name, cwd=place)
    ours = places["ours"]
    life("merge", "theirs", "--into", "ours", code=1)
    life("merge", "ours", "--into", "ours")
    life("update", "theirs", cwd=ours, code=1)
    life("update", "theirs", "--mark", cwd=ours, code=1)
    found = life("conflicts", cwd=ours, code=1)["undecided"]
    assert any("edit the file" in one["hint"] for one in found) and all(
        one["path"] in one["hint"] for one in found
    )
    life("status", cwd=ours)
    (hint,) = (one["hint"] for one in found if one["path"] == "picture")
    life(*shlex.split(hint.split("'")[1])[1:], cwd=ours / "d")
    life("update", "--abort", cwd=ours)
    _conflicting_commits(life, places["theirs"])
    life("fork", "third")
    life("merge", "ours", "--into", "third")
    life("publish", "ours")
    life("publish", "ours")
    life("publish", "theirs", code=1)
    life("publish", "theirs", "--mode", "overwrite")
    life("layers", "--covered")
    life("ls-layers")


def _conflicting_commits(life: Life, place: Path) -> None:
    """Move the branch on below two workspaces that changed the same line."""
    project = life.project
    second, third = project.work / "second", project.work / "third"
    life("mount", "theirs", second, "--engine", "copy")
    life("mount", "theirs", third, "--engine", "copy")
    for number, one in enumerate((place, second, third)):
        (one / "other").write_text(f"{number}\n")
    life("commit", "-m", "first", cwd=place)
    life("commit", "-m", "second", cwd=second, code=1)
    life("unmount", "--commit", cwd=third, code=1)
    again = project.work / "again"
    life("mount", "theirs", again, "--engine", "copy")
    for command in ("run", "shell"):
        commit = f"env -u LAYERFS_WORKSPACE {sys.executable} -m layerfs commit -m again"
        script = project.work / command
        script.write_text(f"#!/bin/sh\necho mine > other; cd {again} && echo {command} > other && {commit}\n")
        script.chmod(0o755)
        tail = ["--", script] if command == "run" else []
        life(command, "theirs", "--no-at-source", "--commit", *tail, SHELL=str(script))


def _elsewhere(life: Life, tmp_path: Path) -> None:
    project = life.project
    clone = tmp_path / "clone"
    life("clone", project.store, clone)
    life("fetch", clone)
    life("push", clone)
    life("fork", "fresh", "--store", clone, cwd=tmp_path)
    life("fetch", clone)
    life("branch", "reset", "b", life("commit-tree", "L2", "-m", "apart")["commit"])
    life("push", clone, "b", code=1)
    life("fetch", clone, "b", code=1)
    life("push", clone, "d", "b", "--force")


def _upkeep(life: Life, tmp_path: Path) -> None:
    project = life.project
    life("checkout", "main", "--to", tmp_path / "out")
    life("stats")
    life("fsck")
    life("gc")
    life("branch", "-D", "b")
    life("gc", "--dropped-expire", "0", "--reflog-expire", "0")
    life("gc", "--dropped-expire", "0", "--reflog-expire", "0")
    life("repack")
    life("prune")
    damaged = tmp_path / "damaged"
    life("clone", project.store, damaged)
    pack = max((damaged / "packs").glob("*"), key=lambda path: path.stat().st_size)
    raw = bytearray(pack.read_bytes())
    raw[len(raw) // 2] ^= 1
    pack.write_bytes(raw)
    life("fsck", "--store", damaged, code=1)
    life("verify-pack", "--store", damaged, code=1)
    life("fsck", "--store", damaged, "--repair", code=1)
    for one in life("workspace", "list")["workspaces"]:
        if one["name"] != "source":
            life("workspace", "remove", one["name"], "--discard")
    (project.source / "d/x").unlink()
    life("commit", "-m", "no x")
    life("purge", "d/x")


ID = bytes(range(32))


def _by_hand(life: Life) -> None:
    plain = Entry(EntryKind.FILE, 0o644, 1, 2, 3, 4, ID, ((b"user.a", b"\xff"),), 7)
    device = plain._replace(kind=EntryKind.CHARDEV, ref=device_ref(1, 2), size=0)
    life.present("diff-tree", present_raw_changes([Change(b"n", None, device)]))
    life.present("ls-tree", present_tree(iter([(b"f", plain), (b"n", device)]), False))
    commit = Commit(
        ID, (ID,), 1, 0, "a", "m", (), (Read(b"p", ID), Read(b"q", b"")), ((b"o", b"n"),), ((b"p", "kept"),)
    )
    life.present("log", present_log([LoggedCommit(ID, commit)], {}, "full"))
    layer = Layer(2, ID, ID, "merge", 1, "a", "m", "b", (Check("make test", 0),), (ID,))
    life.present("ls-layers", present_layer_lines([StackedLayer(ID, layer, (1,), (b"p",))]))
    note = Note(b"p", NoteKind.MODE, "both changed it", plain, plain)
    life.present("merge", present_merge(Combined(Merging.MERGED, "b", ID, ID, (), (note,)), "a", True))
    problem = Problem(b"p\xff", "it vanished", True)
    life.present("write-tree", present_written(WrittenTree(ID, 1, 2, [problem], [b"mnt"])))
    life.present("prune", present_pruned(Pruned(Collected(), Evicted(), 0, 0, (b"/x",))))
    objects = MemoryObjects()
    top = build_extents(objects, (Extent(1 << 16, bytes([number % 256]) * 32) for number in range(3000)))
    life.present("cat-file", present_readable(Found("big", top, Kind.EXTENT, objects.objects[top][1])))
    record = WorkspaceRecord("w", "b", Engine.OVERLAY, b"/w", ID, ID, 1, layers=("l",))
    life.present("workspace show", present_workspace(Listed(record, State.STALE, b"/upper")))
    life.present(
        "workspace list",
        Reply({"workspaces": [present_workspace(Listed(record, State.STALE, b"/upper")).data]}),
    )
    kept = Detached("w", b"/w", kept=True, ended=(Holder(7, "sleep", ("cwd",)),), uncommitted=1)
    life.present("unmount", present_detached(kept))
    life.present("workspace remove", present_detached(kept))

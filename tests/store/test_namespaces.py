"""Two mount and pid namespaces on one store: what one has the other cannot see, and takes nothing from it.

Process ids and mount tables mean nothing across the border; only the kernel's own locks and marks do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from project import Project, assert_no_traceback, refusal
from storekit import assert_clean, make_store, open_store
from world import ROOT, Outcome

from layerfs.durable.atomicfile import Files
from layerfs.objects.kinds import Kind, object_id

PRIVATE = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private"]


@pytest.fixture(autouse=True)
def private_mounts(need_overlay: None) -> None:
    """Every mount ends with its own namespace, or with this process."""
    from mounting import enter_private_namespace

    enter_private_namespace()


class Border:
    """A mount and pid namespace of its own, in which commands can be run as long as it stands."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._holder = project.start_any([*PRIVATE, "--kill-child", "sleep", "600"])
        self._pid = 0
        while not self._pid:
            assert self._holder.poll() is None
            children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
            name = Path(f"/proc/{children[0]}/comm").read_text().strip() if children else ""
            self._pid = int(children[0]) if name == "sleep" else 0

    def _enter(self, words: tuple[str | Path, ...], cwd: Path) -> list[str | bytes | Path]:
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', cwd, sys.executable, "-m", "layerfs", *words]
        return ["nsenter", "--target", str(self._pid), "--mount", "--pid", *inside]

    def run(self, *words: str | Path, cwd: Path | None = None) -> Outcome:
        """Run layerfs in the namespace."""
        return self._project.execute(self._enter(words, cwd or self._project.source))

    def document(self, *words: str | Path, cwd: Path | None = None) -> Any:
        """Run layerfs in the namespace, which must work; return the data of its document."""
        done = self.run(*words, "--json", cwd=cwd)
        assert done.code == 0, (words, done.err.decode(errors="replace"))
        return done.document["data"]

    def start(self, *words: str | Path, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        """Start layerfs in the namespace."""
        return self._project.start_any(
            [
                word if isinstance(word, Path) else os.fsdecode(word)
                for word in self._enter(words, cwd or Path("/"))
            ]
        )

    def shell(self, script: str, *words: str | Path) -> Outcome:
        """Run a shell script in the namespace."""
        enter = ["nsenter", "--target", str(self._pid), "--mount", "--pid", "sh", "-c", script, "sh", *words]
        return self._project.execute(enter)

    def end(self) -> None:
        """End the namespace as a container runtime does: everything in it is killed, and its mounts go."""
        self._holder.send_signal(signal.SIGKILL)
        self._holder.communicate(timeout=30)


@contextmanager
def border(project: Project) -> Iterator[Border]:
    made = Border(project)
    try:
        yield made
    finally:
        made.end()


def states(seen_from: Project | Border) -> dict[str, str]:
    rows = seen_from.document("workspace", "list")["workspaces"]
    return {row["name"]: row["state"] for row in rows}


@pytest.fixture
def shared(project: Project) -> Project:
    project.write(a="one\n", d__b="b\n")
    project.init()
    return project


def test_a_workspace_of_another_namespace_is_neither_mounted_again_nor_taken_away(shared: Project) -> None:
    """Neither healed, removed, run in, nor collected from outside; and healed, with its work, once its namespace died."""
    shared.document("fork", "f")
    place = shared.work / "ws"
    with border(shared) as one, border(shared) as two:
        one.document("mount", "f", place, "--engine", "overlay")
        assert one.shell('echo committed > "$1/a"', place).code == 0
        one.document("commit", "-m", "inside", cwd=place)
        assert one.shell('echo open > "$1/b"', place).code == 0
        assert states(one)["f"] == "attached"
        for other in (shared, two):
            assert states(other)["f"] == "private"
            for words in (
                ["unmount", "f", "--discard"],
                ["unmount", "f"],
                ["workspace", "remove", "f", "--discard"],
                ["run", "--in", "f", "--", "true"],
            ):
                done = other.run(*words, cwd=shared.source)
                assert "another mount namespace" in refusal(done, 11), words
            other.document("prune", "--cache", "--dropped-expire", "0", "--reflog-expire", "0")
            assert one.shell('cat "$1/a" "$1/b" "$1/d/b"', place).out == b"committed\nopen\nb\n"
        second = two.document("mount", "f", shared.work / "second", "--engine", "overlay")
        assert second["name"] == "f.2" and not second["healed"]
        assert one.shell('echo more >> "$1/b"', place).code == 0
        one.document("commit", "-m", "again", cwd=place)
        assert one.shell('echo uncommitted > "$1/c"', place).code == 0
    assert states(shared) == {"f": "stale", "f.2": "stale", "source": "attached"}
    done = shared.run("mount", "f", cwd=shared.source)
    assert done.code == 0 and b"its work is kept" in done.err
    assert (place / "c").read_bytes() == b"uncommitted\n"
    assert shared.changes(place) == {"c": "A"}
    shared.document("unmount", "f", "--commit", "-m", "rest")
    state = shared.checkout("f")
    assert {name: (state / name).read_text() for name in "abc"} == {
        "a": "committed\n",
        "b": "open\nmore\n",
        "c": "uncommitted\n",
    }
    shared.fsck()


def test_a_run_of_another_namespace_is_left_alone_and_is_over_when_it_is(shared: Project) -> None:
    """A lock says that it lives, not a process id: there it may be that of anybody, here of somebody else."""
    shared.document("fork", "f")
    script = "echo work > work; echo ready; sleep 300"
    with border(shared) as one:
        running = one.start("run", "f", "--", "sh", "-c", script, cwd=shared.source)
        assert running.stdout is not None and running.stdout.readline() == b"ready\n"
        assert states(shared)["f"] == "private"
        for words in (["unmount", "f", "--discard"], ["run", "--in", "f", "--", "true"]):
            assert "in use by a run" in refusal(shared.run(*words, cwd=shared.source), 11)
    running.communicate(timeout=30)
    assert states(shared)["f"] == "kept"
    assert shared.run("run", "--in", "f", "--", "cat", "work", cwd=shared.source).out == b"work\n"
    shared.fsck()


def test_writers_and_upkeep_on_both_sides_lose_nothing(
    shared: Project, request: pytest.FixtureRequest
) -> None:
    """Small and big commits to one branch and to two, from both sides, beside collections and repacks on both."""
    rounds = 20 if request.config.getoption("--full") else 3
    with border(shared) as one, border(shared) as two:
        sides = {"one": one, "two": two}
        for name, side in sides.items():
            side.document("fork", name)
            for branch in ("main", name):
                revision = "shared" if branch == "main" else name
                if name == "one" and revision == "shared":
                    side.document("fork", "shared")
                side.document("mount", revision, shared.work / f"{name}-{revision}", "--engine", "overlay")
        for number in range(rounds):
            running = []
            for name, side in sides.items():
                for revision in ("shared", name):
                    place = shared.work / f"{name}-{revision}"
                    size = 9_000_000 if revision == name else 100
                    write = 'head -c "$3" /dev/urandom > "$1/$2"'
                    assert side.shell(write, place, f"{name}-{number}", str(size)).code == 0
                    running.append(side.start("commit", "-m", f"{name} {number}", cwd=place))
                running.append(side.start("gc", "--dropped-expire", "0", cwd=shared.source))
                running.append(side.start("repack", cwd=shared.source))
            for at, child in enumerate(running):
                out, err = child.communicate(timeout=120)
                done = Outcome(child.returncode, out, err)
                assert_no_traceback(done)
                if at % 4 < 2:
                    assert done.code == 0, err.decode(errors="replace")
                else:
                    assert done.code == 0 or b"another collection or repack" in err, err.decode(
                        errors="replace"
                    )
        shared.fsck()
        wanted = {f"{name}-{number}" for name in sides for number in range(rounds)}
        assert wanted <= set(os.listdir(shared.checkout("shared")))
        for name in sides:
            assert {f"{name}-{number}" for number in range(rounds)} <= set(os.listdir(shared.checkout(name)))


def test_a_sweep_takes_no_index_that_another_pid_namespace_is_writing(tmp_path: Path) -> None:
    place = tmp_path / "s"
    swept: list[int] = []
    script = (
        "import sys\nfrom pathlib import Path\nfrom storekit import open_store\n"
        "with open_store(Path(sys.argv[1])) as store:\n    print(len(store.sweep()))\n"
    )

    class SweptFiles(Files):
        def sync(self, descriptor: int) -> None:
            """Let somebody in another pid namespace sweep at each sync of the batch."""
            super().sync(descriptor)
            done = subprocess.run(
                [*PRIVATE, sys.executable, "-c", script, place],
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'man'}"},
                capture_output=True,
                timeout=60,
                check=True,
            )
            swept.append(int(done.stdout))

    make_store(place).close()
    with open_store(place, files=SweptFiles()) as store, store.batch() as batch:
        for number in range(2100):
            batch.put(Kind.CHUNK, b"%d" % number)
        batch.prepare()
        assert len(swept) == 2 and set(swept) == {0}, "the pack, then its index"
        store.files.sync = Files().sync  # type: ignore[method-assign]
        with store.lane() as lane:
            lane.apply(batch, [], "t")
    with open_store(place) as store:
        assert store.objects.contains(object_id(Kind.CHUNK, b"7"))
        assert_clean(store)

"""A whole project under test: a captured directory, its store, workspaces of it, and nothing left when it is over.

Everything goes through the command line, as real processes. What a test mounts or starts is taken away by
:meth:`Project.close`, also when the test failed in the middle, and mounts are made in a mount namespace that ends with
the test process anyway.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from odd_tree import describe
from world import Outcome, World

from layerfs.store.store import Store
from layerfs.upkeep.verify import verify_store

UNTRACKED = frozenset((b".layerfs",))
"""Names at the top of a workspace that are layerfs's own and no part of the environment."""

Description = dict[bytes, tuple[object, ...]]


class Project(World):
    """A world with a directory ``src`` to capture; ``store`` is known once it was."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.source = self.work / "src"
        self.source.mkdir()
        self.store = Path()
        self._started: list[subprocess.Popen[bytes]] = []
        self._targets = 0

    def environment(self, **extra: str) -> dict[str, str]:
        """As the world's, and no module of the current directory may shadow one of Python's."""
        return {"PYTHONSAFEPATH": "1", **super().environment(**extra)}

    def write(self, **files: str | bytes) -> None:
        """Write files of the source; ``__`` in a name stands for a slash."""
        for name, content in files.items():
            path = self.source / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def init(self, *options: str | Path) -> Any:
        """Capture the source; return what the command says of it."""
        data = self.document("init", *options, cwd=self.source)
        self.store = Path(data["store"])
        return data

    def document(
        self, *arguments: str | bytes | Path, cwd: Path | None = None, codes: tuple[int, ...] = (0,)
    ) -> Any:
        """Run a command with ``--json``; return the data of its document."""
        done = self.run(*self._with_json(arguments), cwd=cwd or self.source)
        assert done.code in codes, (arguments, done.code, done.out, done.err.decode(errors="replace"))
        assert_no_traceback(done)
        return done.document["data"]

    @staticmethod
    def _with_json(arguments: tuple[str | bytes | Path, ...]) -> list[str | bytes | Path]:
        at = arguments.index("--") if "--" in arguments else len(arguments)
        return [*arguments[:at], "--json", *arguments[at:]]

    def mount(self, revision: str, engine: str = "overlay", where: Path | None = None) -> Path:
        """Mount a revision, by default next to the source; return where."""
        place = where or self.work / f"ws-{revision}"
        data = self.document("mount", revision, place, "--engine", engine)
        assert data["engine"] == engine
        return place

    def fork(self, name: str, engine: str = "overlay", *, start: str = "main") -> Path:
        """Make a branch and mount it."""
        self.document("fork", name, "--from", start)
        return self.mount(name, engine)

    def commit(self, place: Path, message: str = "work") -> Any:
        """Commit the workspace at ``place``, which must work."""
        return self.document("commit", "-m", message, cwd=place)

    def changes(self, place: Path) -> dict[str, str]:
        """Return path → letter of what ``status`` calls changed."""
        found = self.document("status", "--all", cwd=place)["changes"]
        return {change["path"]: change["status"] for change in found}

    def checkout(self, revision: str, codes: tuple[int, ...] = (0,)) -> Path:
        """Check a revision out into a new directory; return it."""
        self._targets += 1
        target = self.work / f"out-{self._targets}"
        self.document("checkout", revision, "--to", target, codes=codes)
        return target

    def start(self, *arguments: str | Path, cwd: Path | None = None, **extra: str) -> subprocess.Popen[bytes]:
        """Start a command and do not wait for it."""
        return self.start_any([sys.executable, "-m", "layerfs", *arguments], cwd, **extra)

    def start_any(
        self, command: list[str | Path], cwd: Path | None = None, **extra: str
    ) -> subprocess.Popen[bytes]:
        """Start any command in a process group of its own and do not wait for it."""
        child = subprocess.Popen(
            command,
            cwd=cwd or self.source,
            env=self.environment(**extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._started.append(child)
        return child

    def fsck(self, read_data: bool = True) -> None:
        """Demand that the store opens and that everything in it is whole."""
        with Store.open(os.fsencode(self.store), clock=time.time_ns) as store:
            report = verify_store(store, read_data=read_data)
        assert report.clean, report.problems

    def close(self) -> None:
        """Take away what the test left: processes, then mounts, innermost first."""
        for child in self._started:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate(timeout=30)
        for place in reversed(mounts_below(self.root)):
            subprocess.run(["umount", "-l", place], check=False, capture_output=True, timeout=30)


def assert_no_traceback(done: Outcome) -> None:
    """Demand that a command ended with a documented code and without a traceback."""
    assert b"Traceback" not in done.err + done.out, done.err.decode(errors="replace")
    assert done.code in (0, 1, 2, 3, 10, 11, 12, 13, 20, 30, 40), (done.code, done.err)


def refusal(done: Outcome, code: int) -> str:
    """Demand one clear error line and this exit code; return the line."""
    assert_no_traceback(done)
    text = done.err.decode("utf-8", "surrogateescape")
    assert done.code == code, (done.code, text, done.out)
    lines = [line for line in text.splitlines() if line.startswith("layerfs: error: ")]
    assert len(lines) == 1, text
    return lines[0]


def mounts_below(top: Path) -> list[str]:
    """Return the mount points below ``top``, in the order of the mount table."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        places = [line.split(" ")[4] for line in table]
    base = os.path.realpath(top)
    return [place for place in places if place == base or place.startswith(f"{base}/")]


def seen(top: Path, *, times: bool = True, skip: frozenset[bytes] = UNTRACKED) -> Description:
    """Describe a directory as ``describe`` does, without what is layerfs's own."""
    return {path: entry for path, entry in describe(top, times=times).items() if path not in skip}


def difference(one: Description, other: Description) -> dict[bytes, tuple[object, object]]:
    """Return what differs, by path."""
    paths = one.keys() | other.keys()
    return {path: (one.get(path), other.get(path)) for path in paths if one.get(path) != other.get(path)}

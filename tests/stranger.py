"""Somebody who is not root, on a machine where the tests' own interpreter and checkout are root's.

He has a home of his own, and the interpreter, its packages and this checkout are mounted where everybody may go. With
``denied`` his commands run where the kernel refuses user namespaces, as on machines with such a policy.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from world import ROOT, Outcome

from layerfs.workspace.overlayprobe import enter_user_namespace

PR_SET_DUMPABLE = 4


def deny_user_namespaces() -> None:
    """Run in a child just before its exec: no user namespaces below this one; the machine's own limit stays."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    enter_user_namespace()
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


class Stranger:
    """A uid with a home, a directory ``src`` to capture, and nothing else."""

    def __init__(self, top: Path, uid: int) -> None:
        self.top = top
        self.uid = uid
        self.home = top / "home"
        self.source = self.home / "src"
        for directory in (self.home, self.source):
            directory.mkdir()
            os.chown(directory, uid, uid)

    @property
    def python(self) -> Path:
        """The interpreter, where he may run it."""
        return self.top / "python/bin" / Path(os.path.realpath(sys.executable)).name

    @property
    def store(self) -> Path:
        """His one store in the default place."""
        (found,) = (self.home / ".local/share/layerfs").iterdir()
        return found

    def run(self, *words: str | bytes | Path, cwd: Path | None = None, denied: bool = False) -> Outcome:
        """Run ``layerfs`` as he would."""
        return self.execute([self.python, "-m", "layerfs", *words], cwd, denied)

    def execute(
        self, command: list[str | bytes | Path], cwd: Path | None = None, denied: bool = False
    ) -> Outcome:
        """Run any command as he would."""
        done = subprocess.run(
            command,
            cwd=cwd or self.source,
            env=self.environment(),
            user=self.uid,
            group=self.uid,
            extra_groups=[],
            preexec_fn=deny_user_namespaces if denied else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def environment(self) -> dict[str, str]:
        """Return what his commands have in their environment."""
        return {
            "PATH": os.defpath,
            "HOME": str(self.home),
            "PYTHONPATH": f"{self.top}/repo:{self.top}/site",
            "LD_LIBRARY_PATH": f"{self.top}/python/lib",
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "LC_ALL": "C.UTF-8",
            "LAYERFS_AUTHOR": "Somebody <somebody@example.org>",
        }

    def ok(self, *words: str | bytes | Path, cwd: Path | None = None, denied: bool = False) -> Outcome:
        """Run ``layerfs``, which must exit 0."""
        done = self.run(*words, cwd=cwd, denied=denied)
        assert done.code == 0, (words, done.code, done.err.decode(errors="replace"))
        return done

    def document(self, *words: str | bytes | Path, cwd: Path | None = None, codes: tuple[int, ...] = (0,)) -> Any:
        """Run ``layerfs`` with ``--json``; return the data of its document."""
        at = words.index("--") if "--" in words else len(words)
        done = self.run(*words[:at], "--json", *words[at:], cwd=cwd)
        assert done.code in codes, (words, done.code, done.err.decode(errors="replace"))
        return done.document["data"]

    def write(self, name: str, content: str | bytes, mode: int = 0o644) -> Path:
        """Write a file of his below the source."""
        path = self.source / name
        for parent in reversed(path.relative_to(self.source).parents):
            directory = self.source / parent
            if not directory.exists():
                directory.mkdir()
                os.chown(directory, self.uid, self.uid)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        os.chmod(path, mode)
        os.chown(path, self.uid, self.uid)
        return path


@contextmanager
def a_stranger(uid: int = 1000) -> Iterator[Stranger]:
    """Make somebody; what was mounted for him is gone afterwards."""
    top = Path(tempfile.mkdtemp(prefix="layerfs-stranger-"))
    os.chmod(top, 0o755)
    mounted = []
    try:
        for name, origin in (
            ("python", sys.base_prefix),
            ("site", sysconfig.get_paths()["purelib"]),
            ("repo", os.fspath(ROOT)),
        ):
            (top / name).mkdir()
            subprocess.run(["mount", "--bind", origin, top / name], check=True, timeout=20)
            mounted.append(top / name)
        yield Stranger(top, uid)
    finally:
        for place in reversed(mounted):
            subprocess.run(["umount", "-l", place], check=True, timeout=20)
        shutil.rmtree(top)

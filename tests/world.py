"""The hermetic world of a command-line test: its own home, clock, author, width and directory, and nothing else.

Commands run as real processes, as a user runs them. The clock starts at a fixed instant and stands one minute later for
every command, so that ids are the same on every run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from contracted import check_document

EPOCH_NS = 1_735_689_600_000_000_000
MINUTE_NS = 60_000_000_000
ROOT = Path(__file__).resolve().parent.parent


class Outcome(NamedTuple):
    """What one command did."""

    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.out.decode("utf-8", "surrogateescape")

    @property
    def document(self) -> Any:
        """Standard output as the JSON document it must be, which must keep its contract."""
        document = json.loads(self.out)
        check_document(document)
        return document

    @property
    def items(self) -> list[Any]:
        """Standard output as the items of ``--json-lines``; the document behind them must keep its contract."""
        *items, document = map(json.loads, self.out.splitlines())
        check_document(document, items)
        return items


class World:
    """A directory to work in, and the environment to run commands with."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.work = root / "work"
        self.home.mkdir(parents=True)
        self.work.mkdir()
        self._now_ns = EPOCH_NS

    def environment(self, **extra: str) -> dict[str, str]:
        """Return the environment of the next command and move the clock on by one minute."""
        self._now_ns += MINUTE_NS
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.home),
            "XDG_DATA_HOME": str(self.home / "data"),
            "PYTHONPATH": str(ROOT),
            "LAYERFS_CLOCK": str(self._now_ns),
            "LAYERFS_AUTHOR": "Test Author <test@example.org>",
            "COLUMNS": "80",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            **extra,
        }

    def run(
        self,
        *arguments: str | bytes | Path,
        cwd: Path | None = None,
        stdin: bytes = b"",
        env: dict[str, str] | None = None,
        timeout: float = 120,
    ) -> Outcome:
        """Run ``layerfs`` with ``arguments`` in ``cwd`` (default: the world's working directory)."""
        command = [sys.executable, "-m", "layerfs", *arguments]
        return self.execute(command, cwd=cwd, stdin=stdin, env=env, timeout=timeout)

    def execute(
        self,
        command: list[str | bytes | Path],
        cwd: Path | None = None,
        stdin: bytes = b"",
        env: dict[str, str] | None = None,
        timeout: float = 120,
    ) -> Outcome:
        """Run any command in the world."""
        done = subprocess.run(
            command,
            cwd=cwd or self.work,
            input=stdin,
            env=self.environment(**(env or {})),
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def ok(self, *arguments: str | bytes | Path, cwd: Path | None = None, stdin: bytes = b"") -> Outcome:
        """Run ``layerfs`` and demand that it exits 0."""
        outcome = self.run(*arguments, cwd=cwd, stdin=stdin)
        assert outcome.code == 0, f"{arguments} exited {outcome.code}: {outcome.err.decode(errors='replace')}"
        return outcome

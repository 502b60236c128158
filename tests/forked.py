"""A project whose commands run in forks of the test process: the same command line, without starting an interpreter.

The crash tests look at what a cut left through some thousands of commands. The cut command itself is a real process.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from pathlib import Path
from typing import NoReturn

from project import Project
from world import Outcome

from layerfs.cli.main import entry

_LAYERFS = [sys.executable, "-m", "layerfs"]


class ForkedProject(Project):
    """A project for checks: what it says and does is what :class:`Project` would."""

    def execute(
        self,
        command: list[str | bytes | Path],
        cwd: Path | None = None,
        stdin: bytes = b"",
        env: dict[str, str] | None = None,
        timeout: float = 120,
    ) -> Outcome:
        """Run a command in the world, ``layerfs`` in a fork."""
        if command[:3] != _LAYERFS or stdin:
            return super().execute(command, cwd, stdin, env, timeout)
        out, err = os.memfd_create("out"), os.memfd_create("err")
        environment = self.environment(**(env or {}))
        child = os.fork()
        if child == 0:
            _become(command[3:], cwd or self.work, environment, out, err)
        try:
            code = _wait(child, timeout)
            return Outcome(code, _content(out), _content(err))
        finally:
            os.close(out)
            os.close(err)


def _become(
    words: list[str | bytes | Path], cwd: Path, environment: dict[str, str], out: int, err: int
) -> NoReturn:
    try:
        os.setsid()
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
            os.dup2(descriptor, number)
        os.closerange(3, 4096)
        sys.stdin = open(0, closefd=False)
        sys.stdout = io.TextIOWrapper(
            open(1, "wb", closefd=False), encoding="utf-8", errors="surrogateescape"
        )
        sys.stderr = io.TextIOWrapper(
            open(2, "wb", closefd=False), encoding="utf-8", errors="surrogateescape"
        )
        sys.argv = ["layerfs", *(os.fsdecode(word) for word in words)]
        entry()
    finally:
        os._exit(70)


def _wait(child: int, timeout: float) -> int:
    ended = os.pidfd_open(child)
    try:
        if not select.select([ended], [], [], timeout)[0]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError("a command did not end")
    finally:
        os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

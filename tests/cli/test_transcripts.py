"""Whole-output transcripts: sessions in ``tests/cli/*.txt``, run in a hermetic world and compared to the letter.

A line that begins with ``$ `` is a shell command; what follows is what it printed: standard output as it is, standard
error with ``! `` before each line, and last the exit code in brackets if it is not 0. ``#`` lines before the first
command of a block are remarks. ``cd`` lasts. The world's directory is shown as ``$WORLD``, and each id as ``<1>``,
``<2>``, ... in order of appearance (owners differ between machines, and with them ids); a short id gets the number of
its long form. A line of output that would look like one of these marks has ``\\`` before it.

``pytest tests/cli/test_transcripts.py --update-transcripts`` writes what really came out; read the difference before you
commit it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from world import World

SESSIONS = sorted(Path(__file__).resolve().parent.glob("*.txt"))
_ID = re.compile(r"(?<![0-9a-zA-Z])(?:[0-9a-f]{64}|[0-9a-f]{12})(?![0-9a-zA-Z])")
_STORED = re.compile(r"\b\d+(\.\d)? [KM]?i?B stored")
_MARK = re.compile(r"\$ |! |\\|#|\[\d+\]$")


class Step(NamedTuple):
    """One command of a session: the remarks above it and what it is expected to print."""

    remarks: list[str]
    command: str
    expected: list[str]


def read_session(text: str) -> list[Step]:
    """Return the steps of a session file."""
    steps: list[Step] = []
    remarks: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append(Step(remarks, line[2:], []))
            remarks = []
        elif line.startswith("#"):
            remarks.append(line)
        elif steps and not remarks:
            steps[-1].expected.append(line)
        elif line:
            raise AssertionError(f"a line that belongs to no command: {line!r}")
    for step in steps:
        while step.expected and not step.expected[-1]:
            step.expected.pop()
    return steps


def write_session(steps: list[Step], printed: list[list[str]]) -> str:
    """Return the session file with what was printed, a blank line after each command."""
    lines: list[str] = []
    for step, output in zip(steps, printed, strict=True):
        lines += [*step.remarks, f"$ {step.command}", *output, ""]
    return "\n".join(lines)


class Session:
    """A shell session in a world: keeps the directory and the numbers of the ids seen."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cwd = world.work
        self._ids: list[str] = []
        self._where = world.root / "cwd"
        programs = world.root / "bin"
        programs.mkdir()
        for name, words in (("python3", ""), ("layerfs", "-m layerfs ")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n', encoding="utf-8")
            program.chmod(0o755)

    def run(self, command: str) -> list[str]:
        """Run one shell command and return what it printed, marked and normalised."""
        script = f'umask 022\n{command}\ncode=$?\npwd > "{self._where}"\nexit $code\n'
        env = self.world.environment()
        env["PATH"] = f"{self.world.root / 'bin'}:{env['PATH']}"
        done = subprocess.run(["sh", "-c", script], cwd=self.cwd, env=env, capture_output=True, timeout=120, check=False)
        self.cwd = Path(self._where.read_text(encoding="utf-8").rstrip("\n"))
        lines = [f"\\{line}" if _MARK.match(line) else line for line in self._lines(done.stdout)]
        lines += [f"! {line}" for line in self._lines(done.stderr)]
        while lines and not lines[-1]:
            lines.pop()
        return lines + ([f"[{done.returncode}]"] if done.returncode else [])

    def _lines(self, raw: bytes) -> list[str]:
        text = raw.decode("utf-8", "backslashreplace").replace(str(self.world.root), "$WORLD").replace("\0", "\\0\n")
        text = _STORED.sub("<size> stored", text)
        return _ID.sub(self._number, text).split("\n")[: -1 if text.endswith("\n") else None] if text else []

    def _number(self, match: re.Match[str]) -> str:
        found = match[0]
        for index, known in enumerate(self._ids):
            if known.startswith(found) or found.startswith(known):
                self._ids[index] = max(known, found, key=len)
                return f"<{index + 1}>"
        self._ids.append(found)
        return f"<{len(self._ids)}>"


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_transcript(path: Path, world: World, request: pytest.FixtureRequest) -> None:
    steps = read_session(path.read_text(encoding="utf-8"))
    session = Session(world)
    printed = [session.run(step.command) for step in steps]
    if request.config.getoption("--update-transcripts"):
        path.write_text(write_session(steps, printed), encoding="utf-8")
        return
    for step, output in zip(steps, printed, strict=True):
        assert output == step.expected, f"$ {step.command}"

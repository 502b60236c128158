"""Standard streams that are full, closed or gone: one line at most, a documented code, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from world import World


def shell(world: World, script: str) -> tuple[int, bytes]:
    """Run a bash script with ``$L`` as layerfs; return its exit code and what it wrote on stderr."""
    outcome = world.execute(["bash", "-c", script], env={"L": f"{sys.executable} -m layerfs"})
    return outcome.code, outcome.err


@pytest.mark.parametrize("words", ["help", "--help", "--json help nothing"])
def test_a_full_device(world: World, words: str) -> None:
    code, err = shell(world, f"$L {words} > /dev/full")
    assert code == 40
    assert b"error: no space left on device" in err and b"Traceback" not in err


@pytest.mark.parametrize("words", ["help", "--help", "--version"])
def test_a_closed_stdout_is_like_dev_null(world: World, words: str) -> None:
    assert shell(world, f"$L {words} >&-") == (0, b"")
    assert shell(world, f"$L {words} >&- 2>&- <&-") == (0, b"")


def test_a_reader_that_goes_away(world: World) -> None:
    assert shell(world, "$L help | true; exit ${PIPESTATUS[0]}")[0] in (0, 141)
    assert shell(world, "trap '' PIPE; $L help | true; exit ${PIPESTATUS[0]}")[1] == b""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals(world: World, tmp_path: Path, number: signal.Signals, code: int) -> None:
    """A signal while a command runs: here one that waits for a page that is a pipe nobody writes."""
    program = (
        "import os, signal\n"
        "from layerfs.cli import main\n"
        "from layerfs.commands import help\n"
        f"help.read_page = lambda topic: os.kill(os.getpid(), {int(number)}) or signal.pause()\n"
        "import sys; sys.argv[1:] = ['help']\n"
        "main.entry()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=world.environment(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")
    assert os.listdir(world.work) == []


def test_under_nohup_a_terminal_that_goes_away_ends_nothing(world: World) -> None:
    program = (
        "import os, signal\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from layerfs.cli import main\n"
        "from layerfs.commands import help\n"
        "page = help.read_page\n"
        "help.read_page = lambda topic: os.kill(os.getpid(), signal.SIGHUP) or page(topic)\n"
        "import sys; sys.argv[1:] = ['help']\n"
        "main.entry()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=world.environment(), capture_output=True, check=False
    )
    assert done.returncode == 0 and done.stdout

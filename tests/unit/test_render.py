"""The progress bar: on a terminal only, gone at the end, cheap to feed."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time

from world import ROOT

from layerfs.cli.quantities import counted, readable_ratio, readable_size, readable_time
from layerfs.cli.render import open_bar

PROGRAM = """
from layerfs.cli.render import open_bar
import time
with open_bar(80) as bar:
    bar.phase("reading", files=3, size=3 << 20)
    for _ in range(3):
        bar.advance(1, 1 << 20)
        time.sleep(0.15)
    bar.phase("writing")
    bar.advance(5)
"""


def test_a_bar_appears_on_a_terminal_and_goes_away() -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    child = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.DEVNULL, stderr=theirs, env=env)
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    assert child.wait() == 0
    assert b"reading" in seen and b"3 files  3.0 MiB" in seen and b"writing" in seen
    assert seen.rstrip(b"\r\n").endswith(b"\x1b[2K"), "the bar is erased at the end"


def test_feeding_a_million_files_costs_little() -> None:
    began = time.perf_counter()
    with open_bar(80) as bar:
        bar.phase("reading", files=1_000_000)
        for _ in range(100_000):
            bar.advance(1, 10)
    assert time.perf_counter() - began < 2


def test_quantities() -> None:
    assert [readable_size(size) for size in (0, 1023, 1024, 5_000_000, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "4.8 MiB",
        "3.0 TiB",
    ]
    assert (readable_ratio(10, 4), readable_ratio(0, 0)) == ("2.5x", "1.0x")
    assert (counted(1, "file"), counted(2000, "entry", "entries")) == ("1 file", "2,000 entries")
    assert readable_time(1_735_689_600_000_000_000, -90) == "2024-12-31 22:30:00 -0130"

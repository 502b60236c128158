"""Which implementation runs, and that the kernels really let other threads run."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from kernels import load

from layerfs.kernels import native


@pytest.fixture
def restored() -> Iterator[None]:
    before = native.available()
    yield
    native.select(kernel=before)


def test_twins_can_be_chosen(restored: None) -> None:
    native.select(kernel=False)
    assert not native.available()
    assert native.diff_lines(b"a\n", b"b\n") == [(0, 1, 0, 1)]


def test_kernel_is_chosen_where_it_was_built(restored: None) -> None:
    load("kernel")
    native.select(kernel=True)
    assert native.available()
    assert native.diff_lines(b"a\n", b"b\n") == [(0, 1, 0, 1)]


def test_choosing_needs_no_fastcdc_and_prints_nothing() -> None:
    code = (
        "import sys; from layerfs.kernels import native; native.select(kernel=False); native.zero_runs(bytes(5000));"
        "assert 'fastcdc' not in sys.modules and 'click' not in sys.modules;"
        "assert native.cut_points(b'x' * 70000, 8192, 16384, 32768)[-1] == 70000"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_cut_points_runs_without_the_gil() -> None:
    """While one call scans 128 MiB, the other thread gets to run many times (a held GIL would let it run not at all)."""
    kernel = load("kernel")
    data = b"\x5a" * (128 << 20)
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    kernel.cut_points(data, 8192, 16384, 32768, True)
    end = time.perf_counter()
    done.set()
    thread.join()
    assert sum(start < at < end for at in ticks) >= 3

"""How much memory commands need at most: much content, a directory of very many names, a huge sparse file.

Run ``python benchmarks/memory.py [--quick] [--json FILE]``. Whole processes; the figure is the most that was resident at
any time, as the kernel counts it for the process when it ends, pages of mapped files included. The full run needs about
20 GB of disk and some minutes. A peak has no spread worth stating, so each job runs once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness, peers
from benchmarks.environment import scratch
from benchmarks.harness import Result

GOAL = 300e6
MIB = 1 << 20


def much_content(top: Path, mebibytes: int) -> str:
    """Fill a directory with content that nothing compresses: two large files, the rest a MiB each."""
    for large in ("first", "second"):
        with open(top / large, "wb") as file:
            for _ in range(mebibytes // 5):
                file.write(os.urandom(MIB))
    for number in range(mebibytes - 2 * (mebibytes // 5)):
        (top / f"file-{number}").write_bytes(os.urandom(MIB))
    return f"{mebibytes / 1024:.1f} GiB of content"


def many_names(top: Path, count: int) -> str:
    """Make one directory of so many files, all with content of their own."""
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number in range(count):
            file = os.open(f"file-{number:07d}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=fd)
            os.write(file, b"%d\n" % number)
            os.close(file)
    finally:
        os.close(fd)
    return f"a directory of {count:,} names"


def sparse_file(top: Path, mebibytes: int) -> str:
    """Make a file that is a hole but for a page here and there."""
    with open(top / "sparse", "wb") as file:
        file.truncate(mebibytes * MIB)
        for part in range(16):
            os.pwrite(file.fileno(), os.urandom(4096), part * mebibytes * MIB // 16)
    return f"a sparse file of {mebibytes / 1024:.1f} GiB"


def measured(place: Path, make: Callable[[Path, int], str], amount: int) -> list[Result]:
    """Make a directory, capture it, look at it again unchanged and with a file more, and list it and write it out."""
    tree, home = place / "tree", place / "home"
    tree.mkdir(parents=True)
    what = make(tree, amount)
    peaks = {f"init of {what}": peers.layerfs_command(home, "init", tree).peak}
    peaks[f"status of {what}"] = peers.layerfs_command(home, "status", cwd=tree).peak
    (tree / "one more").write_bytes(b"new\n")
    peaks[f"status of a file more in {what}"] = peers.layerfs_command(home, "status", cwd=tree).peak
    peaks[f"commit of a file more in {what}"] = peers.layerfs_command(
        home, "commit", "-m", "more", cwd=tree
    ).peak
    peaks[f"ls-tree of {what}"] = peers.layerfs_command(home, "ls-tree", "HEAD", cwd=tree).peak
    out = place / "out"
    peaks[f"checkout of {what}"] = peers.layerfs_command(home, "checkout", "HEAD", "--to", out, cwd=tree).peak
    return [harness.limit(job, harness.sizes("peak", peak), at_most=GOAL) for job, peak in peaks.items()]


def measured_alone(make: Callable[[Path, int], str], amount: int) -> list[Result]:
    """Do it all in a new process: to remove a million names takes memory, from which the kernel would count on."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measured_in_scratch, make, amount).result()


def _measured_in_scratch(make: Callable[[Path, int], str], amount: int) -> list[Result]:
    with scratch("memory") as directory:
        return measured(Path(directory), make, amount)


def main() -> None:
    """Measure and report."""
    options = harness.arguments(__doc__)
    jobs: list[tuple[Callable[[Path, int], str], int, int]] = [
        (much_content, 5 * 1024, 100),
        (many_names, 1_000_000, 10_000),
        (sparse_file, 20 * 1024, 1024),
    ]
    results: list[Result] = []
    for make, full, quick in jobs:
        results += measured_alone(make, quick if options.quick else full)
    harness.report("memory", results, options.json)


if __name__ == "__main__":
    main()

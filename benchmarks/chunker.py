"""Cut points: the compiled kernel against the fastcdc package (Cython), on one thread and on two.

Run ``python benchmarks/chunker.py [--rounds N] [--json FILE] [--size MiB]``. The goal of the design: at least 1.5 times
as fast as the package (ratio of times ≤ 0.67), and the GIL released – two threads on a machine with two free CPUs should
take about the time of one, where the package takes twice as long.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fastcdc

from benchmarks import harness
from benchmarks.harness import Contender
from layerfs.kernels import native
from layerfs.objects.chunking import CHUNK_AVG, CHUNK_MAX, CHUNK_MIN, split_content

SIZES = (CHUNK_MIN, CHUNK_AVG, CHUNK_MAX)
GOAL = 1 / 1.5
BLOCK = 4 << 20


def contents(size: int) -> dict[str, bytes]:
    """Return what is cut: bytes that compress not at all, text, and small repeats."""
    line = b"%09d: the quick brown fox jumps over the lazy dog, and the dog does not mind\n"
    text = b"".join(line % number for number in range(size // 80 + 1))[:size]
    return {
        "random": hashlib.shake_128(b"chunker").digest(size),
        "text": text,
        "repeats": (hashlib.shake_128(b"repeat").digest(5000) * (size // 5000 + 1))[:size],
    }


def by_kernel(data: bytes) -> list[int]:
    return native.cut_points(data, *SIZES)


def by_package(data: bytes) -> list[int]:
    return [chunk.offset + chunk.length for chunk in fastcdc.fastcdc(data, *SIZES)]


def by_splitter(data: bytes) -> list[int]:
    blocks = (memoryview(data)[start : start + BLOCK] for start in range(0, len(data), BLOCK))
    return [piece.offset + piece.length for piece in split_content(blocks)]


def on_two_threads(cut: Callable[[bytes], list[int]], data: bytes) -> Callable[[], object]:
    def run() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(cut, [data, data]))

    return run


def main() -> None:
    """Measure and report."""
    if not native.available():
        sys.exit("the native kernels are not built")
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--size", type=int, default=256)
    size, rest = own.parse_known_args()
    options = harness.arguments(__doc__, rest)
    results = []
    speeds = {}
    for name, data in contents(size.size << 20).items():
        if by_kernel(data) != by_package(data):
            sys.exit(f"the cuts of {name} differ")
        timings = harness.run_interleaved(
            [
                Contender("layerfs kernel", partial(by_kernel, data)),
                Contender("split_content", partial(by_splitter, data)),
                Contender("fastcdc", partial(by_package, data)),
                Contender("layerfs kernel ×2", on_two_threads(by_kernel, data)),
                Contender("fastcdc ×2", on_two_threads(by_package, data)),
            ],
            options.rounds,
        )
        speeds[name] = {each.name: len(data) / each.median / 1e9 for each in timings.values()}
        package = timings["fastcdc"]
        results += [
            harness.compare(f"cut points, {name}", timings["layerfs kernel"], package, GOAL),
            harness.compare(f"pieces with holes, {name}", timings["split_content"], package),
            harness.compare(f"two threads, {name}", timings["layerfs kernel ×2"], timings["layerfs kernel"]),
            harness.compare(
                f"two threads, {name}", timings["layerfs kernel ×2"], timings["fastcdc ×2"], GOAL
            ),
        ]
    harness.report("chunker", results, options.json, gigabytes_per_second=speeds, size=size.size << 20)
    for name, each in speeds.items():
        print(
            f"\n{name}: "
            + ", ".join(f"{who} {speed:.2f} GB/s" for who, speed in each.items() if "×" not in who)
        )


if __name__ == "__main__":
    main()

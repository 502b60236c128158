"""Harness of the benchmarks: contenders run in turn, medians with their spread, ratios within one run, JSON.

An absolute time means little on a shared machine, so every contender runs once per round, in an order that turns from
round to round, and what is compared is the median over the rounds. Each script says what its contenders do; nothing
here knows layerfs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LEAST_ROUNDS = 5


class Contender(NamedTuple):
    """One side of a comparison: ``run`` is timed, ``prepare`` and ``clean`` before and after it are not."""

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object] | None = None
    clean: Callable[[], object] | None = None


class Timing(NamedTuple):
    """Seconds of each round of one contender: wall clock, and CPU of this process and the children it waited for."""

    name: str
    wall: list[float]
    cpu: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.wall)

    @property
    def cpu_median(self) -> float:
        return statistics.median(self.cpu)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a part of the median."""
        low, _, high = statistics.quantiles(self.wall, n=4, method="inclusive")
        return (high - low) / 2 / self.median if self.median else 0.0


class Result(NamedTuple):
    """One line of a table: what was measured, against what, and the goal for the ratio (None: only shown)."""

    job: str
    measured: Timing
    against: Timing
    goal: str
    met: bool | None

    @property
    def ratio(self) -> float:
        return self.measured.median / self.against.median


def arguments(description: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse what every benchmark takes: ``--rounds N`` and ``--json FILE``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS, help="runs of each contender (at least 5)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    found = parser.parse_args(argv)
    found.rounds = max(found.rounds, LEAST_ROUNDS)
    return found


def run_interleaved(contenders: Sequence[Contender], rounds: int, warm_up: int = 1) -> dict[str, Timing]:
    """Run each contender once a round, each round starting with another one; the first rounds are thrown away."""
    timings = {each.name: Timing(each.name, [], []) for each in contenders}
    for turn in range(warm_up + rounds):
        first = turn % len(contenders)
        for each in [*contenders[first:], *contenders[:first]]:
            if each.prepare:
                each.prepare()
            cpu, wall = _cpu_seconds(), time.perf_counter()
            each.run()
            wall, cpu = time.perf_counter() - wall, _cpu_seconds() - cpu
            if each.clean:
                each.clean()
            if turn >= warm_up:
                timings[each.name].wall.append(wall)
                timings[each.name].cpu.append(cpu)
    return timings


def _cpu_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def compare(job: str, measured: Timing, against: Timing, at_most: float | None = None) -> Result:
    """Make a result; ``at_most`` is the goal for the time of the measured over the time of the other."""
    if at_most is None:
        return Result(job, measured, against, "–", None)
    met = measured.median <= at_most * against.median
    return Result(job, measured, against, f"≤ {at_most:.2f}×", met)


def table(results: Iterable[Result]) -> str:
    """Render the results as a Markdown table."""
    lines = ["| job | median | against | median | ratio | goal | |", "|---|---|---|---|---|---|---|"]
    for each in results:
        verdict = "" if each.met is None else "met" if each.met else "**not met**"
        lines.append(
            f"| {each.job} | {_shown(each.measured)} | {each.against.name} | {_shown(each.against)} "
            f"| {each.ratio:.2f}× | {each.goal} | {verdict} |"
        )
    return "\n".join(lines)


def _shown(timing: Timing) -> str:
    value = timing.median
    text = f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"
    return f"{text} ± {timing.spread:.0%}"


def report(name: str, results: Sequence[Result], json_path: Path | None, **more: Any) -> None:
    """Print the table and, if a path is given, write everything measured there."""
    print(f"## {name} (n = {len(results[0].measured.wall)}, {os.cpu_count()} CPUs)\n")
    print(table(results))
    if json_path:
        json_path.write_text(json.dumps(as_json(name, results, **more), indent=1) + "\n", encoding="utf-8")


def as_json(name: str, results: Sequence[Result], **more: Any) -> dict[str, Any]:
    """Return the figures as JSON-able data; ``more`` is added at the top level."""
    return {
        "benchmark": name,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "results": [
            {
                "job": each.job,
                "ratio": each.ratio,
                "goal": each.goal,
                "met": each.met,
                "measured": _timing_json(each.measured),
                "against": _timing_json(each.against),
            }
            for each in results
        ],
        **more,
    }


def _timing_json(timing: Timing) -> dict[str, Any]:
    return {
        "name": timing.name,
        "median": timing.median,
        "cpu_median": timing.cpu_median,
        "spread": timing.spread,
        "wall": timing.wall,
        "cpu": timing.cpu,
    }

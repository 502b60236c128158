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
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LEAST_ROUNDS = 5
QUICK_ROUNDS = 2


class Contender(NamedTuple):
    """One side of a comparison: ``run`` is timed, ``prepare`` and ``clean`` before and after it are not."""

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object] | None = None
    clean: Callable[[], object] | None = None


class Timing(NamedTuple):
    """One figure per round of one contender: seconds by the wall clock and of CPU (this process and its children).

    With unit ``B`` the figures are bytes (a size, a peak of memory) and there is no CPU; with ``/s`` they are a rate.
    """

    name: str
    wall: list[float]
    cpu: list[float]
    unit: str = "s"

    @property
    def median(self) -> float:
        return statistics.median(self.wall)

    @property
    def cpu_median(self) -> float:
        return statistics.median(self.cpu) if self.cpu else 0.0

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a part of the median."""
        if len(self.wall) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.wall, n=4, method="inclusive")
        return (high - low) / 2 / self.median if self.median else 0.0


class Result(NamedTuple):
    """One line of a table: what was measured, against what (None: a limit of its own), and whether it meets the goal."""

    job: str
    measured: Timing
    against: Timing | None
    goal: str
    met: bool | None

    @property
    def ratio(self) -> float | None:
        """The measured over the other side's; None for a figure with a limit of its own, or none at all."""
        if self.against is None or not self.against.median:
            return None
        return self.measured.median / self.against.median


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of what every benchmark takes: ``--rounds N``, ``--quick`` and ``--json FILE``."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--rounds", type=int, default=LEAST_ROUNDS, help="runs of each contender (at least 5)")
    made.add_argument(
        "--quick", action="store_true", help="small inputs and two rounds: does it run, not how fast"
    )
    made.add_argument("--json", type=Path, help="write the figures to this file")
    return made


def arguments(description: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse what every benchmark takes."""
    found = parser(description).parse_args(argv)
    found.rounds = QUICK_ROUNDS if found.quick else max(found.rounds, LEAST_ROUNDS)
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
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def repeat(name: str, run: Callable[[], object], rounds: int, warm_up: int = 1) -> Timing:
    """Time one thing that has no peer."""
    return run_interleaved([Contender(name, run)], rounds, warm_up)[name]


def sizes(name: str, *values: float, unit: str = "B") -> Timing:
    """Return figures that are no times."""
    return Timing(name, list(values), [], unit)


def limit(job: str, measured: Timing, at_most: float | None = None, at_least: float | None = None) -> Result:
    """Make a result whose goal is a figure of its own; with neither bound it is only shown."""
    if at_least is not None:
        return Result(
            job, measured, None, f"≥ {figure(at_least, measured.unit)}", measured.median >= at_least
        )
    if at_most is not None:
        return Result(job, measured, None, f"≤ {figure(at_most, measured.unit)}", measured.median <= at_most)
    return Result(job, measured, None, "–", None)


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
        other = ("–", "–") if each.against is None else (each.against.name, shown(each.against))
        ratio = "–" if each.ratio is None else f"{each.ratio:.2f}×"
        lines.append(
            f"| {each.job} | {shown(each.measured)} | {other[0]} | {other[1]} | {ratio} | {each.goal} "
            f"| {verdict(each.met)} |"
        )
    return "\n".join(lines)


def verdict(met: bool | None) -> str:
    """Return what the last column says."""
    return "" if met is None else "met" if met else "**not met**"


def shown(timing: Timing) -> str:
    """Return a median with its spread."""
    text = figure(timing.median, timing.unit)
    return f"{text} ± {timing.spread:.0%}" if len(timing.wall) > 1 else text


def figure(value: float, unit: str) -> str:
    """Return a figure with its unit."""
    if unit == "B":
        return f"{value / 1e6:.1f} MB" if value >= 1e6 else f"{value / 1e3:.2f} kB"
    if unit == "/s":
        return f"{value:,.0f}/s"
    return (
        f"{value:.2f} s"
        if value >= 1
        else f"{value * 1e3:.1f} ms"
        if value >= 1e-3
        else f"{value * 1e6:.0f} µs"
    )


def report(name: str, results: Sequence[Result], json_path: Path | None, **more: Any) -> None:
    """Print the table and, if a path is given, write everything measured there."""
    rounds = max(len(each.measured.wall) for each in results)
    print(f"## {name} (n = {rounds}, {os.cpu_count()} CPUs)\n")
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
                "against": None if each.against is None else _timing_json(each.against),
            }
            for each in results
        ],
        **more,
    }


def _timing_json(timing: Timing) -> dict[str, Any]:
    return {
        "name": timing.name,
        "unit": timing.unit,
        "median": timing.median,
        "cpu_median": timing.cpu_median,
        "spread": timing.spread,
        "wall": timing.wall,
        "cpu": timing.cpu,
    }

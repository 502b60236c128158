"""The first ``git status`` in a new workspace, the ones after it, and the same in a plain copy.

Run ``python benchmarks/git_status.py [--rounds N] [--quick] [--json FILE]`` as root. A repository of 50,000 files is
captured; every round mounts a new workspace of it (its base is cached) and makes a new ``cp -a``, and asks git twice in
each. A restored file cannot have the change time and inode number that git's index remembers, so git with its own
settings reads every file once; with ``core.checkStat=minimal`` and ``core.trustctime=false``, which ``layerfs run`` sets,
it reads none, and what the first time costs more is the kernel looking names up.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness, peers
from benchmarks.environment import scratch
from benchmarks.harness import Contender, Result

FILES = 50_000
GOAL = 2.0
SETTINGS = ("-c", "core.checkStat=minimal", "-c", "core.trustctime=false")


def repository(place: Path, files: int) -> None:
    """Make a repository of many small files, all committed."""
    for number in range(files):
        path = place / f"part{number % 97:02d}" / f"unit{number % 11}" / f"file-{number:05d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"file {number}\n" * (1 + number % 40), encoding="utf-8")
    git = ("git", "-C", place, "-c", "user.name=bench", "-c", "user.email=bench@example.com")
    peers.run("git", "init", "-q", place)
    peers.run(*git, "add", "-A")
    peers.run(*git, "commit", "-q", "-m", "all")


def status(top: Path, settings: tuple[str, ...]) -> None:
    """Ask git, which must find nothing."""
    found = subprocess.run(
        ["git", "-C", top, *settings, "status", "--porcelain"], check=True, stdout=subprocess.PIPE
    )
    if found.stdout:
        raise SystemExit(f"git found changes in {top}: {found.stdout[:100]!r}")


class Side:
    """A way to have the repository a second time: first ``fresh``, then git twice, then ``gone``."""

    def __init__(self, name: str, project: Path, place: Path, settings: tuple[str, ...] = ()) -> None:
        self.name = name
        self.project = project
        self.place = place
        self.settings = settings
        self.numbers = count()
        self.top = place

    def fresh(self) -> None:
        """Make a copy by hand."""
        self.top = self.place / f"copy-{next(self.numbers)}"
        peers.run("cp", "-a", self.project, self.top)

    def gone(self) -> None:
        """Remove it."""
        shutil.rmtree(self.top)

    def contenders(self) -> list[Contender]:
        """Return the first look and the second, to be run in this order."""
        look = lambda: status(self.top, self.settings)  # noqa: E731  (the top changes from round to round)
        return [
            Contender(f"{self.name}, first", look, prepare=self.fresh),
            Contender(f"{self.name}, again", look, clean=self.gone),
        ]


class Mounted(Side):
    """A new workspace on a branch of its own."""

    def layerfs(self, *arguments: str | Path) -> None:
        """Run one command on the store."""
        peers.layerfs_command(self.place / "home", *arguments, cwd=self.project)

    def fresh(self) -> None:
        """Fork and mount."""
        branch = f"{self.name.split()[0]}-{len(self.settings)}-{next(self.numbers)}"
        self.top = self.place / branch
        self.layerfs("fork", branch, "--from", "main")
        self.layerfs("mount", branch, self.top, "--engine", "overlay")

    def gone(self) -> None:
        """Unmount; what git put into its index goes with it."""
        self.layerfs("unmount", self.top.name, "--discard")


def measured(sides: list[Side], rounds: int) -> list[Result]:
    """Run both looks of every side, round by round, and compare the first with the second."""
    timings: dict[str, harness.Timing] = {}
    for turn in range(rounds):
        for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
            for contender in side.contenders():
                one = harness.run_interleaved([contender], 1, warm_up=0)[contender.name]
                held = timings.setdefault(contender.name, one)
                if held is not one:
                    held.wall.extend(one.wall)
                    held.cpu.extend(one.cpu)
    results = []
    for side in sides:
        first, again = timings[f"{side.name}, first"], timings[f"{side.name}, again"]
        goal = GOAL if isinstance(side, Mounted) else None
        results.append(harness.compare(f"git status, {side.name}: first", first, again, goal))
    plain = timings["a plain copy, first"]
    for side in sides[1:]:
        results.append(
            harness.compare(f"git status, {side.name}: first", timings[f"{side.name}, first"], plain)
        )
    return results


def main() -> None:
    """Measure and report."""
    options = harness.arguments(__doc__)
    if os.geteuid():
        sys.exit("mounting an overlay for all to see needs root")
    files = 2_000 if options.quick else FILES
    with scratch("git") as directory:
        place = Path(directory)
        project = place / "project"
        repository(project, files)
        setup = partial(peers.layerfs_command, place / "home")
        setup("init", "--warm", project)
        sides: list[Side] = [
            Side("a plain copy", project, place),
            Mounted("workspace", project, place),
            Mounted("workspace with the two settings", project, place, SETTINGS),
        ]
        results = measured(sides, options.rounds)
    harness.report("git status", results, options.json, files=files)


if __name__ == "__main__":
    main()

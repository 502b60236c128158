"""Capturing a real environment, and capturing it again when nothing changed: restic, borg, git and tar|zstd beside it.

Run ``python benchmarks/init.py [--rounds N] [--quick] [--json FILE]``. Whole processes; the tree is read into the page
cache once before, and before each run what others left dirty is written out. Git leaves the tree's ``.git`` out, the
others capture everything. "Again" is ``layerfs status``, ``git status``, ``restic backup`` and ``borg create`` on the
tree as it was captured.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness, peers
from benchmarks.environment import environment, need, scratch
from benchmarks.harness import Contender, Result, Timing
from benchmarks.peers import Finished, Peer

GOAL_BEST = 0.7
GOAL_TAR = 2.0
GOAL_STATUS = 3.0
GOAL_MEMORY = 300e6


class Measured:
    """A peer's capture with what it needed, besides time."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.peaks: list[float] = []
        self.sizes: list[float] = []

    def prepare(self) -> None:
        """Start an empty store and let the disk come to rest."""
        self.peer.fresh()
        peers.settle(self.peer.store)

    def capture(self) -> None:
        """Capture; the timed part."""
        self.peaks.append(self.peer.capture().peak)

    def weigh(self) -> None:
        """Note the size of the store."""
        self.sizes.append(peers.disk_bytes(self.peer.store))


def first_captures(found: list[Measured], rounds: int) -> list[Result]:
    """Time the first capture by every tool; the stores of the last round stay."""
    timings = harness.run_interleaved(
        [Contender(each.peer.name, each.capture, each.prepare, each.weigh) for each in found],
        rounds,
        warm_up=1,
    )
    ours, *others = found
    own = timings["layerfs"]
    results = []
    best = min(
        (timings[each.peer.name] for each in others if not each.peer.name.startswith("tar")),
        key=lambda timing: timing.median,
        default=None,
    )
    for each in others:
        timing = timings[each.peer.name]
        goal = GOAL_TAR if each.peer.name.startswith("tar") else GOAL_BEST if timing is best else None
        results.append(harness.compare("init of the environment", own, timing, goal))
    size = harness.sizes("layerfs", *ours.sizes[-rounds:])
    for each in others:
        other = harness.sizes(each.peer.name, *each.sizes[-rounds:])
        results.append(harness.compare("store after init, on disk", size, other))
    results.append(
        harness.limit(
            "peak memory of init", harness.sizes("layerfs", *ours.peaks[-rounds:]), at_most=GOAL_MEMORY
        )
    )
    return results


def again(found: list[Measured], tree: Path, rounds: int) -> list[Result]:
    """Time a second capture of the unchanged tree."""
    by_name = {each.peer.name: each.peer for each in found}

    def status() -> Finished:
        return peers.layerfs_command(by_name["layerfs"].store, "status", cwd=tree)

    contenders = [Contender("layerfs status", status)]
    if "git" in by_name:
        env = peers.git_environment(tree, by_name["git"].store)
        command = partial(peers.run, "git", "status", "--porcelain", "-uall", env=env, cwd=tree)
        contenders.append(Contender("git status", command))
    contenders += [
        Contender(f"{name} again", by_name[name].capture) for name in ("restic", "borg") if name in by_name
    ]
    timings: dict[str, Timing] = harness.run_interleaved(contenders, rounds)
    own = timings["layerfs status"]
    goals = {"git status": GOAL_STATUS}
    return [
        harness.compare("second capture, nothing changed", own, each, goals.get(name))
        for name, each in timings.items()
        if each is not own
    ]


def main() -> None:
    """Measure and report."""
    options = harness.arguments(__doc__)
    missing = need("restic", "borg", "git", "tar", "zstd")
    found = environment(small=options.quick)
    with scratch("init") as directory:
        place = Path(directory)
        tools = {"restic": peers.restic, "borg": peers.borg, "git": peers.git, "tar": peers.tar_zstd}
        chosen = [peers.layerfs(found.path, place)]
        chosen += [
            make(found.path, place) for name, make in tools.items() if name not in missing and name != "zstd"
        ]
        measured = [Measured(peer) for peer in chosen]
        peers.run("tar", "-c", "-f", place / "warm.tar", "-C", found.path, ".")
        (place / "warm.tar").unlink()
        try:
            results = first_captures(measured, options.rounds)
            results += again(measured, found.path, options.rounds)
        finally:
            (found.path / ".layerfs").unlink(missing_ok=True)
    harness.report("init", results, options.json, environment=found.described(), missing=missing)


if __name__ == "__main__":
    main()

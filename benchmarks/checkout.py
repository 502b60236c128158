"""Writing a whole environment out: ``layerfs checkout --to`` against ``restic restore`` and ``cp -a``.

Run ``python benchmarks/checkout.py [--rounds N] [--quick] [--json FILE]``. Whole processes into a new directory each
time; removing it, and writing out what is dirty, is not timed. As root a first mount is measured as well: it writes the
same state into the layer cache, which is empty each time. Everything lies in ``$TMPDIR``: run it once on each disk.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness, peers
from benchmarks.environment import environment, need, scratch
from benchmarks.harness import Contender

GOAL_RESTIC = 0.5
GOAL_COPY = 2.0
FIRST_MOUNT = "layerfs, first mount"


def first_mount(store: Path, home: Path, target: Path, settle: Callable[[], object]) -> Contender:
    """Return a contender that mounts with nothing in the layer cache; afterwards there is nothing in it again."""

    def clean() -> None:
        if target.is_mount():
            peers.layerfs_command(home, "unmount", "main", "--store", store)
        for path in (store / "cache").iterdir():
            if path.is_dir():
                shutil.rmtree(path)
        settle()

    run = partial(
        peers.layerfs_command, home, "mount", "main", target, "--engine", "overlay", "--store", store
    )
    return Contender(FIRST_MOUNT, run, clean, clean)


def main() -> None:
    """Measure and report."""
    options = harness.arguments(__doc__)
    missing = need("restic")
    found = environment(small=options.quick)
    with scratch("checkout") as directory:
        place = Path(directory)
        target = place / "target"

        def clean() -> None:
            shutil.rmtree(target, ignore_errors=True)
            peers.settle(place)

        chosen = [peers.layerfs(found.path, place)]
        if "restic" not in missing:
            chosen.append(peers.restic(found.path, place))
        contenders = [
            Contender("cp -a", partial(peers.run, "cp", "-a", found.path, target), clean, clean),
        ]
        try:
            for peer in chosen:
                peer.fresh()
                peer.capture()
                assert peer.restore is not None
                contenders.append(Contender(peer.name, partial(peer.restore, target), clean, clean))
            if os.geteuid() == 0:
                home = chosen[0].store
                contenders.append(first_mount(home / "store", home, target, clean))
            timings = harness.run_interleaved(contenders, options.rounds)
        finally:
            (found.path / ".layerfs").unlink(missing_ok=True)
    own = timings["layerfs"]
    results = [harness.compare("checkout of the environment", own, timings["cp -a"], GOAL_COPY)]
    if "restic" in timings:
        results.insert(0, harness.compare("checkout of the environment", own, timings["restic"], GOAL_RESTIC))
    if FIRST_MOUNT in timings:
        first = timings[FIRST_MOUNT]
        results.append(harness.compare("first mount of the environment", first, timings["cp -a"], GOAL_COPY))
    harness.report("checkout", results, options.json, environment=found.described(), missing=missing)


if __name__ == "__main__":
    main()

"""Writing a whole environment out: ``layerfs checkout --to`` against ``restic restore`` and ``cp -a``.

Run ``python benchmarks/checkout.py [--rounds N] [--quick] [--json FILE]``. Whole processes into a new directory each
time; removing it, and writing out what is dirty, is not timed.
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness, peers
from benchmarks.environment import environment, need, scratch
from benchmarks.harness import Contender

GOAL_RESTIC = 0.5
GOAL_COPY = 2.0


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
            timings = harness.run_interleaved(contenders, options.rounds)
        finally:
            (found.path / ".layerfs").unlink(missing_ok=True)
    own = timings["layerfs"]
    results = [harness.compare("checkout of the environment", own, timings["cp -a"], GOAL_COPY)]
    if "restic" in timings:
        results.insert(0, harness.compare("checkout of the environment", own, timings["restic"], GOAL_RESTIC))
    harness.report("checkout", results, options.json, environment=found.described(), missing=missing)


if __name__ == "__main__":
    main()

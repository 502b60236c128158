"""What the smallest command takes as a whole process: ``layerfs rev-parse main`` against ``python -c 'import typer'``.

Run ``python benchmarks/startup.py [--rounds N] [--quick] [--json FILE]``. ``python -c pass`` is shown beside it, and
``status`` in a workspace of ten files: what most commands pay before they do anything.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness, peers
from benchmarks.environment import scratch
from benchmarks.harness import Contender

GOAL = 1.2


def main() -> None:
    """Measure and report."""
    options = harness.arguments(__doc__)
    with scratch("startup") as directory:
        place = Path(directory)
        tree = place / "tree"
        tree.mkdir()
        for number in range(10):
            (tree / f"file-{number}").write_text(f"{number}\n", encoding="utf-8")
        home = place / "home"
        peers.layerfs_command(home, "init", cwd=tree)
        command = partial(peers.layerfs_command, home, cwd=tree)
        timings = harness.run_interleaved(
            [
                Contender("layerfs rev-parse main", partial(command, "rev-parse", "main")),
                Contender("layerfs status", partial(command, "status")),
                Contender("import typer", partial(peers.run, sys.executable, "-c", "import typer")),
                Contender("python", partial(peers.run, sys.executable, "-c", "pass")),
            ],
            options.rounds if options.quick else max(options.rounds, 20),
            warm_up=2,
        )
    small, status, typer, python = timings.values()
    results = [
        harness.compare("small command, whole process", small, typer, GOAL),
        harness.compare("status of a small workspace, whole process", status, typer),
        harness.compare("small command, whole process", small, python),
    ]
    harness.report("startup", results, options.json)


if __name__ == "__main__":
    main()

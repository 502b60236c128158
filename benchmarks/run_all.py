"""Run every benchmark and show the goals of the design with what was measured: the table in the README.

Run ``python benchmarks/run_all.py [--rounds N] [--quick] [--json FILE] [--only NAME …] [--from FILE] [--markdown]``. Each
script runs in a process of its own and its figures end up in one JSON document; one that fails is named and leaves its
rows out. ``--from`` shows the table of such a document without running anything.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import figure

SCRIPTS = (
    "init",
    "checkout",
    "mount",
    "commit",
    "workspace_io",
    "startup",
    "writers",
    "growth",
    "chunker",
    "memory",
)
HERE = Path(__file__).resolve().parent


def run_script(name: str, options: argparse.Namespace, directory: Path) -> dict[str, Any] | None:
    """Run one script; return its document, None if it failed."""
    target = directory / f"{name}.json"
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(target)]
    command += ["--quick"] if options.quick else []
    command += ["--rounds", str(options.rounds)] if options.rounds else []
    print(f"running {name}", file=sys.stderr, flush=True)
    done = subprocess.run(
        command, check=False, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(HERE.parent)}
    )
    if done.returncode or not target.exists():
        print(f"failed: {name} ({done.returncode})", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return found


def row(result: dict[str, Any]) -> str:
    """Return one line of the table."""
    measured, against = result["measured"], result["against"]
    unit = measured.get("unit", "s")
    ours = figure(measured["median"], unit)
    other = "–" if against is None else f"{against['name']}: {figure(against['median'], unit)}"
    ratio = "–" if result["ratio"] is None else f"{result['ratio']:.2f}×"
    met = "" if result["met"] is None else "met" if result["met"] else "**not met**"
    return f"| {result['job']} | {ours} ± {measured['spread']:.0%} | {other} | {ratio} | {result['goal']} | {met} |"


def table(documents: dict[str, Any], goals_only: bool) -> str:
    """Return the table of all results; those without a goal are left out on request."""
    lines = ["| job | layerfs | against | ratio | goal | |", "|---|---|---|---|---|---|"]
    for document in documents.values():
        lines += [row(each) for each in document["results"] if each["met"] is not None or not goals_only]
    return "\n".join(lines)


def main() -> None:
    """Run, collect, show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help="runs of each contender")
    parser.add_argument("--quick", action="store_true", help="small inputs: does it run, not how fast")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=SCRIPTS, help="run these")
    parser.add_argument(
        "--from", dest="source", type=Path, help="show the figures of this file instead of running"
    )
    parser.add_argument(
        "--markdown", action="store_true", help="only rows with a goal: the table of the README"
    )
    options = parser.parse_args()
    documents: dict[str, Any] = {}
    if options.source:
        documents = json.loads(options.source.read_text(encoding="utf-8"))
    else:
        with tempfile.TemporaryDirectory(prefix="lfs-bench-all-") as directory:
            for name in options.only:
                found = run_script(name, options, Path(directory))
                if found is not None:
                    documents[name] = found
                if options.json:
                    options.json.write_text(json.dumps(documents, indent=1) + "\n", encoding="utf-8")
    print(table(documents, options.markdown))
    if not options.source and len(documents) < len(options.only):
        sys.exit(1)


if __name__ == "__main__":
    main()

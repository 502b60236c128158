"""Workspaces in process: mounting and unmounting, forking, and an agent's loop, over trees and histories of all sizes.

Run ``python benchmarks/mount.py [--rounds N] [--quick] [--json FILE] [--files N,…] [--commits N,…]`` as root. The
lowers are in the layer cache, as after the first mount. The loop mounts a branch, changes three files, commits and
unmounts; what it commits is the next lower. A fork is compared with one SQLite transaction that is synced, on the same
disk. The largest rows take minutes and some GB of disk to make: ``--files`` and ``--commits`` choose others.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness
from benchmarks.environment import scratch
from benchmarks.harness import Contender, Result
from benchmarks.synthetic import BRANCH, author, extend, make_store, mount, path_of, unmount
from layerfs.history.branches import fork
from layerfs.store.store import Store
from layerfs.store.workspacerecords import WorkspaceRecord, find_workspace
from layerfs.workspace.commit import commit_workspace
from layerfs.workspace.recording import CommitRequest

GOAL_MOUNT = 0.010
GOAL_LOOP = 0.060
GOAL_FORK = 2.0
AT_ONCE = 20
FILES = (1_000, 10_000, 100_000, 1_000_000)
COMMITS = (1, 100, 10_000)


class Subject(NamedTuple):
    """A store to mount from, and where."""

    label: str
    store: Store
    path: Path


def mounting(subject: Subject, timed: str) -> Contender:
    """Return a contender that times the mount or the unmount of a workspace."""
    held: list[WorkspaceRecord] = []

    def up() -> None:
        held.append(mount(subject.store, subject.path))

    def down() -> None:
        unmount(subject.store, held.pop())

    if timed == "mount":
        return Contender(f"mount, {subject.label}", up, clean=down)
    return Contender(f"unmount, {subject.label}", down, prepare=up)


def looping(subject: Subject, volatile: bool) -> Contender:
    """Return a contender that runs an agent's loop."""
    turns = count(1)

    def run() -> None:
        turn = next(turns)
        record = mount(subject.store, subject.path, volatile=volatile)
        for number in (1, 2, 103):
            with open(os.path.join(bytes(subject.path), path_of(number)), "ab") as file:
                file.write(b"turn %d\n" % turn)
        commit_workspace(subject.store, record, CommitRequest(author(), f"turn {turn}"))
        unmount(subject.store, find_workspace(subject.store.refs, record.name) or record)

    return Contender(f"loop{', volatile' if volatile else ''}, {subject.label}", run)


def sqlite_transaction(place: Path) -> Callable[[], object]:
    """Return what a fork is compared with: one row, one synced transaction."""
    db = sqlite3.connect(place / "plain.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE refs (name TEXT PRIMARY KEY, target BLOB NOT NULL) WITHOUT ROWID")
    names = count()

    def run() -> None:
        for _ in range(AT_ONCE):
            db.execute("INSERT INTO refs VALUES (?, ?)", (f"refs/heads/fork-{next(names)}", bytes(32)))

    return run


def forking(store: Store, place: Path, rounds: int) -> Result:
    """Compare forks, one branch each, with as many transactions."""
    names = count()

    def run() -> None:
        for _ in range(AT_ONCE):
            fork(store, (f"fork-{next(names)}",), BRANCH, None, None, "bench")

    plain = f"SQLite ×{AT_ONCE}"
    timings = harness.run_interleaved(
        [Contender(f"fork ×{AT_ONCE}", run), Contender(plain, sqlite_transaction(place))], max(rounds, 10)
    )
    return harness.compare("fork, durable", timings[f"fork ×{AT_ONCE}"], timings[plain], GOAL_FORK)


def subjects(place: Path, trees: Sequence[int], histories: Sequence[int], opened: ExitStack) -> list[Subject]:
    """Make the stores: trees of growing size, then one tree with a growing history."""
    found = []
    for files in trees:
        made = make_store(place / f"files-{files}", files)
        opened.enter_context(made.store)
        found.append(Subject(f"{files:,} files", made.store, place / f"at-{files}"))
    for commits in histories:
        made = make_store(place / f"commits-{commits}", 1_000)
        opened.enter_context(made.store)
        extend(made.store, made.head, commits - 1)
        found.append(Subject(f"1,000 files, {commits:,} commits", made.store, place / f"after-{commits}"))
    for each in found:
        unmount(each.store, mount(each.store, each.path))
    return found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main() -> None:
    """Measure and report."""
    parser = harness.parser(__doc__)
    parser.add_argument("--files", type=_numbers, metavar="N,…", help="trees of so many files")
    parser.add_argument("--commits", type=_numbers, metavar="N,…", help="histories of so many commits")
    options = parser.parse_args()
    trees = options.files or ((1_000, 3_000) if options.quick else FILES)
    histories = options.commits or ((1, 100) if options.quick else COMMITS)
    if os.geteuid():
        sys.exit("mounting an overlay for all to see needs root")
    rounds = 2 if options.quick else max(options.rounds, 15)
    results: list[Result] = []
    with scratch("mount") as directory, ExitStack() as opened:
        place = Path(directory)
        found = subjects(place, trees, histories, opened)
        results.append(forking(found[0].store, place, options.rounds))
        for timed in ("mount", "unmount"):
            timings = harness.run_interleaved([mounting(each, timed) for each in found], rounds)
            goal = GOAL_MOUNT if timed == "mount" else None
            results += [harness.limit(name, timing, at_most=goal) for name, timing in timings.items()]
        loops = [looping(each, volatile) for volatile in (True, False) for each in found]
        for name, timing in harness.run_interleaved(loops, rounds).items():
            results.append(harness.limit(name, timing, at_most=GOAL_LOOP if "volatile" in name else None))
        harness.report("mount", results, options.json)  # removing a million files takes its time


if __name__ == "__main__":
    main()

"""Collection of a store of five million objects: how fast, and in how much memory.

    python benchmarks/gc.py [--objects N] [--quick] [--json FILE]

The store is made of tiny files, a hundred to a directory, since what collection costs is objects and not bytes; a tenth
of them hang on a branch that is then deleted. Collection runs as a process of its own, first as a trial
(``gc --dry-run``: seal and mark), then in earnest (mark, copy, mark again, swap), and once more with nothing to do. One
run of each: what is measured is minutes long. Rates are objects by the wall clock; the CPU seconds are in the JSON.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness, peers
from benchmarks.environment import scratch
from benchmarks.harness import Result, Timing, limit, sizes
from benchmarks.synthetic import MTIME_NS, author
from layerfs.objects.commits import Commit, put_commit
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import put_root
from layerfs.objects.kinds import Kind
from layerfs.objects.moves import RefSet
from layerfs.objects.source import ObjectSink
from layerfs.objects.trees import build_tree
from layerfs.store.store import Store

OBJECTS = 5_000_000
PER_DIRECTORY = 100
PER_BATCH = 1000
GARBAGE = 10
GOAL_RATE = 100_000
GOAL_MEMORY = 300e6


def main() -> None:
    made = harness.parser(__doc__ or "")
    made.add_argument("--objects", type=int, default=OBJECTS, help="objects in the store, nearly")
    options = made.parse_args()
    wanted = 50_000 if options.quick else options.objects
    with scratch("gc") as place:
        store = Path(place) / "store"
        began = time.perf_counter()
        fill(store, wanted)
        made_in = time.perf_counter() - began
        with Store.open(bytes(store), clock=time.time_ns) as opened:
            objects = sum(opened.objects.index(row.number).count for row in opened.db.packs())
        print(f"{objects} objects made in {made_in:.0f} s", file=sys.stderr, flush=True)
        results: list[Result] = []
        cpu: dict[str, list[float]] = {}
        for job, words in (
            ("trial: mark all", ["--dry-run"]),
            ("collect a tenth", []),
            ("collect again: nothing to do", []),
        ):
            peaks: list[int] = []
            command = ["gc", "--store", str(store), "--dropped-expire", "0", *words]

            def run(command: list[str] = command, peaks: list[int] = peaks) -> None:
                peaks.append(peers.layerfs_command(Path(place), *command).peak)

            peers.settle(store)
            timing = harness.repeat(job, run, 1, warm_up=0)
            cpu[job] = timing.cpu
            rate = Timing(job, [objects / seconds for seconds in timing.wall], [], "/s")
            results.append(limit(f"gc, {job}: objects", rate, at_least=GOAL_RATE))
            results.append(limit(f"gc, {job}: peak memory", sizes(job, *peaks), at_most=GOAL_MEMORY))
    harness.report("gc", results, options.json, objects=objects, cpu_seconds=cpu, filled_in_seconds=made_in)


def fill(place: Path, wanted: int) -> None:
    """Make a store of some ``wanted`` objects; a branch with a tenth of them is made and deleted."""
    directories = wanted // (PER_DIRECTORY + 4)
    doomed = directories // GARBAGE
    with Store.create(bytes(place), clock=time.time_ns, durability="disposable") as store:
        add_branch(store, "kept", range(doomed, directories))
        add_branch(store, "doomed", range(doomed))
        with store.lane() as lane:
            ref = "refs/heads/doomed"
            lane.apply(None, [RefSet(ref, lane.refs.need_head("doomed"), None, "branch -d")], "bench")


def add_branch(store: Store, name: str, directories: range) -> None:
    """Commit so many directories, a batch of them at a time."""
    top = []
    for first in range(0, len(directories), PER_BATCH):
        numbers = directories[first : first + PER_BATCH]
        with store.batch() as batch:
            for number in numbers:
                top.append((b"d%06d" % number, directory(batch, number)))
            with store.lane() as lane:
                lane.apply(batch, ())
    with store.batch() as batch:
        root = Entry(EntryKind.DIR, 0o755, 0, 0, MTIME_NS, 0, build_tree(batch, top))
        who = author()
        head = put_commit(batch, Commit(put_root(batch, root), (), who.time_ns, 0, who.name, name))
        with store.lane() as lane:
            lane.apply(batch, [RefSet(f"refs/heads/{name}", None, head, "made")])


def directory(sink: ObjectSink, number: int) -> Entry:
    names = []
    for file in range(PER_DIRECTORY):
        content = b"%d/%d" % (number, file)
        entry = Entry(EntryKind.FILE, 0o644, 0, 0, MTIME_NS, len(content), sink.put(Kind.CHUNK, content))
        names.append((b"f%02d" % file, entry))
    return Entry(EntryKind.DIR, 0o755, 0, 0, MTIME_NS, 0, build_tree(sink, names))


if __name__ == "__main__":
    main()

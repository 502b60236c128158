"""Large trees: what each step costs as a tree grows from a thousand to a million files, and a history to 10,000 commits.

    python benchmarks/large_trees.py [--largest N] [--rounds N] [--quick] [--json FILE]        (as root: it mounts)

Trees come in two shapes: all files in one directory, and a hundred to a directory. For each, and for a thousand files up
to a million in steps of ten:

- steps whose cost should follow the change and not the tree, in process, durable, medians over the rounds: in an overlay
  workspace three files are deleted and committed (field case D15), then ``status`` of three more deleted ones; a change
  of one file committed without a workspace; the difference of two commits; ``fork``; ``log -1``;
- steps that take the whole tree, as processes, once each, with the most memory they had resident: ``init`` of a real
  directory, ``status`` in it, ``checkout --to``, ``gc``.

Then histories of ten to 10,000 commits of a thousand files: ``log -1``, ``fork`` and a commit of one change. The first
table compares the largest with the smallest; the second shows the growth.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness, peers
from benchmarks.environment import scratch
from benchmarks.harness import Contender, Result, Timing, figure, limit, sizes
from benchmarks.synthetic import (
    BRANCH,
    MTIME_NS,
    Made,
    author,
    content_of,
    extend,
    file_entry,
    make_store,
    mount,
    unmount,
)
from layerfs.history.branches import fork
from layerfs.history.history import CommitReader
from layerfs.history.revisionset import Selection, parse_set, select
from layerfs.ids import CommitId
from layerfs.objects.commits import Commit, put_commit
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import diff_trees, edit_paths, put_root
from layerfs.objects.layers import Layer, put_layer
from layerfs.objects.moves import LayerAdd, RefSet
from layerfs.objects.trees import build_tree
from layerfs.store.refs import branch_ref
from layerfs.store.store import Store
from layerfs.store.workspacerecords import WorkspaceRecord, find_workspace
from layerfs.workspace.commit import commit_workspace
from layerfs.workspace.recording import CommitRequest
from layerfs.workspace.status import read_status

PARTS = ("commands", "steps", "history")
DELETED = 3
FLAT = 2.0
GOAL_MEMORY = 300e6
Growth = dict[str, dict[int, list[float]]]


class Shape(NamedTuple):
    """How files lie in a tree: the path of each, and how a store with so many is made."""

    name: str
    path_of: Callable[[int], bytes]
    make: Callable[[Path, int], Made]


def flat_path(number: int) -> bytes:
    return b"file-%07d" % number


def nested_path(number: int) -> bytes:
    return b"directory-%04d/file-%02d.txt" % divmod(number, 100)


def make_flat(place: Path, files: int) -> Made:
    """Make a store with one directory of so many files, as a branch and as layer 1."""
    store = Store.create(bytes(place), clock=time.time_ns)
    with store.batch() as batch:
        names = ((flat_path(number), file_entry(batch, content_of(number))) for number in range(files))
        root = Entry(EntryKind.DIR, 0o755, 0, 0, MTIME_NS, 0, build_tree(batch, names))
        who = author()
        head = put_commit(batch, Commit(put_root(batch, root), (), who.time_ns, 0, who.name, "all files"))
        layer = put_layer(batch, Layer(1, head, None, "init", who.time_ns, who.name, "all files"))
        with store.lane() as lane:
            lane.apply(batch, (LayerAdd(1, layer, head), RefSet(branch_ref(BRANCH), None, head, "init")))
    return Made(store, head, files)


SHAPES = (Shape("one directory", flat_path, make_flat), Shape("a tree", nested_path, make_store))


class Subject:
    """One store and the steps that should not depend on its size."""

    def __init__(self, made: Made, path_of: Callable[[int], bytes], place: Path) -> None:
        self.store, self.first, self.files = made
        self.path_of = path_of
        self.place = place
        self.turns = count(1)
        self.head = self.first
        self.record: WorkspaceRecord | None = None

    def mount(self) -> None:
        self.place.mkdir(exist_ok=True)
        with self.store.lane() as lane:
            lane.apply(None, [RefSet(branch_ref("ws"), None, self.first, "fork")])
        self.record = mount(self.store, self.place, "ws")

    def delete(self) -> None:
        """Delete three files far apart in the workspace."""
        turn = next(self.turns)
        for part in range(DELETED):
            os.unlink(self.place / os.fsdecode(self.path_of(part * self.files // DELETED + turn)))

    def _workspace(self) -> WorkspaceRecord:
        assert self.record is not None
        found = find_workspace(self.store.refs, self.record.name)
        assert found is not None
        return found

    def commit_workspace(self) -> None:
        done = commit_workspace(self.store, self._workspace(), CommitRequest(author(), "three deleted"))
        assert done.commit is not None

    def status(self) -> None:
        read_status(self.store, self._workspace())

    def commit_one(self) -> None:
        """Commit a change of one file, without a workspace."""
        turn = next(self.turns)
        with self.store.batch() as batch:
            root = CommitReader(batch).root(self.head)
            entry = file_entry(batch, content_of(0, turn), MTIME_NS + turn)
            edited = put_root(batch, edit_paths(batch, root, {self.path_of(self.files // 2): entry}))
            who = author()
            new = put_commit(batch, Commit(edited, (self.head,), who.time_ns, 0, who.name, "one file"))
            with self.store.lane() as lane:
                lane.apply(batch, [RefSet(branch_ref(BRANCH), self.head, new, "edit")])
        self.head = new

    def diff(self) -> None:
        """Compare the newest commit with the one before it."""
        reader = CommitReader(self.store.objects)
        parent = reader.commit(self.head).parents[0]
        changes = list(diff_trees(self.store.objects, reader.root(parent), reader.root(self.head)))
        assert len(changes) == 1

    def fork(self) -> None:
        fork(self.store, [f"fork-{next(self.turns)}"], BRANCH, None, None, "bench")

    def log(self) -> None:
        """Find the newest commit of the branch, as ``log -1`` does."""
        wanted = parse_set(self.store, (BRANCH,), None, BRANCH)
        chosen = select(CommitReader(self.store.objects), wanted, Selection((), False, False, 1))
        assert len(list(chosen)) == 1

    def close(self) -> None:
        if self.record is not None:
            unmount(self.store, self._workspace(), discard=True)
        self.store.close()


STEPS: dict[str, tuple[Callable[[Subject], None], Callable[[Subject], None] | None]] = {
    "commit of 3 deletions in an overlay workspace": (Subject.commit_workspace, Subject.delete),
    "status of 3 deletions in an overlay workspace": (Subject.status, None),
    "commit of one change": (Subject.commit_one, None),
    "diff of one change": (Subject.diff, None),
    "fork": (Subject.fork, None),
    "log -1": (Subject.log, None),
}
HISTORY_STEPS = ("commit of one change", "fork", "log -1")


def flat_steps(
    shape: Shape, numbers: list[int], place: Path, rounds: int, growth: Growth
) -> Iterator[Result]:
    """Measure the steps that should cost the same in every tree, all trees in turn."""
    subjects = {}
    try:
        for number in numbers:
            made = shape.make(place / f"store-{number}", number)
            subjects[number] = Subject(made, shape.path_of, place / f"workspace-{number}")
            began = time.perf_counter()
            subjects[number].mount()
            growth.setdefault(f"{shape.name}: first mount, which writes the layer cache", {})[number] = [
                time.perf_counter() - began
            ]
            print(f"{shape.name}, {number:,} files: mounted", file=sys.stderr, flush=True)
        for step in STEPS:
            if step.startswith("status"):
                for subject in subjects.values():
                    subject.delete()
            yield from compared(f"{shape.name}: {step}", step, subjects, rounds, growth)
    finally:
        for subject in subjects.values():
            subject.close()


def compared(
    job: str, step: str, subjects: dict[int, Subject], rounds: int, growth: Growth
) -> Iterator[Result]:
    run, prepare = STEPS[step]
    contenders = [
        Contender(
            f"{number:,}", lambda s=subject: run(s), None if prepare is None else lambda s=subject: prepare(s)
        )
        for number, subject in subjects.items()
    ]
    timings = harness.run_interleaved(contenders, rounds)
    for number in subjects:
        growth.setdefault(job, {})[number] = timings[f"{number:,}"].wall
    least, most = min(subjects), max(subjects)
    yield harness.compare(f"{job}, n = {most:,}", timings[f"{most:,}"], timings[f"{least:,}"], FLAT)


def whole_steps(shape: Shape, numbers: list[int], place: Path, growth: Growth) -> Iterator[Result]:
    """Run the commands that take a whole tree, once each."""
    for number in numbers:
        tree = place / f"tree-{number}"
        write_tree(tree, shape.path_of, number)
        home = place / f"home-{number}"
        store = home / "store"
        first = tree / os.fsdecode(shape.path_of(number // 2))
        for job, words, cwd in (
            ("init", ["init", "--store", str(store), str(tree)], None),
            ("status, nothing changed", ["status"], tree),
            ("commit of one change", ["commit", "-m", "one"], tree),
            ("diff of one change", ["diff", "main", "work"], tree),
            ("checkout", ["checkout", "--store", str(store), "main", "--to", str(place / "out")], None),
            ("gc", ["gc", "--store", str(store)], None),
        ):
            if job == "commit of one change":
                first.write_bytes(b"changed\n")
            peaks: list[int] = []

            run = partial(command, home, words, cwd, peaks)
            timing = harness.repeat(job, run, 1, warm_up=0)
            label = f"{shape.name}: {job}, in the captured directory" if cwd else f"{shape.name}: {job}"
            growth.setdefault(label, {})[number] = timing.wall
            growth.setdefault(f"{label}: peak memory", {})[number] = [float(peak) for peak in peaks]
            if number == max(numbers):
                yield limit(f"{label}, n = {number:,}", timing)
                yield limit(f"{label}, n = {number:,}: peak memory", sizes(job, *peaks), at_most=GOAL_MEMORY)
        for gone in (tree, place / "out", home):
            peers.run("rm", "-rf", gone)
        print(f"{shape.name}, {number:,} files: commands ran", file=sys.stderr, flush=True)


def command(home: Path, words: list[str], cwd: Path | None, peaks: list[int]) -> None:
    peaks.append(peers.layerfs_command(home, *words, cwd=cwd).peak)


def write_tree(tree: Path, path_of: Callable[[int], bytes], number: int) -> None:
    """Write a real directory of so many files."""
    tree.mkdir()
    top = bytes(tree)
    for each in range(number):
        path = os.path.join(top, path_of(each))
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        except FileNotFoundError:
            os.mkdir(os.path.dirname(path))
            file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(file, content_of(each))
        os.close(file)


def histories(lengths: list[int], place: Path, rounds: int, growth: Growth) -> Iterator[Result]:
    """Measure what a long history costs."""
    subjects = {}
    for length in lengths:
        made = make_store(place / f"history-{length}", 1_000)
        subjects[length] = Subject(made, nested_path, place)
        subjects[length].head = lengthened(made, length)
    try:
        for step in HISTORY_STEPS:
            job = f"history: {step}"
            for result in compared(job, step, subjects, rounds, growth):
                yield result._replace(job=result.job.replace("n =", "commits ="))
    finally:
        for subject in subjects.values():
            subject.close()


def lengthened(made: Made, length: int) -> CommitId:
    return extend(made.store, made.head, length - 1)


def growth_table(growth: Growth) -> str:
    """Render medians by size as a Markdown table; jobs that were measured at the same sizes share one."""
    lines: list[str] = []
    shown: list[int] = []
    for job, by_size in growth.items():
        if list(by_size) != shown:
            shown = list(by_size)
            head = ["job", *(f"{number:,}" for number in shown)]
            lines += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        unit = "B" if job.endswith("memory") else "s"
        cells = [figure(Timing(job, figures, []).median, unit) for figures in by_size.values()]
        lines.append(f"| {job} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure and report."""
    made = harness.parser(__doc__ or "")
    made.add_argument(
        "--largest", type=int, default=1_000_000, help="files in the largest tree, a power of ten"
    )
    made.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    options = made.parse_args()
    if os.geteuid():
        sys.exit("mounting an overlay for all to see needs root")
    rounds = harness.QUICK_ROUNDS if options.quick else max(options.rounds, harness.LEAST_ROUNDS)
    largest = 10_000 if options.quick else options.largest
    numbers = [10**power for power in range(3, 7) if 10**power <= largest]
    growth: Growth = {}
    results: list[Result] = []
    # Commands first: the kernel counts what the process that starts one had resident to its peak as well.
    for shape in SHAPES if "commands" in options.parts else ():
        with scratch("large-trees") as place:
            results += whole_steps(shape, numbers, Path(place), growth)
    for shape in SHAPES if "steps" in options.parts else ():
        with scratch("large-trees") as place:
            os.environ["XDG_CACHE_HOME"] = str(Path(place) / "cache")
            results += flat_steps(shape, numbers, Path(place), rounds, growth)
    if "history" in options.parts:
        with scratch("large-trees") as place:
            lengths = [10, 100] if options.quick else [10, 100, 1_000, 10_000]
            results += histories(lengths, Path(place), rounds, growth)
    harness.report("large-trees", results, options.json, growth=growth)
    print(growth_table(growth))


if __name__ == "__main__":
    main()

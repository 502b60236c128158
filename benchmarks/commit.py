"""Commits, status, publishing, merging and history: what they cost in small and large trees, in process and as commands.

Run ``python benchmarks/commit.py [--rounds N] [--quick] [--json FILE]`` as root. Ten files change in a workspace of
100,000; git does ``add -A`` and ``commit`` in a plain copy of the same tree. Costs that must not grow with the tree are
measured in trees of several sizes. What a commit adds to the store is in ``growth.py``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness, peers
from benchmarks.environment import need, scratch
from benchmarks.harness import Contender, Result
from benchmarks.synthetic import (
    BRANCH,
    PER_DIRECTORY,
    Made,
    author,
    content_of,
    edit,
    extend,
    make_store,
    mount,
    path_of,
    unmount,
)
from layerfs.history.branches import fork
from layerfs.history.decorations import read_decorations
from layerfs.history.history import CommitReader
from layerfs.history.merging import MergeNames, Outcome, merge_commits
from layerfs.history.publish import PublishRequest, publish_branch
from layerfs.history.revisionset import Selection, parse_set, select
from layerfs.ids import to_hex
from layerfs.present.history import present_log
from layerfs.store.workspacerecords import find_workspace
from layerfs.workspace.commit import commit_workspace
from layerfs.workspace.recording import CommitRequest
from layerfs.workspace.status import read_status

CHANGED = 10
DIRECTORIES = 5
MERGED = 100
GOAL_COMMIT = 0.1
GOAL_PROCESS = 0.6
GOAL_MERGE = 0.060
GOAL_PUBLISH = 0.020
GOAL_LOG = 0.3


class Changer:
    """Changes ten files, others each time: the same ones in a small tree and in a large one."""

    def __init__(self, top: Path) -> None:
        self.top = bytes(top)
        self.turns = count(1)

    def __call__(self) -> None:
        turn = next(self.turns)
        for step in range(CHANGED):
            number = step % DIRECTORIES * PER_DIRECTORY + (turn + step // DIRECTORIES) % PER_DIRECTORY
            with open(os.path.join(self.top, path_of(number)), "r+b") as file:
                file.write(content_of(number, turn))


class Attached(NamedTuple):
    """A mounted workspace of a store of so many files."""

    made: Made
    path: Path
    name: str

    def commit(self) -> None:
        """Commit, in process."""
        record = find_workspace(self.made.store.refs, self.name)
        assert record is not None
        done = commit_workspace(self.made.store, record, CommitRequest(author(), "ten files"))
        assert done.commit is not None

    def status(self) -> None:
        """Compare with the last commit, in process."""
        record = find_workspace(self.made.store.refs, self.name)
        assert record is not None
        read_status(self.made.store, record)


@contextmanager
def attached(place: Path, files: int) -> Iterator[Attached]:
    """Make a store and mount its branch."""
    made = make_store(place / f"store-{files}", files)
    with made.store:
        path = place / f"workspace-{files}"
        record = mount(made.store, path)
        try:
            yield Attached(made, path, record.name)
        finally:
            last = find_workspace(made.store.refs, record.name)
            unmount(made.store, last or record, discard=True)


def plain_copy(place: Path, files: int) -> tuple[Path, dict[str, str]]:
    """Write the same files into a directory with a git repository, all committed."""
    tree = place / "plain"
    for number in range(files):
        path = tree / os.fsdecode(path_of(number))
        if number % 100 == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(content_of(number))
    env = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for key in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{key}_NAME": "bench", f"GIT_{key}_EMAIL": "bench@example.com"}
    peers.run("git", "init", "-q", env=env, cwd=tree)
    peers.run("git", "config", "gc.auto", "0", env=env, cwd=tree)
    peers.run("git", "add", "-A", env=env, cwd=tree)
    peers.run("git", "commit", "-q", "-m", "all files", env=env, cwd=tree)
    peers.run("git", "gc", "-q", env=env, cwd=tree)
    return tree, env


def commits(small: Attached, large: Attached, place: Path, rounds: int) -> list[Result]:
    """Commit ten changed files: layerfs in process and as a command, git as two commands."""
    home = place / "home"
    command = partial(peers.layerfs_command, home, "commit", "-m", "ten files", cwd=large.path)
    contenders = [
        Contender(f"commit, {small.made.files:,} files", small.commit, Changer(small.path)),
        Contender(f"commit, {large.made.files:,} files", large.commit, Changer(large.path)),
        Contender("layerfs commit", command, Changer(large.path)),
    ]
    if not need("git"):
        tree, env = plain_copy(place, large.made.files)

        def with_git() -> None:
            peers.run("git", "add", "-A", env=env, cwd=tree)
            peers.run("git", "commit", "-q", "-m", "ten files", env=env, cwd=tree)

        contenders.append(Contender("git add -A, commit", with_git, Changer(tree)))
    timings = harness.run_interleaved(contenders, rounds)
    few, many, process = (timings[each.name] for each in contenders[:3])
    results = [harness.compare(f"commit of 10 files: {many.name} against fewer", many, few)]
    git = timings.get("git add -A, commit")
    if git is None:
        return [*results, harness.limit("commit of 10 files, in process", many)]
    return [
        harness.compare("commit of 10 files, in process", many, git, GOAL_COMMIT),
        harness.compare("commit of 10 files, whole process", process, git, GOAL_PROCESS),
        *results,
    ]


def statuses(small: Attached, large: Attached, rounds: int) -> list[Result]:
    """Status with ten changed files, in a small and in a large tree."""
    for each in (small, large):
        Changer(each.path)()
    names = [f"status, {each.made.files:,} files" for each in (small, large)]
    timings = harness.run_interleaved(
        [Contender(name, each.status) for name, each in zip(names, (small, large), strict=True)], rounds
    )
    return [harness.compare("status of 10 changed files", timings[names[1]], timings[names[0]])]


def merging(made: Made) -> Contender:
    """Return a contender that merges 100 changes a side."""
    half = made.files // 2
    ours = edit(made.store, made.head, range(MERGED), 1, branch=None)
    theirs = edit(made.store, made.head, range(half, half + MERGED), 2, branch=None)

    def run() -> None:
        with made.store.batch() as batch:
            merged = merge_commits(batch, ours, theirs, time.time_ns(), MergeNames("ours", "theirs"))
            assert merged.outcome is Outcome.MERGED

    return Contender(f"merge, {made.files:,} files", run)


def publishing(made: Made) -> Contender:
    """Return a contender that publishes ten paths into a main that has moved meanwhile."""
    turns = count(1)
    names: list[str] = []

    def prepare() -> None:
        turn = next(turns)
        name = f"work-{turn}"
        top = made.store.refs.main_layer()
        assert top is not None
        fork(made.store, (name,), to_hex(made.head), None, None, "bench")
        first = turn * CHANGED % (made.files - CHANGED)
        edit(made.store, made.head, range(first, first + CHANGED), turn, branch=name)
        names.append(name)

    def run() -> None:
        published = publish_branch(made.store, PublishRequest(names.pop(), author()))
        assert published.layer is not None, published.conflicts

    return Contender(f"publish of 10 paths, {made.files:,} files", run, prepare)


def long_history(place: Path, length: int) -> Made:
    """Make a store with a long history."""
    made = make_store(place / f"history-{length}", 1_000, durable=False)
    extend(made.store, made.head, length)
    return made


def logging(made: Made) -> Callable[[], object]:
    """Return what lists the whole history, as ``log`` does."""

    def run() -> None:
        wanted = parse_set(made.store, (BRANCH,), None, BRANCH)
        chosen = select(CommitReader(made.store.objects), wanted, Selection((), False, False, None))
        reply = present_log(chosen, read_decorations(made.store.refs), "full")
        text = reply.text
        size = len(text) if isinstance(text, bytes) else sum(map(len, text))
        assert size

    return run


def main() -> None:
    """Measure and report."""
    options = harness.arguments(__doc__)
    if os.geteuid():
        sys.exit("mounting an overlay for all to see needs root")
    few, many, length = (500, 2_000, 200) if options.quick else (1_000, 100_000, 10_000)
    results: list[Result] = []
    with scratch("commit") as directory, ExitStack() as opened:
        place = Path(directory)
        small = opened.enter_context(attached(place, few))
        large = opened.enter_context(attached(place, many))
        results += commits(small, large, place, options.rounds)
        results += statuses(small, large, options.rounds)
        merges = [merging(small.made), merging(large.made)]
        for name, timing in harness.run_interleaved(merges, options.rounds).items():
            results.append(harness.limit(f"{name}, 100 changes a side", timing, at_most=GOAL_MERGE))
        publishes = harness.run_interleaved([publishing(large.made)], max(options.rounds, 5))
        results += [harness.limit(name, each, at_most=GOAL_PUBLISH) for name, each in publishes.items()]
        made = long_history(place, length)
        opened.enter_context(made.store)
        listing = harness.repeat("log", logging(made), options.rounds)
        results.append(harness.limit(f"log of {length:,} commits", listing, at_most=GOAL_LOG))
    harness.report("commit", results, options.json)


if __name__ == "__main__":
    main()

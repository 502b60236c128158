"""Sixteen processes commit to one branch at once, each to files of its own: all land, and how many a second.

Run ``python benchmarks/writers.py [--rounds N] [--quick] [--json FILE]``. Each process holds the store open and commits a
state of its own time after time; the branch joins what others committed meanwhile. Durable; nobody retries. Beside it one
process alone, and what a synced append of the same disk takes.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness
from benchmarks.environment import scratch
from benchmarks.harness import sizes
from benchmarks.synthetic import BRANCH, author, content_of, file_entry, make_store, path_of
from layerfs.history.history import CommitReader
from layerfs.objects.environment import edit_paths, lookup_path
from layerfs.objects.moves import WorkspacePut
from layerfs.store.store import Store
from layerfs.store.workspacerecords import Engine, WorkspaceRecord, encode_record, find_workspace
from layerfs.workspace.commit import commit_state
from layerfs.workspace.recording import CommitRequest

WRITERS = 16
GOAL = 50
FILES = 2_000


def write(place: str, number: int, commits: int, ready: Barrier) -> None:
    """Be one writer: a workspace of one's own, whose state changes in one file a commit."""
    with Store.open(os.fsencode(place), clock=time.time_ns) as store:
        head = store.refs.need_head(BRANCH)
        name = f"writer-{number}"
        record = WorkspaceRecord(name, BRANCH, Engine.COPY, os.fsencode(f"{place}-{number}"), head, head, 0)
        with store.lane() as lane:
            lane.apply(None, [WorkspacePut(name, encode_record(record))])
        ready.wait()
        for version in range(1, commits + 1):
            found = find_workspace(store.refs, name)
            assert found is not None
            with store.batch() as batch:
                base = CommitReader(batch).root(found.last)
                entry = file_entry(batch, content_of(number, version))
                root = edit_paths(batch, base, {path_of(number * 100 + version % 100): entry})
                done = commit_state(
                    store, batch, found, BRANCH, root, CommitRequest(author(), f"{name} {version}")
                )
                assert done.commit is not None and not done.conflicts
    os._exit(0)


def run(place: Path, writers: int, commits: int) -> float:
    """Let the writers commit; return commits a second, after checking that every last state landed."""
    made = make_store(place, FILES)
    made.store.close()
    context = get_context("spawn")
    ready = context.Barrier(writers + 1)
    processes = [
        context.Process(target=write, args=(str(place), number, commits, ready)) for number in range(writers)
    ]
    for process in processes:
        process.start()
    ready.wait()
    started = time.perf_counter()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - started
    failed = [process.exitcode for process in processes if process.exitcode]
    if failed:
        raise SystemExit(f"{len(failed)} of {writers} writers failed")
    with Store.open(bytes(place), clock=time.time_ns) as store:
        reader = CommitReader(store.objects)
        root = reader.root(store.refs.need_head(BRANCH))
        for number in range(writers):
            found = lookup_path(store.objects, root, path_of(number * 100 + commits % 100))
            assert found is not None and found.size == len(content_of(number, commits)), "a commit is missing"
    return writers * commits / seconds


def synced_appends(place: Path, count: int = 100) -> float:
    """Return how many small appends, each synced, the disk takes in a second."""
    fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    started = time.perf_counter()
    for _ in range(count):
        os.write(fd, bytes(1000))
        os.fdatasync(fd)
    seconds = time.perf_counter() - started
    os.close(fd)
    return count / seconds


def main() -> None:
    """Measure and report."""
    options = harness.arguments(__doc__)
    commits = 3 if options.quick else 10
    many, alone, disk = [], [], []
    with scratch("writers") as directory:
        for turn in range(options.rounds):
            many.append(run(Path(directory) / f"many-{turn}", WRITERS, commits))
            alone.append(run(Path(directory) / f"alone-{turn}", 1, commits * 4))
            disk.append(synced_appends(Path(directory) / f"appends-{turn}"))
    together = sizes(f"{WRITERS} processes", *many, unit="/s")
    results = [
        harness.limit(f"{WRITERS} processes on one branch, all land: commits", together, at_least=GOAL),
        harness.limit("one process alone: commits", sizes("one process", *alone, unit="/s")),
        harness.limit("synced appends of 1,000 bytes", sizes("disk", *disk, unit="/s")),
    ]
    harness.report("writers", results, options.json)


if __name__ == "__main__":
    main()

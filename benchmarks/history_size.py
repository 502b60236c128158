"""What a history of many states takes, against Git's packs of the same trees.

    python benchmarks/history_size.py REPOSITORY [--every 100] [--quick] [--json FILE] [--keep DIRECTORY]

Takes every n-th commit of a Git repository (``rev-list --reverse --topo-order``, the n-th first) and its tip, checks each
out into one directory, captures it as a commit, and compares: the store as the captures leave it, the store after
``repack``, and a Git repository that holds the same trees after ``git gc``. A file keeps its time while its content
stays, and has its commit's when it changes, as in a working tree. Every state is read back and compared with Git's
blobs, byte for byte, before and after the repack. The cost of reading is measured as well: objects at random, and whole
states in order.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import Result, compare, limit, report, sizes

from layerfs.capture.capture import capture_directory
from layerfs.capture.statcache import StatCache
from layerfs.history.history import CommitReader
from layerfs.ids import CommitId
from layerfs.objects.chunking import ONE_PIECE_LIMIT
from layerfs.objects.commits import Commit, put_commit
from layerfs.objects.content import iter_pieces
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import put_root, walk
from layerfs.objects.moves import RefSet
from layerfs.store.store import Store

BRANCH = "refs/heads/history"
RANDOM_READS = 300
STATES_READ = 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repository", type=Path, help="a Git repository, bare or not")
    parser.add_argument("--every", type=int, default=100, help="take every n-th commit")
    parser.add_argument("--quick", action="store_true", help="only the first few states")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="work in this directory and leave it")
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        run(options, options.keep)
    else:
        with tempfile.TemporaryDirectory(prefix="layerfs-history-") as scratch:
            run(options, Path(scratch))


def run(options: argparse.Namespace, scratch: Path) -> None:
    git = Git(options.repository)
    states = git.states(options.every)
    if options.quick:
        states = states[:6]
    store_path = scratch / "store"
    started = time.monotonic()
    commits = capture(git, states, scratch / "tree", store_path)
    print(f"{len(states)} states captured in {time.monotonic() - started:.1f} s")
    peer = sizes("git gc", git.packed(states, scratch / "peer.git"))
    before = sizes("before repack", store_bytes(store_path))
    with open_store(store_path) as store:
        read_back(git, store, states, commits)
        cost_before = reading(store, commits)
    shutil.copytree(store_path, scratch / "before", dirs_exist_ok=True)
    started = time.monotonic()
    command = [sys.executable, "-m", "layerfs", "repack", "--store", os.fspath(store_path)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1])
    took = time.monotonic() - started
    print(f"repacked in {took:.1f} s")
    after = sizes("after repack", store_bytes(store_path))
    with open_store(store_path) as store:
        read_back(git, store, states, commits)
        cost_after = reading(store, commits)
    results: list[Result] = [
        compare("store before repack", before, peer, 1.3),
        compare("store after repack", after, peer, 0.7),
    ]
    for name, figure in cost_before.items():
        results.append(limit(f"{name}, before", sizes(name, *figure, unit="s")))
        results.append(limit(f"{name}, after", sizes(name, *cost_after[name], unit="s")))
    report("history_size", results, options.json, states=len(states), repack_seconds=took)


class Git:
    """The repository states come from; blobs are read through one ``cat-file --batch``."""

    def __init__(self, repository: Path) -> None:
        self.directory = subprocess.run(
            ["git", "-C", os.fspath(repository), "rev-parse", "--absolute-git-dir"],
            check=True,
            stdout=subprocess.PIPE,
        ).stdout.strip()
        self._blobs: subprocess.Popen[bytes] | None = None

    def run(self, *words: str | bytes | Path, **options: Any) -> bytes:
        out: bytes = subprocess.run(
            ["git", b"--git-dir=" + self.directory, *words], check=True, stdout=subprocess.PIPE, **options
        ).stdout
        return out

    def states(self, every: int) -> list[bytes]:
        revisions = self.run("rev-list", "--reverse", "--topo-order", "HEAD").split()
        return list(dict.fromkeys([*revisions[every - 1 :: every], revisions[-1]]))

    def time_ns(self, commit: bytes) -> int:
        return int(self.run("show", "-s", "--format=%ct", commit)) * 10**9

    def files(self, commit: bytes) -> dict[bytes, tuple[bytes, bytes]]:
        """Return path → (mode, blob) of a commit, submodules left out."""
        rows = self.run("ls-tree", "-r", "-z", commit).split(b"\0")[:-1]
        found = {}
        for row in rows:
            about, path = row.split(b"\t", 1)
            mode, kind, blob = about.split()
            if kind == b"blob":
                found[path] = (mode, blob)
        return found

    def blob(self, oid: bytes) -> bytes:
        if self._blobs is None:
            self._blobs = subprocess.Popen(
                ["git", b"--git-dir=" + self.directory, "cat-file", "--batch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        assert self._blobs.stdin and self._blobs.stdout
        self._blobs.stdin.write(oid + b"\n")
        self._blobs.stdin.flush()
        size = int(self._blobs.stdout.readline().split()[2])
        return self._blobs.stdout.read(size + 1)[:-1]

    def packed(self, states: Sequence[bytes], target: Path) -> int:
        """Return the bytes of pack and index that Git makes anew, with its defaults, of these trees alone."""
        rows: dict[bytes, bytes] = {}
        for state in states:
            rows[self.run("rev-parse", state + b"^{tree}").strip()] = b""
            for row in self.run("ls-tree", "-r", "-t", "-z", state).split(b"\0")[:-1]:
                about, path = row.split(b"\t", 1)
                _, kind, oid = about.split()
                if kind != b"commit":
                    rows.setdefault(oid, path)
        listed = b"".join(b"%s %s\n" % (oid, path.replace(b"\n", b"?")) for oid, path in rows.items())
        target.mkdir()
        self.run("pack-objects", "-q", "--no-reuse-delta", "--no-reuse-object", target / "pack", input=listed)
        return sum(path.stat().st_size for path in target.iterdir() if path.suffix in (".pack", ".idx"))


def capture(git: Git, states: Sequence[bytes], tree: Path, store_path: Path) -> list[CommitId]:
    """Check each state out and commit it; return the commits."""
    tree.mkdir()
    index = tree.with_name("index")
    environment = dict(os.environ, GIT_INDEX_FILE=os.fspath(index))
    commits: list[CommitId] = []
    seen: dict[bytes, tuple[bytes, bytes]] = {}
    base: Entry | None = None
    cache: StatCache | None = None
    with Store.create(os.fsencode(store_path), clock=time.time_ns, durability="disposable") as store:
        for state in states:
            git.run(
                b"--work-tree=" + os.fsencode(tree),
                "read-tree",
                "--reset",
                "-u",
                state,
                env=environment,
                cwd=tree,
            )
            files = git.files(state)
            moment = git.time_ns(state)
            settle_times(os.fsencode(tree), seen, files, moment)
            seen = files
            descriptor = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
            try:
                with store.batch() as batch:
                    captured = capture_directory(descriptor, batch, base=base, cache=cache)
                    base, cache = captured.root, captured.cache
                    parents = (commits[-1],) if commits else ()
                    commit = Commit(
                        put_root(batch, base), parents, moment, 0, "benchmark", f"state {state.decode()}"
                    )
                    like = commits[-1] if commits else None
                    commits.append(put_commit(batch, commit))
                    with store.lane() as lane:
                        lane.apply(batch, [RefSet(BRANCH, like, commits[-1], "commit")], "benchmark")
            finally:
                os.close(descriptor)
    return commits


def settle_times(
    tree: bytes, old: dict[bytes, tuple[bytes, bytes]], new: dict[bytes, tuple[bytes, bytes]], moment: int
) -> None:
    """Give what changed the commit's time: files whose content did, directories that gained or lost a name."""
    directories: set[bytes] = set()
    for path in old.keys() | new.keys():
        if old.get(path) == new.get(path):
            continue
        if path in new:
            os.utime(os.path.join(tree, path), ns=(moment, moment), follow_symlinks=False)
        if (path in old) != (path in new):
            directories.add(os.path.dirname(path))
    for path in list(directories):
        while path:
            path = os.path.dirname(path)
            directories.add(path)
    for path in directories:
        if os.path.isdir(os.path.join(tree, path)):
            os.utime(os.path.join(tree, path), ns=(moment, moment))


def open_store(path: Path) -> Store:
    return Store.open(os.fsencode(path), clock=time.time_ns)


def store_bytes(path: Path) -> int:
    """Return the bytes of a store's packs, indexes and database."""
    return sum(each.stat().st_size for each in [*(path / "packs").iterdir(), *path.glob("meta.db*")])


def read_back(git: Git, store: Store, states: Sequence[bytes], commits: Sequence[CommitId]) -> None:
    """Compare every state with Git's: the same paths, and under each the same bytes.

    Equal content is compared once; small files are read in bulk, as a checkout reads them.
    """
    small: dict[bytes, bytes] = {}
    large: dict[bytes, tuple[Entry, bytes]] = {}
    for state, commit in zip(states, commits, strict=True):
        files = git.files(state)
        entries = {
            path: entry
            for path, entry in walk(store.objects, CommitReader(store.objects).root(commit))
            if entry.kind is not EntryKind.DIR
        }
        assert entries.keys() == files.keys(), f"state {state!r} has other paths"
        for path, (mode, blob) in files.items():
            entry = entries[path]
            if mode == b"120000":
                assert entry.ref == git.blob(blob)
                continue
            assert entry.kind is EntryKind.FILE
            if not entry.size:
                assert not git.blob(blob)
            elif entry.size < ONE_PIECE_LIMIT:
                assert small.setdefault(entry.ref, blob) == blob, (
                    f"{path!r} of {state!r} is another file's content"
                )
            else:
                assert large.setdefault(entry.ref, (entry, blob))[1] == blob
    count = 0
    for oid, _, payload in store.objects.read_many(small):  # type: ignore[arg-type]
        assert payload == git.blob(small[oid]), f"content {oid.hex()} is not what was captured"
        count += 1
    assert count == len(small)
    for entry, blob in large.values():
        pieces = iter_pieces(store.objects, entry.ref, entry.size)
        assert b"".join(data or bytes(length) for length, data in pieces) == git.blob(blob)
    print(f"{len(states)} states read back: {count + len(large)} contents are right")


def file_refs(store: Store, commit: CommitId) -> Iterator[Entry]:
    for _, entry in walk(store.objects, CommitReader(store.objects).root(commit)):
        if entry.kind is EntryKind.FILE and entry.size:
            yield entry


def reading(store: Store, commits: Sequence[CommitId]) -> dict[str, list[float]]:
    """Time reads with nothing cached by layerfs: one file at random, all trees of a state, and all of its files."""
    generator = random.Random(1)
    chosen = [commits[-1], commits[len(commits) // 2], commits[0]][:STATES_READ]
    found: dict[str, list[float]] = {
        "one file at random": [],
        "all trees of a state": [],
        "all files of a state": [],
    }
    everything = [entry for commit in chosen for entry in file_refs(store, commit)]
    path = Path(os.fsdecode(store.path))
    for entry in generator.sample(everything, min(RANDOM_READS, len(everything))):
        with open_store(path) as fresh:
            started = time.perf_counter()
            for _ in iter_pieces(fresh.objects, entry.ref, entry.size):
                pass
            found["one file at random"].append(time.perf_counter() - started)
    for commit in chosen:
        with open_store(path) as fresh:
            started = time.perf_counter()
            entries = list(file_refs(fresh, commit))
            found["all trees of a state"].append(time.perf_counter() - started)
            started = time.perf_counter()
            for _ in fresh.objects.read_many(entry.ref for entry in entries):  # type: ignore[arg-type]
                pass
            found["all files of a state"].append(time.perf_counter() - started)
    return found


if __name__ == "__main__":
    main()

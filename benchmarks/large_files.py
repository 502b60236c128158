"""Changes inside one large file: what they cost to store and commit, and what capturing the whole file again costs.

    python benchmarks/large_files.py [--gib G] [--peers NAME …] [--rounds N] [--quick] [--json FILE]

One file of G GiB (10 unless told otherwise) of bytes that do not compress, without holes, is captured once. Then, at
places spread over it: 1 byte, 4 KiB and 1 MiB are overwritten, and 1 byte and 4 KiB inserted at the front; each is a
durable commit on a branch, made in process through ``objects.splice`` (what ``splice-extent --root``, ``commit-tree`` and
``update-ref`` do), and each time is that of the whole commit. The same for a file on disk of which the dirty range is
known (``capture_ranges``). Against these: layerfs reading the whole changed file again, once, with the file in the page
cache as far as it fits; and, for each peer named (restic, borg, git), its own capture of a one-byte change. The disk must
hold twice the file, and once more for each peer.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness, peers
from benchmarks.environment import need, scratch
from benchmarks.harness import Contender, Result, limit, sizes
from benchmarks.synthetic import MTIME_NS, author
from layerfs.capture.capture import capture_directory
from layerfs.capture.dirtyranges import Range, capture_ranges
from layerfs.history.history import CommitReader
from layerfs.ids import CommitId
from layerfs.objects.commits import Commit, put_commit
from layerfs.objects.entry import Entry
from layerfs.objects.environment import edit_paths, lookup_path, put_root
from layerfs.objects.moves import RefSet
from layerfs.objects.source import ObjectStore
from layerfs.objects.splice import splice
from layerfs.store.store import Store

BLOCK = 1 << 20
NAME = b"image"
PEERS = {"restic": peers.restic, "borg": peers.borg, "git": peers.git}
EDITS = {"1 byte": (1, 1), "4 KiB": (4096, 4096), "1 MiB": (BLOCK, BLOCK)}
INSERTS = {"1 byte in front": (0, 1), "4 KiB in front": (0, 4096)}


class Line:
    """A branch whose newest commit holds the file."""

    def __init__(self, store: Store, name: str, head: CommitId | None = None) -> None:
        self.store = store
        self.ref = f"refs/heads/{name}"
        self.before: CommitId | None = None
        self.head = head
        self.random = random.Random(name)

    def commit(self, make: Callable[[ObjectStore], Entry]) -> None:
        """Commit a root durably."""
        with self.store.batch() as batch:
            who = author()
            parents = () if self.head is None else (self.head,)
            new = put_commit(
                batch, Commit(put_root(batch, make(batch)), parents, who.time_ns, 0, who.name, "x")
            )
            with self.store.lane() as lane:
                lane.apply(batch, [RefSet(self.ref, self.before, new, "bench")])
        self.before = self.head = new

    def file(self) -> tuple[Entry, Entry]:
        """Return the newest root and the file in it, read anew."""
        assert self.head is not None
        root = CommitReader(self.store.objects).root(self.head)
        entry = lookup_path(self.store.objects, root, NAME)
        assert entry is not None
        return root, entry

    def change(self, length: int, count: int, front: bool) -> None:
        """Commit one splice at a place not yet changed, or at the front."""

        def make(batch: ObjectStore) -> Entry:
            root, entry = self.file()
            place = 0 if front else self.random.randrange(entry.size - length)
            data = self.random.randbytes(count)
            edited = splice(self.store.objects, batch, entry, place, length, [data])
            return edit_paths(batch, root, {NAME: edited._replace(mtime_ns=MTIME_NS)})

        self.commit(make)


def main() -> None:
    made = harness.parser(__doc__ or "")
    made.add_argument("--gib", type=float, default=10, help="size of the file")
    made.add_argument("--peers", nargs="*", choices=sorted(PEERS), default=[], help="tools to compare with")
    options = made.parse_args()
    size = int((0.0625 if options.quick else options.gib) * (1 << 30)) // BLOCK * BLOCK
    rounds = harness.QUICK_ROUNDS if options.quick else max(options.rounds, harness.LEAST_ROUNDS)
    with scratch("large-files") as place:
        tree = Path(place) / "tree"
        tree.mkdir()
        write(tree / os.fsdecode(NAME), size)
        results = ours(tree, Path(place) / "store", rounds)
        for name in [each for each in options.peers if not need(each)]:
            results += theirs(name, tree, Path(place))
    harness.report("large-files", results, options.json, bytes=size)


def write(path: Path, size: int) -> None:
    """Write the file: generated fast, unlike anywhere."""
    generator = random.Random(size)
    with path.open("wb") as file:
        for _ in range(size // BLOCK):
            file.write(generator.randbytes(BLOCK))
    os.sync()


def ours(tree: Path, place: Path, rounds: int) -> list[Result]:
    """Measure layerfs."""
    results: list[Result] = []
    with Store.create(bytes(place), clock=time.time_ns) as store:
        line = Line(store, "spliced")
        whole = harness.repeat(
            "whole file", lambda: line.commit(lambda batch: captured(tree, batch)), 1, warm_up=0
        )
        results.append(limit("first capture", whole))
        beside = Line(store, "ranges", line.head)
        contenders = []
        grown: dict[str, list[float]] = {}
        for what, (length, count) in (EDITS | INSERTS).items():
            contenders.append(weighed(place, what, partial(line.change, length, count, not length), grown))
        for what, (length, _) in EDITS.items():
            contenders.append(
                weighed(place, f"{what}, known range", partial(ranged, beside, tree, length), grown)
            )
        timings = harness.run_interleaved(contenders, rounds)
        (tree / os.fsdecode(NAME)).touch()
        again = harness.repeat(
            "whole file again", lambda: line.commit(lambda batch: captured(tree, batch)), 1, warm_up=0
        )
        results.append(limit("capture of the whole file again", again))
        for contender in contenders:
            timing = timings[contender.name]
            results.append(harness.compare(f"commit of {timing.name}", timing, again))
            results.append(
                limit(f"bytes stored for {timing.name}", sizes("layerfs", *grown[timing.name][1:]))
            )
    return results


def captured(tree: Path, batch: ObjectStore) -> Entry:
    descriptor = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return capture_directory(descriptor, batch).root
    finally:
        os.close(descriptor)


def ranged(line: Line, tree: Path, length: int) -> None:
    """Overwrite a range of the file on disk, and commit that range alone; what the branch holds otherwise is taken."""
    path = tree / os.fsdecode(NAME)

    def make(batch: ObjectStore) -> Entry:
        root, entry = line.file()
        at = line.random.randrange(path.stat().st_size - length)
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), line.random.randbytes(length), at)
            found = capture_ranges(line.store.objects, batch, entry, file.fileno(), [Range(at, length)])
        ref, size = found.content
        return edit_paths(batch, root, {NAME: entry._replace(ref=ref, size=size)})

    line.commit(make)


def weighed(place: Path, what: str, run: Callable[[], None], grown: dict[str, list[float]]) -> Contender:
    """Return a contender that also notes what it adds to the store's files, by their length."""
    before = [0]

    def prepare() -> None:
        before[0] = stored(place)

    def clean() -> None:
        grown.setdefault(what, []).append(float(stored(place) - before[0]))

    return Contender(what, run, prepare, clean)


def stored(place: Path) -> int:
    return sum(each.stat().st_size for each in (place / "packs").iterdir())


def theirs(name: str, tree: Path, place: Path) -> list[Result]:
    """Measure a peer: the first capture, and the capture after one byte changed."""
    peer = PEERS[name](tree, place)
    peer.fresh()
    first = harness.repeat(name, peer.capture, 1, warm_up=0)
    before = peers.disk_bytes(peer.store)
    with (tree / os.fsdecode(NAME)).open("r+b") as file:
        file.seek(file.seek(0, os.SEEK_END) // 2)
        file.write(b"\0")
    second = harness.repeat(name, peer.capture, 1, warm_up=0)
    grown = peers.disk_bytes(peer.store) - before
    return [
        limit(f"{name}: first capture", first),
        limit(f"{name}: capture of a change of 1 byte", second),
        limit(f"{name}: bytes stored for 1 byte", sizes(name, grown)),
    ]


if __name__ == "__main__":
    main()

"""How much one commit of one changed line adds to a store of 100,000 files: the mean of 1,000 such commits.

    python benchmarks/growth.py [--quick] [--json FILE]

A tree of 1,000 directories of 100 files of some 2 KB each. Each commit appends or changes one line of one file chosen at
random and lands durably on one branch, with its workspace record, exactly as ``commit`` does it. Figures are bytes per
commit: packs and indexes by their length, and the whole store by disk blocks, both with the database closed. Then the
same after ``repack``.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import arguments, limit, report, sizes

from layerfs.history.history import CommitReader
from layerfs.ids import CommitId
from layerfs.objects.commits import Commit, put_commit, sorted_provenance
from layerfs.objects.content import put_content, read_content
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import edit_paths, lookup_path, put_root
from layerfs.objects.moves import RefSet, WorkspacePut
from layerfs.objects.trees import build_tree
from layerfs.store.store import Store
from layerfs.store.workspacerecords import Engine, WorkspaceRecord, encode_record

BRANCH = "refs/heads/work"
NOW = 1_760_000_000_000_000_000


def main() -> None:
    options = arguments(__doc__ or "")
    directories, commits = (20, 40) if options.quick else (1000, 1000)
    with tempfile.TemporaryDirectory(prefix="layerfs-growth-") as scratch:
        path = Path(scratch) / "store"
        head = build(path, directories)
        blocks, packed = disk_blocks(path), pack_bytes(path)
        started = time.perf_counter()
        head = edit(path, head, directories, commits)
        took = time.perf_counter() - started
        grown_blocks = (disk_blocks(path) - blocks) / commits
        grown_packs = (pack_bytes(path) - packed) / commits
        plain = Path(scratch) / "plain"
        shutil.copytree(path, plain)
        # What the same repack makes of the store without the commits is not growth.
        first = Path(scratch) / "first"
        build(first, directories)
        for store in (first, path):
            repack(store)
        again_blocks = (disk_blocks(path) - disk_blocks(first)) / commits
        again_packs = (pack_bytes(path) - pack_bytes(first)) / commits
    results = [
        limit("disk blocks of the store, per commit", sizes("before repack", grown_blocks), at_most=2000),
        limit("packs, per commit", sizes("before repack", grown_packs)),
        limit("disk blocks of the store, per commit", sizes("after repack", again_blocks), at_most=1000),
        limit("packs, per commit", sizes("after repack", again_packs)),
    ]
    for each in results:
        print(each.measured.name, end="; ")
    report("growth", results, options.json, seconds_per_commit=took / commits)


def build(path: Path, directories: int) -> CommitId:
    """Make the store and its first commit."""
    generator = random.Random(7)
    words = [
        bytes(generator.choices(b"abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 9))) for _ in range(900)
    ]
    with Store.create(os.fsencode(path), clock=time.time_ns) as store, store.batch() as batch:
        top = []
        for number in range(directories):
            files = []
            for file in range(100):
                lines = [b" ".join(generator.choices(words, k=6)) for _ in range(50)]
                kept = put_content(batch, b"\n".join(lines))
                files.append((b"module%03d.py" % file, file_entry(kept.ref, kept.size, NOW)))
            top.append((b"package%04d" % number, directory_entry(build_tree(batch, files))))
        root = directory_entry(build_tree(batch, top))
        commit = put_commit(batch, Commit(put_root(batch, root), (), NOW, 0, "somebody", "capture of tree"))
        with store.lane() as lane:
            lane.apply(batch, [RefSet(BRANCH, None, commit, "init")], "somebody")
    return commit


def edit(path: Path, head: CommitId, directories: int, commits: int) -> CommitId:
    """Change one line of one file, and commit, again and again."""
    generator = random.Random(11)
    with Store.open(os.fsencode(path), clock=time.time_ns) as store:
        for number in range(commits):
            moment = NOW + number * 61_234_567_891
            root = CommitReader(store.objects).root(head)
            name = b"package%04d/module%03d.py" % (generator.randrange(directories), generator.randrange(100))
            before = lookup_path(store.objects, root, name)
            assert before is not None
            lines = read_content(store.objects, before).split(b"\n")
            lines[generator.randrange(len(lines))] = b"value = compute(%d)" % generator.randrange(10**6)
            with store.batch() as batch:
                kept = put_content(batch, b"\n".join(lines), before)
                root = edit_paths(batch, root, {name: file_entry(kept.ref, kept.size, moment)})
                commit = Commit(
                    put_root(batch, root),
                    (head,),
                    moment,
                    0,
                    "somebody",
                    f"change {number}",
                    sorted_provenance({"workspace": "work"}),
                )
                new = put_commit(batch, commit)
                record = WorkspaceRecord("work", "work", Engine.OVERLAY, b"/srv/work", head, new, NOW)
                ops = [
                    RefSet(BRANCH, head, new, f"commit: change {number}"),
                    WorkspacePut("work", encode_record(record)),
                ]
                batch.prepare()
                with store.lane() as lane:
                    lane.apply(batch, ops, "somebody")
            head = new
    return head


def repack(path: Path) -> None:
    command = [sys.executable, "-m", "layerfs", "repack", "--store", os.fspath(path)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL)


def file_entry(ref: bytes, size: int, moment: int) -> Entry:
    return Entry(EntryKind.FILE, 0o644, 0, 0, moment, size, ref)


def directory_entry(tree: bytes) -> Entry:
    return Entry(EntryKind.DIR, 0o755, 0, 0, NOW, 0, tree)


def disk_blocks(path: Path) -> int:
    return sum(each.stat().st_blocks * 512 for each in path.rglob("*") if each.is_file())


def pack_bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in (path / "packs").iterdir())


if __name__ == "__main__":
    main()

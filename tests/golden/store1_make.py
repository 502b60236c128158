"""Makes the golden store of physical format 1: a small store with everything in it that a pack or a database can hold.

    python tests/golden/store1_make.py DIRECTORY

writes DIRECTORY/store1.tar.xz and DIRECTORY/store1.json, what is in it. Times are fixed; the store's id is not. The files
checked in were made once, when the format became final, and are never made again: what they hold must open for ever. A
later version of the format gets a golden store of its own beside this one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from layerfs.capture.linkgroups import fresh_group
from layerfs.history.history import CommitReader, walk_commits
from layerfs.ids import CommitId
from layerfs.objects import batch as batches
from layerfs.objects import packs
from layerfs.objects.chunking import HOLE_MIN, ONE_PIECE_LIMIT
from layerfs.objects.commits import Commit, put_commit
from layerfs.objects.content import iter_pieces, put_blocks, put_content
from layerfs.objects.entry import Entry, EntryKind, device_ref
from layerfs.objects.environment import edit_paths, lookup_path, put_root, walk
from layerfs.objects.frames import GAP, HEADER, ROW, SOLID
from layerfs.objects.layers import Layer, put_layer
from layerfs.objects.moves import LayerAdd, RefSet, WorkspacePut
from layerfs.objects.trees import build_tree
from layerfs.store.pointers import Retention, read_pointers
from layerfs.store.store import Store
from layerfs.store.workspacerecords import Engine, WorkspaceRecord, encode_record
from layerfs.upkeep.collect import CollectOptions, collect
from layerfs.upkeep.repack import repack

SECOND = 1_000_000_000
BEGIN = 1_735_689_600 * SECOND
MAIN, SIDE = "refs/heads/work", "refs/heads/side"
WORDS = [f"word{number:03d}" for number in range(300)]


class Clock:
    """A second a look."""

    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self) -> int:
        self.now += SECOND
        return self.now


def text(seed: int, lines: int) -> bytes:
    generator = random.Random(seed)
    return "\n".join(" ".join(generator.choices(WORDS, k=6)) for _ in range(lines)).encode()


def edited(content: bytes, number: int) -> bytes:
    lines = content.split(b"\n")
    lines[number % len(lines)] = b"changed in %d" % number
    return b"\n".join(lines)


class Maker:
    """Commits to one store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock

    def commit(self, ref: str, changes: dict[bytes, Any], message: str) -> CommitId:
        """Commit files (bytes), entries made by a function of the batch, and removals (None)."""
        store = self.store
        head = store.refs.get(ref)
        reader = CommitReader(store.objects)
        with store.batch() as batch:
            root = directory(build_tree(batch, [])) if head is None else reader.root(head)
            entries: dict[bytes, Entry | None] = {}
            for path, value in changes.items():
                for end in [at for at, byte in enumerate(path) if byte == 0x2F]:
                    if lookup_path(batch, root, path[:end]) is None:
                        entries[path[:end]] = directory(build_tree(batch, []))
                if isinstance(value, bytes):
                    kept = put_content(batch, value, lookup_path(batch, root, path))
                    entries[path] = file(kept.ref, kept.size, self.clock())
                else:
                    entries[path] = None if value is None else value(batch)
            root = edit_paths(batch, root, entries)
            parents = () if head is None else (head,)
            about = (("command", "make"), ("workspace", "desk"))
            new = put_commit(
                batch, Commit(put_root(batch, root), parents, self.clock(), 60, "golden", message, about)
            )
            batch.prepare()
            with store.lane() as lane:
                lane.apply(batch, [RefSet(ref, head, new, "commit")], "golden")
        return new

    def publish(self, commit: CommitId) -> None:
        with self.store.batch() as batch, self.store.lane() as lane:
            top = lane.refs.main_layer()
            number = 1 if top is None else top.number + 1
            how, previous = ("init", None) if top is None else ("ff", top.layer)
            layer = put_layer(
                batch, Layer(number, commit, previous, how, self.clock(), "golden", f"layer {number}")
            )
            lane.apply(batch, [LayerAdd(number, layer, commit)], "golden")


def directory(ref: bytes) -> Entry:
    return Entry(EntryKind.DIR, 0o755, 0, 0, BEGIN, 0, ref, (), 0)


def file(ref: bytes, size: int, moment: int, **more: Any) -> Entry:
    return Entry(EntryKind.FILE, 0o644, 0, 0, moment, size, ref)._replace(**more)


def odd_entries() -> dict[bytes, Any]:
    """Return every kind of entry, and every optional part of one."""
    begin = text(5, 2 * ONE_PIECE_LIMIT // 80)
    group = fresh_group(b"odd/linked", set())

    def large(batch: Any) -> Entry:
        kept = put_blocks(batch, (begin, 4 * HOLE_MIN, begin[:50_000]))
        return file(kept.ref, kept.size, BEGIN)

    def linked(batch: Any) -> Entry:
        kept = put_content(batch, b"two names")
        return file(kept.ref, kept.size, BEGIN, link_group=group)

    def plain(kind: EntryKind, ref: bytes = b"") -> Any:
        return lambda _: Entry(kind, 0o600, 0, 0, BEGIN + 1, 0, ref, (), 0)

    return {
        b"odd/large.bin": large,
        b"odd/linked": linked,
        b"odd/linked too": linked,
        b"odd/attributes": lambda batch: file(
            put_content(batch, b"x").ref,
            1,
            -1,
            mode=0o4755,
            xattrs=((b"user.a", b""), (b"user.b", b"\0value")),
        ),
        b"odd/empty": lambda _: file(b"", 0, BEGIN),
        b"odd/link": plain(EntryKind.SYMLINK, b"../docs/1.txt"),
        b"odd/fifo": plain(EntryKind.FIFO),
        b"odd/socket": plain(EntryKind.SOCKET),
        b"odd/tty": plain(EntryKind.CHARDEV, device_ref(5, 1)),
        b"odd/disk": plain(EntryKind.BLOCKDEV, device_ref(8, 17)),
        b"odd/\xff name": b"not UTF-8",
        b"odd/noise": random.Random(6).randbytes(6000),
    }


def make(path: Path) -> None:
    """Make the store; its last move is in the open pack but not in the database."""
    clock = Clock()
    with Store.create(os.fsencode(path), clock=clock) as store:
        maker = Maker(store, clock)
        first = {b"src/lib/%d.py" % number: text(number, 20) for number in range(40)}
        head = maker.commit(MAIN, {**first, **odd_entries()}, "capture")
        maker.publish(head)
        with store.lane() as lane:
            lane.apply(None, [RefSet("refs/tags/first", None, head, "tag main")], "golden")
        for number in range(4):
            path_name = b"src/lib/%d.py" % number
            head = maker.commit(MAIN, {path_name: edited(first[path_name], number)}, f"edit {number}")
        maker.publish(head)
        # Dense frames, and a log that begins with a restart.
        repack(store)
        # A sealed pack with solid and delta frames; and gaps, where a dropped branch shared frames with what stays.
        with store.lane() as lane:
            lane.apply(None, [RefSet(SIDE, None, head, "fork")], "golden")
        gone = {b"gone/%d" % number: text(900 + number, 6) for number in range(4)}
        kept = {b"docs/%d.txt" % number: text(100 + number, 20) for number in range(8)}
        dropped = maker.commit(SIDE, {**gone, **kept}, "an idea that was dropped")
        head = maker.commit(MAIN, {**kept, b"src/lib/7.py": None}, "docs")
        for number in range(5):
            head = maker.commit(MAIN, {b"docs/1.txt": edited(kept[b"docs/1.txt"], number)}, f"docs {number}")
        store.seal_open_pack()
        with store.lane() as lane:
            lane.apply(None, [RefSet(SIDE, dropped, None, "delete")], "golden")
        later = clock.now + 40 * 24 * 3600 * SECOND
        collect(store, CollectOptions(Retention(later, 90, 14)), "golden")
        # A bulk pack as a big batch writes it.
        few, batches.BULK_OBJECTS = batches.BULK_OBJECTS, 30
        head = maker.commit(
            MAIN, {b"data/%d" % number: text(200 + number, 2) for number in range(60)}, "data"
        )
        batches.BULK_OBJECTS = few
        maker.publish(head)
        store.seal_open_pack()
        record = WorkspaceRecord(
            "desk", "work", Engine.OVERLAY, b"/somewhere/desk", head, head, BEGIN, attached=False
        )
        with store.lane() as lane:
            lane.apply(None, [WorkspacePut("desk", encode_record(record))], "golden")
        for number in range(3):
            head = maker.commit(
                MAIN, {b"docs/2.txt": edited(kept[b"docs/2.txt"], number)}, f"more docs {number}"
            )
    database = (path / "meta.db").read_bytes()
    with Store.open(os.fsencode(path), clock=clock) as store:
        Maker(store, clock).commit(MAIN, {b"tail": b"committed, but unknown to the database"}, "tail")
    for each in path.glob("meta.db*"):
        each.unlink()
    (path / "meta.db").write_bytes(database)


def frame_kinds(path: Path) -> dict[str, int]:
    """Count packs and frames by what they are."""
    found: dict[str, int] = {}
    for name in sorted(path.glob("packs/*.pack")):
        descriptor = os.open(name, os.O_RDONLY)
        header = packs.read_header(descriptor)
        keys = [
            f"role {header.role} flags {header.flags}",
            f"role {header.role} index {name.with_suffix('.idx').exists()}",
        ]
        for scanned in packs.scan_frames(descriptor, packs.HEADER_BYTES, name.stat().st_size):
            head = scanned.head
            keys.append(f"frame {head.type} codec {head.codec} flags {head.flags}")
            if head.type == SOLID:
                rows = scanned.frame[HEADER.size : head.payload_start]
                keys += ["gap" for kind, _, _ in ROW.iter_unpack(rows) if kind == GAP]
        os.close(descriptor)
        for key in keys:
            found[key] = found.get(key, 0) + 1
    return found


def describe(store: Store) -> dict[str, Any]:
    """Return everything that a store says, as JSON can hold it: pointers, every state, and every object."""
    pointers = read_pointers(store.db)
    reader = CommitReader(store.objects)
    starts = {row.commit: None for row in pointers.layers} | {target: None for _, target in pointers.refs}
    states = {}
    published: list[Any] = []
    for commit, about in walk_commits(reader, starts):
        rows = []
        for path, entry in walk(store.objects, reader.root(commit)):
            content = hashlib.sha256()
            if entry.kind is EntryKind.FILE and entry.size:
                for length, data in iter_pieces(store.objects, entry.ref, entry.size):
                    content.update(bytes(length) if data is None else data)
            listed = [path.decode("latin-1"), *map(int, entry[:6]), entry.ref.hex(), content.hexdigest()]
            attributes = [[key.decode(), value.decode("latin-1")] for key, value in entry.xattrs]
            rows.append([*listed, attributes, entry.link_group])
        listing = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
        states[commit.hex()] = {"message": about.message, "time": about.time_ns, "listing": listing}
        if commit == pointers.layers[-1].commit:
            published = rows
    return {
        "refs": {name: target.hex() for name, target in pointers.refs},
        "layers": [[row.number, row.layer.hex(), row.commit.hex()] for row in pointers.layers],
        "reflog": [
            [row.name, row.sequence, row.new.hex() if row.new else "", row.why] for row in pointers.reflog
        ],
        "workspaces": [[row[0], row[1].hex()] for row in pointers.workspaces],
        "states": states,
        "published": published,
    }


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "store1"
        make(path)
        with tarfile.open(target / "store1.tar.xz", "w:xz") as archive:
            archive.add(path, "store1")
        frames = frame_kinds(path)
        shutil.copytree(path, Path(scratch) / "opened")
        with Store.open(os.fsencode(Path(scratch) / "opened"), clock=Clock()) as store:
            document = {"frames": frames, **describe(store)}
    (target / "store1.json").write_text(
        json.dumps(document, indent=0, sort_keys=True) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()

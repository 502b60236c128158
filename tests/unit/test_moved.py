"""Moved files: a file that was renamed and edited takes what was edited, and looking for it never costs much."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from storekit import assert_clean, make_store, open_store

from layerfs.capture import moved as moved_files
from layerfs.capture.capture import capture_directory
from layerfs.capture.moved import LOOKS, Moved
from layerfs.ids import ObjectId
from layerfs.objects.commits import Commit, put_commit
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import put_root, walk
from layerfs.objects.kinds import Kind
from layerfs.objects.memory import MemoryObjects
from layerfs.objects.moves import RefSet
from layerfs.objects.scratch import ScratchObjects
from layerfs.store.store import Store


def text(seed: int, size: int = 20_000) -> bytes:
    """Return text that does not compress by much."""
    return random.Random(seed).randbytes(size // 2).hex().encode()


def edited(content: bytes) -> bytes:
    return content[:1000] + b"an edit" + content[1000:]


def write(top: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def capture(store: Store, top: Path, base: Entry | None = None) -> tuple[Entry, int]:
    """Commit a directory; return its entry and the bytes that the commit took."""
    before = store.db.state().open_length
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with store.batch() as batch:
            root = capture_directory(fd, batch, base=base).root
            commit = put_commit(batch, Commit(put_root(batch, root), (), 0, 0, "t", "m"))
            with store.lane() as lane:
                old = lane.refs.head("work")
                lane.apply(batch, [RefSet("refs/heads/work", old, commit, "commit")], "t")
    finally:
        os.close(fd)
    return root, store.db.state().open_length - before


def contents(store: Store, root: Entry) -> dict[bytes, bytes]:
    return {
        path: store.objects.read(ObjectId(entry.ref), Kind.CHUNK)
        for path, entry in walk(store.objects, root)
        if entry.size
    }


def on_disk(top: Path) -> dict[bytes, bytes]:
    return {
        os.fsencode(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a/list.py", "z/list.py"),
        ("z/list.py", "a/list.py"),
        ("a/list.py", "a/tuple.py"),
        ("z/deep/er/list.py", "list.py"),
        ("list.py", "z/deep/er/tuple.py"),
    ],
)
def test_a_file_that_was_renamed_and_edited_takes_what_was_edited(
    tmp_path: Path, old: str, new: str
) -> None:
    top, content = tmp_path / "top", text(1)
    write(top, {old: content, "stays": b"as it is", "other/file.py": text(2)})
    with make_store(tmp_path / "s") as store:
        root, _ = capture(store, top)
        (top / old).unlink()
        write(top, {new: edited(content)})
        root, taken = capture(store, top, root)
        assert taken < 2000
        assert contents(store, root) == on_disk(top)
    with open_store(tmp_path / "s") as store:
        assert contents(store, root) == on_disk(top)
        assert_clean(store)


def test_a_directory_that_was_renamed_with_edits_in_it(tmp_path: Path) -> None:
    top = tmp_path / "top"
    write(top, {f"old/{number % 5}/file{number}.c": text(number) for number in range(40)})
    with make_store(tmp_path / "s") as store:
        root, _ = capture(store, top)
        (top / "old").rename(top / "new")
        for number in range(0, 40, 4):
            path = top / f"new/{number % 5}/file{number}.c"
            path.write_bytes(edited(path.read_bytes()))
        root, taken = capture(store, top, root)
        assert taken < 12_000
        assert contents(store, root) == on_disk(top)
        assert_clean(store)


def test_the_state_is_the_same_wherever_it_is_kept(tmp_path: Path) -> None:
    """What waits is a matter of the store: ids are not."""
    top, memory = tmp_path / "top", MemoryObjects()
    write(top, {f"a/{number}.txt": text(number, 3000) for number in range(30)})

    def in_memory(base: Entry | None) -> Entry:
        fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return capture_directory(fd, memory, base=base).root
        finally:
            os.close(fd)

    with make_store(tmp_path / "s") as store:
        kept, other = capture(store, top)[0], in_memory(None)
        for number in range(0, 30, 3):
            (top / f"a/{number}.txt").rename(top / f"{number}.txt")
            write(top, {f"{number}.txt": edited(text(number, 3000)), f"new{number}": text(-number, 500)})
        assert capture(store, top, kept)[0] == in_memory(other)


class Counted:
    """A store in which what moved is looked for, that counts what is read."""

    def __init__(self, objects: MemoryObjects) -> None:
        self.objects = objects
        self.likes: dict[ObjectId, ObjectId] = {}

    def contains(self, oid: ObjectId) -> bool:
        return oid in self.objects.objects

    def read(self, oid: ObjectId, kind: Kind) -> bytes:
        return self.objects.read(oid, kind)

    def put(
        self, kind: Kind, payload: bytes, oid: ObjectId | None = None, *, like: ObjectId | None = None
    ) -> ObjectId:
        found = self.objects.put(kind, payload)
        if like is not None:
            self.likes[found] = like
        return found


def file_of(objects: MemoryObjects, content: bytes) -> Entry:
    return Entry(EntryKind.FILE, 0o644, 0, 0, 0, len(content), objects.put(Kind.CHUNK, content))


def test_where_nothing_is_like_what_went_few_files_are_read() -> None:
    objects = MemoryObjects()
    store = Counted(objects)
    moved = Moved(store)
    for number in range(500):
        moved.gone(b"old/%d/index.ts" % number, file_of(objects, text(number, 2000)))
    for number in range(500):
        moved.put(b"new/%d/index.ts" % number, text(1000 + number, 2000), None)
    before = objects.puts
    assert before == 500
    moved.settle()
    assert objects.puts == 1000
    assert objects.reads == LOOKS
    assert not store.likes


def test_many_files_of_one_name_are_told_apart_by_what_is_above_them() -> None:
    objects = MemoryObjects()
    store = Counted(objects)
    moved = Moved(store)
    found = {}
    for number in range(300):
        entry = file_of(objects, text(number, 1000))
        moved.gone(b"src/part%d/index.ts" % number, entry)
        oid = moved.put(b"lib/part%d/index.ts" % number, edited(text(number, 1000)), None)
        found[oid] = entry.ref
    moved.settle()
    assert store.likes == found


def test_what_waits_is_bounded() -> None:
    objects = MemoryObjects()
    moved = Moved(Counted(objects))
    for number in range(200):
        moved.put(b"%d" % number, random.Random(number).randbytes(100_000), None)
        assert (number + 1 - objects.puts) * 100_000 <= moved_files.WAITING_BYTES
    moved.settle()
    assert objects.puts == 200


def test_a_hundred_thousand_names_that_are_gone_cost_little() -> None:
    objects = MemoryObjects()
    moved = Moved(Counted(objects))
    entry = file_of(objects, text(1, 2000))
    started = time.process_time()
    for number in range(100_000):
        moved.gone(b"node_modules/%d/package.json" % number, entry)
    for number in range(4000):
        moved.put(b"vendor/%d/package.json" % number, b"%d" % number + text(2, 600), None)
    moved.settle()
    assert time.process_time() - started < 5
    assert objects.puts == 4001


def test_a_look_that_is_not_kept_reads_nothing_old() -> None:
    class Unread(MemoryObjects):
        def read(self, oid: ObjectId, kind: Kind) -> bytes:
            raise AssertionError("read")

    objects = Unread()
    moved = Moved(ScratchObjects(objects))
    moved.gone(b"a/x", file_of(objects, text(1)))
    moved.put(b"b/x", edited(text(1)), None)
    moved.settle()


def test_an_old_version_that_is_damaged_does_not_stop_a_capture(tmp_path: Path) -> None:
    top, content = tmp_path / "top", text(1)
    write(top, {"a/x": content, "b/y": b"y"})
    with make_store(tmp_path / "s") as store:
        root, _ = capture(store, top)
    pack = tmp_path / "s" / "packs" / "00000001.pack"
    damaged = bytearray(pack.read_bytes())
    at = damaged.index(b"LFr1") + 400
    damaged[at] ^= 0x55
    pack.write_bytes(damaged)
    (top / "a/x").rename(top / "b/x")
    write(top, {"b/x": edited(content)})
    with open_store(tmp_path / "s") as store:
        new, _ = capture(store, top, root)
        refs = {path: entry for path, entry in walk(store.objects, new) if entry.size}
        assert store.objects.read(ObjectId(refs[b"b/x"].ref), Kind.CHUNK) == edited(content)


def test_a_file_that_takes_the_place_of_a_directory(tmp_path: Path) -> None:
    top = tmp_path / "top"
    write(top, {"a/x.py": text(1), "b": b"b"})
    with make_store(tmp_path / "s") as store:
        root, _ = capture(store, top)
        (top / "a/x.py").rename(top / "x.py")
        (top / "a").rmdir()
        (top / "b").unlink()
        write(top, {"a": edited(text(1)), "b/x.py": edited(text(1)) + b"!"})
        root, _ = capture(store, top, root)
        assert contents(store, root) == on_disk(top)
        assert_clean(store)


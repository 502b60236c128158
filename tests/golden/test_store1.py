"""The golden store of physical format 1, made when the format became final: it opens, and everything in it is right."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from golden.store1_make import Clock, describe, frame_kinds
from storekit import assert_clean, files_of, write_file

from layerfs.checkout.checkout import create_into
from layerfs.history.history import CommitReader
from layerfs.objects import frames, packs
from layerfs.objects.content import iter_pieces
from layerfs.objects.entry import EntryKind
from layerfs.objects.environment import walk
from layerfs.objects.kinds import object_id
from layerfs.store.pointers import Retention
from layerfs.store.store import Store
from layerfs.upkeep.collect import CollectOptions, collect
from layerfs.upkeep.repack import RepackOptions, repack
from layerfs.upkeep.repair import repair_store

HERE = Path(__file__).resolve().parent
EXPECTED: dict[str, Any] = json.loads((HERE / "store1.json").read_text(encoding="utf-8"))
SAID = {key: value for key, value in EXPECTED.items() if key != "frames"}


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """Return a copy of the store."""
    with tarfile.open(HERE / "store1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="fully_trusted")
    if os.geteuid() == 0:
        for each in [tmp_path / "store1", *(tmp_path / "store1").rglob("*")]:
            os.chown(each, 0, 0)
    return tmp_path / "store1"


def opened(path: Path) -> Store:
    return Store.open(os.fsencode(path), clock=Clock())


def test_it_holds_what_a_store_can_hold(golden: Path) -> None:
    """Frames of every type and codec, gaps, sealed and open packs of both roles, a restart, and a tail to be replayed."""
    kinds = frame_kinds(golden)
    assert kinds == EXPECTED["frames"]
    wanted = [
        "frame 1 codec 0 flags 0",
        "frame 1 codec 1 flags 0",
        "frame 2 codec 1 flags 0",
        "frame 3 codec 0 flags 1",
    ]
    wanted += [f"frame 3 codec 1 flags {kind}" for kind in range(1, 7)]
    wanted += ["gap", "role 1 flags 1", "role 1 index True", "role 1 index False", "role 2 index True"]
    assert set(wanted) <= kinds.keys()
    with opened(golden) as store:
        assert store.db.state().sequence == EXPECTED["reflog"][-1][1]


def test_everything_it_says_is_what_it_said(golden: Path) -> None:
    with opened(golden) as store:
        assert json.loads(json.dumps(describe(store))) == SAID
        assert_clean(store, read_data=True)
        count = 0
        for number in [*store.objects.pack_numbers(), store.db.state().open_pack]:
            descriptor = store.objects.pack_descriptor(number)
            for scanned in packs.scan_frames(descriptor, packs.HEADER_BYTES, os.fstat(descriptor).st_size):
                for row in frames.read_objects(scanned.frame, scanned.head):
                    if row.kind != frames.Kind.MOVE:
                        kind, payload = store.objects.get(row.oid)
                        assert (kind, object_id(kind, payload)) == (row.kind, row.oid)
                        count += 1
        assert count > 200


def test_it_is_checked_out(golden: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    with opened(golden) as store:
        root = CommitReader(store.objects).root(store.refs.main_layer().commit)  # type: ignore[union-attr]
        directory = os.open(target, os.O_RDONLY)
        create_into(store.objects, directory, root, owners=False)
        os.close(directory)
        seen = 0
        for path, entry in walk(store.objects, root):
            found = os.fsencode(target) + b"/" + path
            if entry.kind in (EntryKind.CHARDEV, EntryKind.BLOCKDEV) and os.geteuid() != 0:
                continue
            status = os.lstat(found)
            if entry.kind is EntryKind.SYMLINK:
                assert os.readlink(found) == entry.ref
                continue
            assert stat.S_IMODE(status.st_mode) == entry.mode and status.st_mtime_ns == entry.mtime_ns
            if entry.kind is EntryKind.FILE:
                with open(found, "rb") as stream:
                    pieces = iter_pieces(store.objects, entry.ref, entry.size) if entry.size else ()
                    for length, data in pieces:
                        assert stream.read(length) == (bytes(length) if data is None else data)
                    assert not stream.read(1)
                seen += 1
        assert seen > 100
        assert os.stat(target / "odd/linked").st_ino == os.stat(target / "odd/linked too").st_ino


def test_work_goes_on_in_it(golden: Path) -> None:
    with opened(golden) as store:
        before = files_of(store, "work")
        write_file(store, "work", b"src/lib/1.py", b"new")
    with opened(golden) as store:
        assert files_of(store, "work") == {**before, b"src/lib/1.py": b"new"}
        repack(store, RepackOptions(everything=True))
        assert_clean(store)
        collect(store, CollectOptions(Retention(Clock().now, 90, 14)), "t")
        assert_clean(store)
        assert files_of(store, "work") == {**before, b"src/lib/1.py": b"new"}


def test_its_packs_are_enough(golden: Path) -> None:
    """Without database and indexes nothing is lost."""
    for each in [*golden.glob("meta.db*"), *golden.glob("packs/*.idx")]:
        each.unlink()
    repair_store(os.fsencode(golden), Clock())
    with opened(golden) as store:
        assert json.loads(json.dumps(describe(store))) == SAID
        assert_clean(store)


def test_its_indexes_come_out_the_same_when_they_are_made_anew(golden: Path) -> None:
    before = {each.name: each.read_bytes() for each in golden.glob("packs/*.idx")}
    assert len(before) >= 2
    for each in golden.glob("packs/*.idx"):
        each.unlink()
    repair_store(os.fsencode(golden), Clock())
    assert {name: (golden / "packs" / name).read_bytes() for name in before} == before


def test_the_commands_read_it(golden: Path) -> None:
    def layerfs(*words: str) -> str:
        command = [sys.executable, "-m", "layerfs", *words, "--store", os.fspath(golden)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout

    assert "capture" in layerfs("log")
    assert layerfs("show", "main:docs/7.txt").startswith("word")
    assert layerfs("fsck")

"""Damage: any byte that is flipped, cut off or gone is found and named, and what can be repaired is repaired."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from storekit import assert_clean, copy_store, files_of, make_store, open_store, write_file

from layerfs.errors import LayerfsError
from layerfs.exchange.copying import clone
from layerfs.ids import CommitId
from layerfs.upkeep.repair import repair_store
from layerfs.upkeep.verify import verify_store

SEED = 11
BRANCHES = ("a", "b")


class Built(NamedTuple):
    """A store that was built once, a clone of it, and what they hold."""

    place: Path
    clone: Path
    files: dict[str, dict[bytes, bytes]]
    heads: dict[str, CommitId]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    base = tmp_path_factory.mktemp("damage")
    place = base / "s"
    with make_store(place, seal_bytes=60_000) as store:
        rng = random.Random(SEED)
        for number in range(5):
            write_file(store, "a", b"dir/f%d" % number, b"text %d\n" % number * 300)
            write_file(store, "b", b"x", rng.randbytes(9_000) + b"tail %d" % number * 900)
        write_file(store, "b", b"big", rng.randbytes(200_000))
        store.seal_open_pack()
        write_file(store, "a", b"last", b"in the open pack" * 20)
        files = {name: files_of(store, name) for name in BRANCHES}
        heads = {name: store.refs.need_head(name) for name in BRANCHES}
    clone(os.fsencode(place), os.fsencode(base / "c"), time.time_ns)
    return Built(place, base / "c", files, heads)


def damaged_files(place: Path) -> Iterator[str]:
    yield from sorted(name for name in os.listdir(place / "packs"))


def check_only_our_errors(place: Path, built: Built) -> bool:
    """Read everything: the right bytes or one of our errors; return whether all was right."""
    try:
        with open_store(place) as store:
            right = True
            for name in BRANCHES:
                try:
                    found = files_of(store, name)
                    assert found in (built.files[name], {}), "wrong bytes were returned"
                    right = right and bool(found)
                except LayerfsError:
                    right = False
            return right
    except LayerfsError:
        return False


def repaired(place: Path, built: Built) -> None:
    """Repair alone, then with the clone: nothing wrong stays, and what was there before is there."""
    repair_store(os.fsencode(place), time.time_ns)
    with open_store(place) as store:
        report = verify_store(store, True)
        for problem in report.problems:
            assert problem.oid is not None and problem.kind is not None, f"not a lost object: {problem}"
    repair_store(os.fsencode(place), time.time_ns, os.fsencode(built.clone))
    with open_store(place) as store:
        assert_clean(store)
        for name in BRANCHES:
            assert store.refs.head(name) == built.heads[name]
            assert files_of(store, name) == built.files[name]
        write_file(store, "a", b"after", b"the repair")
        store.rebuild_database()
        assert_clean(store)


@pytest.mark.parametrize("way", ["flip", "cut", "zero", "gone"])
def test_damaged_packs_and_indexes(built: Built, tmp_path: Path, way: str, request: pytest.FixtureRequest) -> None:
    rng = random.Random(f"{SEED} {way}")
    full = request.config.getoption("--full")
    for number, name in enumerate(damaged_files(built.place)):
        for point in range(1 if way == "gone" else 12 if full else 2):
            place = tmp_path / f"{number}-{point}"
            copy_store(built.place, place)
            path = place / "packs" / name
            data = bytearray(path.read_bytes())
            at = rng.randrange(len(data))
            print(way, name, at)
            if way == "flip":
                data[at] ^= 1 << rng.randrange(8)
            elif way == "cut":
                del data[at:]
            elif way == "zero":
                length = min(100, len(data) - at)
                if data[at : at + length] == bytes(length):
                    continue
                data[at : at + length] = bytes(length)
            path.write_bytes(data)
            if way == "gone":
                path.unlink()
            check_only_our_errors(place, built)
            try:
                with open_store(place) as store:
                    assert not verify_store(store, True).clean, "damage was not found"
            except LayerfsError:
                pass
            repaired(place, built)
            shutil.rmtree(place)


@pytest.mark.parametrize("way", ["gone", "empty", "garbage", "flip"])
def test_damaged_databases(built: Built, tmp_path: Path, way: str, request: pytest.FixtureRequest) -> None:
    rng = random.Random(f"{SEED} {way}")
    for point in range(1 if way != "flip" else 40 if request.config.getoption("--full") else 6):
        place = tmp_path / str(point)
        copy_store(built.place, place)
        path = place / "meta.db"
        data = bytearray(path.read_bytes())
        if way == "gone":
            path.unlink()
        elif way == "empty":
            path.write_bytes(b"")
        elif way == "garbage":
            path.write_bytes(rng.randbytes(len(data)))
        else:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        check_only_our_errors(place, built)
        repaired(place, built)


def flipped_databases(built: Built, tmp_path: Path, full: bool) -> Iterator[tuple[Path, str]]:
    """Yield a store for each flipped bit: all of the row that says how far the log is applied, and some of the others."""
    copy_store(built.place, tmp_path / "whole")
    path = tmp_path / "whole" / "meta.db"
    with sqlite3.connect(path) as database:
        database.execute("pragma wal_checkpoint(truncate)")
        ((store_id,),) = database.execute("select store_id from state").fetchall()
    database.close()
    data = path.read_bytes()
    at = data.index(store_id) + len(store_id)  # the numbers of the row follow
    rng = random.Random(f"{SEED} bits")
    in_use = [place for place in range(4096, len(data)) if data[place]]
    bits = [(at + place, bit) for place in range(8) for bit in range(8)]
    bits += [(rng.choice(in_use), rng.randrange(8)) for _ in range(2000 if full else 150)]
    for number, (place, bit) in enumerate(bits):
        bad = bytearray(data)
        bad[place] ^= 1 << bit
        store = tmp_path / str(number)
        copy_store(tmp_path / "whole", store)
        (store / "meta.db").write_bytes(bad)
        yield store, f"byte {place}, bit {bit}"
        shutil.rmtree(store)


def rows_of(place: Path) -> list[list[tuple[object, ...]]]:
    """Return all that the tables hold that the log speaks of: a bit may flip where nothing lies any more."""
    with sqlite3.connect(place / "meta.db") as database:
        tables = ("state", "packs", "open_objects", "refs", "layers", "reflog", "workspaces")
        rows = [database.execute(f"select * from {table}").fetchall() for table in tables]
    database.close()
    return rows


def test_any_flipped_bit_of_the_database_is_found_and_costs_no_byte_of_the_log(
    built: Built, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """SQLite does not notice most of them. Nobody may take what such a database says for a reason to cut the log."""
    for number, (place, what) in enumerate(flipped_databases(built, tmp_path, request.config.getoption("--full"))):
        before = {path.name: path.read_bytes() for path in (place / "packs").iterdir()}
        try:
            with open_store(place) as store:
                found = not verify_store(store, True).clean
        except LayerfsError:
            found = True
        assert {path.name: path.read_bytes() for path in (place / "packs").iterdir()} == before, what
        assert found or rows_of(place) == rows_of(tmp_path / "whole"), what
        if number % 4 == 0:
            repaired(place, built)


def test_names_lost_in_both_are_taken_from_the_other_store(built: Built, tmp_path: Path) -> None:
    """Log and database are gone, and a first repair could only make an empty store of what was left."""
    place = tmp_path / "s"
    copy_store(built.place, place)
    for path in (place / "packs").iterdir():
        path.unlink()
    (place / "meta.db").unlink()
    repair_store(os.fsencode(place), time.time_ns)
    with open_store(place) as store:
        assert store.refs.all() == []
    done = repair_store(os.fsencode(place), time.time_ns, os.fsencode(built.clone))
    assert any("no name was left" in line for line in done), done
    with open_store(place) as store:
        assert {name: store.refs.head(name) for name in BRANCHES} == built.heads
        assert {name: files_of(store, name) for name in BRANCHES} == built.files
        assert_clean(store)


def test_log_and_database_lost_together(built: Built, tmp_path: Path) -> None:
    """Every whole move that is left is applied, and what they name is there as far as it is whole."""
    place = tmp_path / "s"
    copy_store(built.place, place)
    (place / "meta.db").unlink()
    first = sorted(path for path in (place / "packs").iterdir() if path.suffix == ".pack")[0]
    data = bytearray(first.read_bytes())
    data[20] ^= 1
    data[300] ^= 1
    first.write_bytes(data)
    done = repair_store(os.fsencode(place), time.time_ns, os.fsencode(built.clone))
    assert any("moves that were found" in line for line in done)
    with open_store(place) as store:
        assert store.refs.head("a") == built.heads["a"]
        assert files_of(store, "a") == built.files["a"]
        assert_clean(store)
    assert first.name in {path.name for path in (place / "quarantine").iterdir()}
    assert not first.exists()


def test_a_lost_object_is_named_by_commit_and_path(built: Built, tmp_path: Path) -> None:
    place = tmp_path / "s"
    copy_store(built.place, place)
    with open_store(place) as store:
        from layerfs.ids import ObjectId
        from layerfs.objects.commits import read_commit
        from layerfs.objects.environment import lookup_path, read_root

        root = read_root(store.objects, read_commit(store.objects, built.heads["a"]).root)
        entry = lookup_path(store.objects, root, b"dir/f2")
        assert entry is not None
        located = store.objects.locate(ObjectId(entry.ref))
        path = place / "packs" / f"{located.pack:08d}.pack"
    data = bytearray(path.read_bytes())
    data[located.place.frame + 30] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        with open_store(place) as store:
            problems = [problem for problem in verify_store(store, True).problems if problem.oid == entry.ref]
            assert problems and problems[0].path == b"dir/f2" and problems[0].commit is not None
        repair_store(os.fsencode(place), time.time_ns)

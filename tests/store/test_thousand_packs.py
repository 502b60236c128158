"""Stores of many packs: what lies in any of them is found, and what lies in none is not, however often it is asked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from storekit import assert_clean, make_store, open_store

from layerfs.ids import ObjectId
from layerfs.objects import packfinder, packs
from layerfs.objects.frames import encode_frame
from layerfs.objects.kinds import Kind, object_id
from layerfs.objects.moves import PackAdd, PackDrop
from layerfs.store.packlist import count_objects
from layerfs.store.store import Store


def text(pack: int, number: int) -> bytes:
    return b"object %d of pack %d" % (number, pack)


def ids_of(pack: int, count: int) -> list[ObjectId]:
    return [object_id(Kind.CHUNK, text(pack, number)) for number in range(count)]


def add_pack(store: Store, pack: int, count: int) -> PackAdd:
    made = store.make_bulk()
    rows = [(Kind.CHUNK, oid, text(pack, number)) for number, oid in enumerate(ids_of(pack, count))]
    made.append_frame(encode_frame(rows, None))
    number = made.seal()
    made.release()
    return PackAdd(packs.pack_name(number))


@pytest.mark.parametrize("large", [20, 10_000], ids=["small", "one-large"])
def test_everything_is_found_in_any_pack(tmp_path: Path, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packfinder, "LARGE_PACK_OBJECTS", 100)
    counts = [large, *[7] * 60]
    with make_store(tmp_path / "s") as store, store.lane() as lane:
        lane.apply(None, [add_pack(store, pack, count) for pack, count in enumerate(counts)])
    with open_store(tmp_path / "s") as store:
        for _ in range(2):
            for pack, count in enumerate(counts):
                for number, oid in enumerate(ids_of(pack, min(count, 50))):
                    assert store.objects.known(oid)
                    assert store.objects.read(oid, Kind.CHUNK) == text(pack, number)
        for number in range(2_000):
            absent = object_id(Kind.CHUNK, b"absent %d" % number)
            assert not store.objects.known(absent) and not store.objects.contains(absent)
        assert_clean(store)


def test_packs_that_come_and_go_after_the_table_is_made(tmp_path: Path) -> None:
    with make_store(tmp_path / "s") as store:
        with store.lane() as lane:
            added = [add_pack(store, pack, 5) for pack in range(30)]
            lane.apply(None, added)
        for pack in range(30):
            assert all(map(store.objects.contains, ids_of(pack, 5)))
        assert not any(map(store.objects.contains, ids_of(30, 5)))
        with open_store(tmp_path / "s") as other, other.lane() as lane:
            lane.apply(None, [add_pack(other, 30, 5), PackDrop(added[3].name)])
        assert all(map(store.objects.contains, ids_of(30, 5)))
        assert not any(map(store.objects.contains, ids_of(3, 5)))


def test_counters_are_what_counting_gives(tmp_path: Path) -> None:
    with make_store(tmp_path / "s") as store:
        with store.lane() as lane:
            lane.apply(None, [add_pack(store, pack, 9) for pack in range(3)])
        with store.batch() as batch, store.lane() as lane:
            batch.put(Kind.CHUNK, b"in the open pack")
            batch.put(Kind.TREE, b"\0")
            lane.apply(batch, [])
        counted: Counter[Kind] = Counter()
        sizes: Counter[Kind] = Counter()
        for number in store.objects.pack_numbers():
            for _, place in store.objects.index(number).rows():
                counted[Kind(place.kind)] += 1
                sizes[Kind(place.kind)] += place.length
        counted.update({Kind.CHUNK: 1, Kind.TREE: 1})
        sizes.update({Kind.CHUNK: 16, Kind.TREE: 1})
        for row in count_objects(store).kinds:
            assert (row.objects, row.size) == (counted[row.kind], sizes[row.kind])

"""Delta frames: what goes in comes out through any chain, chains stay short, and hostile ones are refused."""

from __future__ import annotations

import os
import random
import time
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from storekit import assert_clean, make_store, open_store
from xxhash import xxh3_64_intdigest

from layerfs.errors import LayerfsError, StoreDamaged
from layerfs.ids import ObjectId
from layerfs.objects import frames, packs
from layerfs.objects.database import MAX_CHAIN, MAX_CHAIN_BYTES, ObjectDatabase
from layerfs.objects.frames import DeltaRow
from layerfs.objects.kinds import Kind, object_id
from layerfs.objects.moves import PackAdd
from layerfs.store.store import Store


def chunk(payload: bytes) -> ObjectId:
    return object_id(Kind.CHUNK, payload)


def put_versions(store: Store, versions: list[bytes]) -> list[ObjectId]:
    """Commit versions one after the other, each said to be like the one before."""
    like: ObjectId | None = None
    found = []
    for payload in versions:
        with store.batch() as batch:
            like = batch.put(Kind.CHUNK, payload, like=like)
            found.append(like)
            with store.lane() as lane:
                lane.apply(batch, ())
    return found


def register(store: Store, *written: bytes) -> None:
    """Add frames as a pack of the store, whatever they say."""
    pack = store.make_bulk()
    for frame in written:
        pack.append_frame(frame)
    number = pack.seal()
    with store.lane() as lane:
        lane.apply(None, [PackAdd(packs.pack_name(number))])
    pack.release()


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300)), min_size=1, max_size=6))
def test_round_trip(pairs: list[tuple[bytes, bytes]]) -> None:
    rows = []
    for payload, prefix in pairs:
        stream = frames.encode_stream(payload, prefix or None, 6)
        named = chunk(prefix)[:16] if prefix else None
        rows.append(DeltaRow(Kind.CHUNK, chunk(payload), len(payload), named, stream))
    frame = frames.encode_delta_frame(rows)
    head = frames.check_frame(frame)
    assert head.total == len(frame)
    data = frames.decode_payload(frame, head)
    found = frames.read_deltas(data, head)
    assert [
        frames.read_stream(data, row, pair[1] or None) for row, pair in zip(found, pairs, strict=True)
    ] == [payload for payload, _ in pairs]
    assert [row[:2] for row in frames.read_objects(frame, head)] == [(row.kind, row.oid) for row in rows]


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=8), st.data())
def test_a_changed_delta_or_dense_frame_with_a_right_checksum(
    payloads: list[bytes], data: st.DataObject
) -> None:
    rows = [
        DeltaRow(Kind.TREE, object_id(Kind.TREE, p), len(p), b"p" * 16, frames.encode_stream(p, b"p", 3))
        for p in payloads
    ]
    dense = frames.encode_dense_frame(Kind.TREE, payloads, zstandard.ZstdCompressor())
    for built in (frames.encode_delta_frame(rows), dense):
        frame = bytearray(built)
        for _ in range(data.draw(st.integers(1, 4))):
            frame[data.draw(st.integers(4, len(frame) - 9))] = data.draw(st.integers(0, 255))
        body = bytes(frame[:-8])
        whole = body + frames.CHECKSUM.pack(xxh3_64_intdigest(body))
        try:
            head = frames.check_frame(whole)
            frames.read_objects(whole, head)
            if head.type == frames.DELTA:
                payload = frames.decode_payload(whole, head)
                for row in frames.read_deltas(payload, head):
                    frames.read_stream(payload, row, b"p")
        except StoreDamaged:
            continue


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=40), st.booleans())
def test_dense_round_trip(payloads: list[bytes], compressed: bool) -> None:
    compressor = zstandard.ZstdCompressor() if compressed else None
    frame = frames.encode_dense_frame(Kind.EXTENT, payloads, compressor)
    head = frames.check_frame(frame)
    payload, start, _ = frames.read_dense(frames.decode_payload(frame, head), head)
    found = frames.read_objects(frame, head)
    assert [payload[start + row.start : start + row.start + row.length] for row in found] == payloads
    assert [row.oid for row in found] == [object_id(Kind.EXTENT, each) for each in payloads]


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.lists(st.integers(0, 30))), min_size=1, max_size=30),
    st.data(),
)
def test_objects_that_name_earlier_ones(parts: list[tuple[bytes, list[int]]], data: st.DataObject) -> None:
    """Ids of earlier objects are left out and come back; a damaged frame gives our error or objects with other ids."""
    objects: list[tuple[ObjectId, bytes]] = []
    named: list[frames.Named] = []
    for number, (text, targets) in enumerate(parts):
        payload = text
        for target in targets[: 3 if number else 0]:
            named.append(frames.Named(number, len(payload), target % number))
            payload += objects[target % number][0] + text[:3]
        objects.append((object_id(Kind.TREE, payload), payload))
    payloads = [payload for _, payload in objects]
    frame = bytearray(frames.encode_dense_frame(Kind.TREE, payloads, None, named))
    head = frames.check_frame(frame)
    assert head.raw_length == 4 + sum(map(len, payloads)) + 4 * len(payloads) + (8 - 32) * len(named)
    found = frames.read_objects(frame, head)
    dense = frames.read_dense(frames.decode_payload(frame, head), head)
    assert [row.oid for row in found] == [oid for oid, _ in objects]
    assert dense.data[dense.start :] == b"".join(payloads)
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(frames.HEADER.size, len(frame) - 9))] = data.draw(st.integers(0, 255))
    try:
        changed = frames.read_objects(frame, head)
    except StoreDamaged:
        return
    assert sum(row.length for row in changed) == sum(map(len, payloads))


def test_versions_cost_what_changed_and_chains_stay_short(tmp_path: Path) -> None:
    generator = random.Random(3)
    text = bytearray(generator.randbytes(20_000))
    versions = []
    for number in range(3 * MAX_CHAIN):
        text[number * 100 : number * 100 + 10] = b"%10d" % number
        versions.append(bytes(text))
    with make_store(tmp_path / "s") as store:
        before = store.db.state().open_length
        found = put_versions(store, versions)
        assert store.db.state().open_length - before < 20_000 * 3 + len(versions) * 800
        assert max(len(store.objects.prefixes(oid)) for oid in found) == MAX_CHAIN
    for at in (len(found) - 1, 0, MAX_CHAIN, MAX_CHAIN + 1):
        with open_store(tmp_path / "s") as store:
            assert store.objects.read(found[at], Kind.CHUNK) == versions[at]
    with open_store(tmp_path / "s") as store:
        read = {oid: payload for oid, _, payload in store.objects.read_many(found)}
        assert read == dict(zip(found, versions, strict=True))
        assert_clean(store)
        store.seal_open_pack()
        assert_clean(store)
        assert store.objects.resolve_prefix(found[7].hex()[:20]) == [found[7]]


def test_lines_of_work_that_take_turns_are_stored_as_what_changed_in_each(tmp_path: Path) -> None:
    """Every version is said to be like the one before, which is of the other line; the closer one is found."""
    lines = [bytearray(random.Random(line).randbytes(6000)) for line in range(2)]
    both = random.Random(9).randbytes(6000)
    versions = []
    for number in range(20):
        lines[number % 2][number * 10 : number * 10 + 9] = b"%9d" % number
        versions.append(both + bytes(lines[number % 2]))
    with make_store(tmp_path / "s") as store:
        found = put_versions(store, versions[:2])
        before = store.db.state().open_length
        like = found[-1]
        for payload in versions[2:]:
            with store.batch() as batch:
                like = batch.put(Kind.CHUNK, payload, like=like)
                with store.lane() as lane:
                    lane.apply(batch, ())
        taken = store.db.state().open_length - before
        assert taken < 18 * 6000 / 1.5
        assert_clean(store)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 4000), st.binary(max_size=30)), min_size=1, max_size=40
    )
)
def test_flipping_back_and_forth_never_makes_a_ring(steps: list[tuple[int, int, bytes]]) -> None:
    """Two processes that know of each other late put the same few states in any order, each like the one before."""
    import tempfile

    base = random.Random(0).randbytes(5000)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "s"
        held: dict[ObjectId, bytes] = {}
        with make_store(path) as one, open_store(path) as other:
            like: ObjectId | None = None
            for number, (variant, at, text) in enumerate(steps):
                payload = base[:at] + text * variant + base[at:]
                with (one, other)[number % 2].batch() as batch:
                    like = batch.put(Kind.CHUNK, payload, like=like)
                    held[like] = payload
                    with (one, other)[number % 2].lane() as lane:
                        lane.apply(batch, ())
        with open_store(path) as store:
            for oid, payload in held.items():
                assert store.objects.read(oid, Kind.CHUNK) == payload


def hostile_ring(length: int) -> list[DeltaRow]:
    payloads = [b"ring %d " % number * 9 for number in range(length)]
    rows = []
    for number, payload in enumerate(payloads):
        prefix = chunk(payloads[(number + 1) % length])[:16]
        rows.append(
            DeltaRow(Kind.CHUNK, chunk(payload), len(payload), prefix, frames.encode_stream(payload, b"?", 3))
        )
    return rows


@pytest.mark.parametrize("length", [1, 2, 3, MAX_CHAIN, MAX_CHAIN + 1, 1000])
def test_rings_are_refused(tmp_path: Path, length: int) -> None:
    rows = hostile_ring(length)
    with make_store(tmp_path / "s") as store:
        register(store, frames.encode_delta_frame(rows))
        started = time.process_time()
        for row in rows[:5]:
            with pytest.raises(StoreDamaged, match="too deep"):
                store.objects.read(row.oid, Kind.CHUNK)
            assert store.objects.prefix(row.oid) is None
        assert time.process_time() - started < 5


def test_a_prefix_that_is_not_there_is_damage(tmp_path: Path) -> None:
    row = DeltaRow(
        Kind.CHUNK, chunk(b"x" * 99), 99, b"absent prefix 16", frames.encode_stream(b"x" * 99, b"y", 3)
    )
    with make_store(tmp_path / "s") as store:
        register(store, frames.encode_delta_frame([row]))
        with pytest.raises(StoreDamaged, match="needs another"):
            store.objects.read(row.oid, Kind.CHUNK)


def test_chains_are_bounded_in_bytes(tmp_path: Path) -> None:
    """Each object is within its bound, together they are not."""
    sizes = [MAX_CHAIN_BYTES // 4 + number for number in range(5)]
    payloads = [bytes(size) for size in sizes]
    with make_store(tmp_path / "s") as store:
        written = []
        prefix: bytes | None = None
        for number, payload in enumerate(payloads):
            before = payloads[number - 1] if number else None
            row = DeltaRow(
                Kind.CHUNK, chunk(payload), len(payload), prefix, frames.encode_stream(payload, before, 3)
            )
            written.append(frames.encode_delta_frame([row]))
            prefix = chunk(payload)[:16]
        register(store, *written)
        with pytest.raises(StoreDamaged, match="too long"):
            store.objects.read(chunk(payloads[-1]), Kind.CHUNK)
        assert store.objects.read(chunk(payloads[1]), Kind.CHUNK) == payloads[1]


def test_a_stream_longer_than_it_says_is_refused() -> None:
    bomb = frames.encode_stream(bytes(50_000_000), None, 1)
    row = DeltaRow(Kind.CHUNK, chunk(b"?"), 1000, None, bomb)
    frame = frames.encode_delta_frame([row])
    head = frames.check_frame(frame)
    data = frames.decode_payload(frame, head)
    with pytest.raises(StoreDamaged):
        frames.read_stream(data, frames.read_deltas(data, head)[0], None)


def test_every_flipped_byte_of_a_pack_of_deltas_is_found(tmp_path: Path) -> None:
    versions = [b"version %d of something " % number * 20 for number in range(4)]
    with make_store(tmp_path / "s") as store:
        found = put_versions(store, versions)
        store.seal_open_pack()
    pack = tmp_path / "s" / "packs" / "00000001.pack"
    whole = pack.read_bytes()
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 0x41
        pack.write_bytes(damaged)
        with open_store(tmp_path / "s") as store:
            for oid, payload in zip(found, versions, strict=True):
                try:
                    assert store.objects.read(oid, Kind.CHUNK) == payload
                except LayerfsError:
                    continue
    pack.write_bytes(whole)
    assert os.path.getsize(pack) == len(whole)


@pytest.mark.parametrize("size", [1 << 40, 1 << 33, 1])
@pytest.mark.parametrize("prefix", [None, b"some prefix"])
def test_a_stream_that_declares_its_size_is_damage_and_is_not_believed(
    size: int, prefix: bytes | None
) -> None:
    """The decoder would allocate a terabyte for it."""
    stream = b"\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"
    row = frames.DeltaObject(Kind.CHUNK, ObjectId(bytes(32)), 0, 100, None, 0, len(stream))
    with pytest.raises(StoreDamaged, match="stream"):
        frames.read_stream(stream, row, prefix)


def test_an_object_without_a_stream_is_damage() -> None:
    with pytest.raises(StoreDamaged, match="stream"):
        frames.read_stream(b"", frames.DeltaObject(Kind.CHUNK, ObjectId(bytes(32)), 0, 100, None, 0, 0), None)


@pytest.mark.parametrize("deltas", [False, True])
def test_frames_of_countless_empty_objects_do_not_fill_the_memory(tmp_path: Path, deltas: bool) -> None:
    """They have no payload to speak of, and their lists take a hundred times as much as the cache may."""
    named = [[ObjectId(os.urandom(32)) for _ in range(4000)] for _ in range(12)]
    with make_store(tmp_path / "s") as store:
        for oids in named:
            if deltas:
                frame = frames.encode_delta_frame([DeltaRow(Kind.CHUNK, oid, 0, None, b"") for oid in oids])
            else:
                frame = frames.encode_frame([(Kind.CHUNK, oid, b"") for oid in oids], None)
            register(store, frame)
        directory = os.open(tmp_path / "s" / "packs", os.O_RDONLY | os.O_DIRECTORY)
        database = ObjectDatabase(store.files, directory, store.db, cache_bytes=100_000)
        database.contains(named[0][0])
        tracemalloc.start()
        try:
            for oids in named:
                with pytest.raises(StoreDamaged, match="does not verify"):
                    database.get(oids[0])
            assert tracemalloc.get_traced_memory()[0] < 4_000_000
        finally:
            tracemalloc.stop()
            database.close()
            os.close(directory)

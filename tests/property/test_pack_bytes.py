"""Hostile bytes: whatever is in a pack or an index, only our own errors come out, and memory stays bounded."""

from __future__ import annotations

import os
import tempfile

import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from layerfs.errors import StoreDamaged
from layerfs.objects import frames, packs
from layerfs.objects.batch import make_compressor
from layerfs.objects.kinds import Kind, object_id
from layerfs.objects.packindex import PREFIXES_START, IndexBuilder, PackIndex, Place, frame_places

PAYLOADS = st.lists(st.binary(max_size=200), min_size=1, max_size=8, unique=True)


def read_all(frame: bytes) -> None:
    """Decode a frame as far as it goes."""
    head = frames.check_frame(frame)
    frames.read_objects(frame, head)
    frames.read_payload(frame, head, zstandard.ZstdDecompressor())


@given(st.binary(max_size=300))
def test_any_bytes_as_a_frame(data: bytes) -> None:
    for candidate in (data, frames.MAGIC + data, frames.MAGIC + b"\1\1\0\0" + data):
        try:
            read_all(candidate)
        except StoreDamaged:
            continue


@given(PAYLOADS, st.data())
def test_a_changed_frame_with_a_right_checksum(payloads: list[bytes], data: st.DataObject) -> None:
    """An attacker can compute checksums: the structure alone must hold."""
    objects = [(Kind.CHUNK, object_id(Kind.CHUNK, payload), payload) for payload in payloads]
    frame = bytearray(frames.encode_frame(objects, make_compressor(1)))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(4, len(frame) - 9))] = data.draw(st.integers(0, 255))
    body = bytes(frame[:-8])
    try:
        read_all(body + frames.CHECKSUM.pack(xxh3_64_intdigest(body)))
    except StoreDamaged:
        return


@given(st.binary(max_size=100))
def test_any_bytes_as_a_header(data: bytes) -> None:
    for candidate in (data, packs.MAGIC + data):
        try:
            packs.decode_header(candidate)
        except StoreDamaged:
            continue


@given(st.integers(0, 2**40), st.integers(0, 2**60), st.integers(0, 2**40))
def test_header_round_trip(number: int, first: int, previous: int) -> None:
    header = packs.PackHeader(packs.LOG, b"s" * 16, number, first, previous)
    data = packs.encode_header(header)
    assert len(data) == packs.HEADER_BYTES
    assert packs.decode_header(data) == header


@given(st.dictionaries(st.binary(min_size=16, max_size=16), st.integers(0, 1000), max_size=60))
def test_index_finds_what_it_holds_and_nothing_else(rows: dict[bytes, int]) -> None:
    length = 1 << 20
    builder = IndexBuilder()
    for prefix, number in rows.items():
        builder.add(prefix, (packs.HEADER_BYTES + number, number, number, Kind.CHUNK))
    index = PackIndex(builder.encode(length), length)
    index.verify()
    assert index.count == len(rows)
    for prefix, number in rows.items():
        assert index.find(prefix) == Place(packs.HEADER_BYTES + number, number, number, Kind.CHUNK)
        assert index.find(prefix[:15] + bytes((prefix[15] ^ 1,))) is None or (
            prefix[:15] + bytes((prefix[15] ^ 1,)) in rows
        )
        assert any(place.start == number for place in index.starting_with(prefix.hex()[:7]))
    assert [prefix for prefix, _ in index.rows()] == sorted(rows)


@given(st.binary(max_size=1500), st.binary(min_size=16, max_size=16))
def test_any_bytes_as_an_index(data: bytes, prefix: bytes) -> None:
    """Also with a right magic and count, so that the inner parts are reached."""
    wide, widths = 7, bytes((20, 20, 13))
    rest = PREFIXES_START - 28
    count = max(0, len(data) - 16 - rest - 8) // (15 + wide + 8)
    numbers = (1000).to_bytes(8, "little") + count.to_bytes(8, "little") + count.to_bytes(4, "little")
    built = b"LFINDEX1" + numbers + widths + bytes((wide,)) + data[4:]
    length = PREFIXES_START + count * (15 + wide + 8) + 8
    for candidate in (data, built, built[:length].ljust(length, b"\0")):
        try:
            index = PackIndex(candidate, 1000)
            index.find(prefix)
            list(index.starting_with(prefix.hex()[:6]))
            list(index.rows())
            index.verify()
        except StoreDamaged:
            continue


@settings(max_examples=60, deadline=None)
@given(st.lists(PAYLOADS, min_size=1, max_size=4), st.data())
def test_scan_stops_at_the_first_damage_and_salvage_goes_on(
    groups: list[list[bytes]], data: st.DataObject
) -> None:
    written = []
    content = packs.encode_header(packs.PackHeader(packs.BULK, b"s" * 16))
    for group in groups:
        frame = frames.encode_frame([(Kind.CHUNK, object_id(Kind.CHUNK, p), p) for p in group], None)
        written.append((len(content), len(frame)))
        content += frame
    at = data.draw(st.integers(packs.HEADER_BYTES, len(content) - 1))
    damaged = bytearray(content)
    damaged[at] ^= data.draw(st.integers(1, 255))
    victim = next(number for number, (offset, length) in enumerate(written) if offset <= at < offset + length)
    with tempfile.TemporaryFile() as stream:
        stream.write(damaged)
        stream.flush()
        descriptor = stream.fileno()
        end = os.fstat(descriptor).st_size
        scanned = list(packs.scan_frames(descriptor, packs.HEADER_BYTES, end))
        assert [found.offset for found in scanned] == [offset for offset, _ in written[:victim]]
        behind = list(packs.find_frame(descriptor, written[victim][0] + 1, end))
        assert [found.offset for found in behind] == [offset for offset, _ in written[victim + 1 :]]
        for found in scanned + behind:
            assert frame_places(found)

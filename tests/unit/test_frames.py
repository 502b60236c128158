"""Frames: what goes in comes out, and the layout is what the module says."""

from __future__ import annotations

import os

import pytest
import zstandard

from layerfs.errors import StoreDamaged
from layerfs.objects import frames
from layerfs.objects.batch import make_compressor
from layerfs.objects.kinds import Kind, object_id


def rows(*payloads: bytes) -> list[tuple[int, object, bytes]]:
    return [(Kind.CHUNK, object_id(Kind.CHUNK, payload), payload) for payload in payloads]


@pytest.mark.parametrize(
    ("payloads", "codec"),
    [
        ((b"a" * 5000, b"b" * 5000), frames.ZSTD),
        ((os.urandom(5000),), frames.RAW),
        ((b"",), frames.RAW),
        ((b"short",), frames.RAW),
    ],
)
def test_round_trip(payloads: tuple[bytes, ...], codec: int) -> None:
    frame = frames.encode_frame(rows(*payloads), make_compressor(3))
    head = frames.check_frame(frame)
    assert head.codec == codec
    assert head.total == len(frame)
    payload = frames.read_payload(frame, head, zstandard.ZstdDecompressor())
    listed = frames.read_objects(frame, head)
    assert [payload[row.start : row.start + row.length] for row in listed] == list(payloads)
    assert [row.oid for row in listed] == [object_id(Kind.CHUNK, payload) for payload in payloads]


def test_layout_is_as_documented() -> None:
    frame = frames.encode_frame(rows(b"xyz"), None)
    assert frame[:8] == b"LFr1\x01\x00\x00\x00"
    assert frame[8:20] == bytes((3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0))
    assert frame[20:57] == b"\x01\x03\0\0\0" + object_id(Kind.CHUNK, b"xyz")
    assert frame[57:60] == b"xyz"
    assert len(frame) == 68


def test_every_flipped_bit_is_found() -> None:
    frame = frames.encode_frame(rows(b"a" * 300, b"b" * 10), make_compressor(3))
    for bit in range(len(frame) * 8):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreDamaged):
            frames.check_frame(bytes(damaged))


def test_every_cut_is_found() -> None:
    frame = frames.encode_frame(rows(b"a" * 300), None)
    for length in range(len(frame)):
        with pytest.raises(StoreDamaged):
            frames.check_frame(frame[:length])


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    """A stream that says it is longer than the frame allows, or longer than it says."""
    bomb = zstandard.ZstdCompressor().compress(bytes(100 * 1024 * 1024))
    from xxhash import xxh3_64_intdigest

    for declared in (1000, frames.MAX_RAW):
        body = (
            frames.HEADER.pack(frames.MAGIC, frames.SOLID, frames.ZSTD, 0, declared, len(bomb), 1)
            + frames.ROW.pack(Kind.CHUNK, declared, b"x" * 32)
            + bomb
        )
        frame = body + frames.CHECKSUM.pack(xxh3_64_intdigest(body))
        head = frames.check_frame(frame)
        with pytest.raises(StoreDamaged):
            frames.read_payload(frame, head, zstandard.ZstdDecompressor())


def test_limits_hold_when_writing() -> None:
    with pytest.raises(ValueError, match="limits"):
        frames.encode_frame([], None)
    with pytest.raises(ValueError, match="limits"):
        frames.encode_frame(rows(bytes(frames.MAX_RAW), b"x"), None)

"""Pack indexes: where in a sealed pack each object lies.

An ``.idx`` file is sorted by id prefix and read through mmap, so opening one costs nothing and a look-up touches a few
cache lines. It is derived: everything in it can be had again by scanning the pack, and it is never trusted further than
to find a frame, since a frame lists whole ids and every object read is verified against its id. Moves are not indexed;
they are found by reading the log packs in order.

===============  ========  ==================================================
magic            8         ``LFINDEX1``
pack length      u64       length of the pack file it describes
count            u64       number of objects, n
frames           u32       number of frames, m
fanout           256×u32   objects whose first id byte is at most i
prefixes         16·n      first 16 bytes of each id, ascending
places           10·n      from the lowest bit: offset in the decoded payload 25 bits, length 25, kind 3, frame number 27
frame offsets    8·m       u64 each, in the order of their numbers
checksum         u64       XXH3-64 of everything before
===============  ========  ==================================================

Reserved: an object of a delta frame is indexed like any other.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from layerfs.atomicfile import storage_errors
from layerfs.errors import StoreDamaged
from layerfs.ids import ObjectId
from layerfs.objects import frames
from layerfs.objects.kinds import MAX_OBJECT_BYTES, Kind
from layerfs.objects.packs import HEADER_BYTES, ScannedFrame, scan_frames

MAGIC = b"LFINDEX1"
PREFIX_BYTES = 16
HEADER = Struct("<8sQQI")
FANOUT = Struct("<256I")
PLACE = Struct("<QH")
OFFSET = Struct("<Q")
CHECKSUM = Struct("<Q")
PREFIXES_START = HEADER.size + FANOUT.size
MAX_OBJECTS = 1 << 32
MAX_FRAMES = 1 << 27
_POSITION_BITS, _FRAME_BITS = 25, 11
_POSITION_MASK, _KIND_MASK, _FRAME_MASK = (1 << 25) - 1, (1 << 3) - 1, (1 << 11) - 1
_KIND_AT, _FRAME_AT = 50, 53
GUESS_ROWS = 512
"""Rows searched around a guess: eight standard deviations of where a row lies among 4,000 with the same first byte."""


class Place(NamedTuple):
    """Where an object lies: its frame, its bytes within the decoded payload, and its kind."""

    frame: int
    start: int
    length: int
    kind: int


def frame_places(scanned: ScannedFrame) -> list[tuple[bytes, Place]]:
    """Return the index rows of one frame; moves have none."""
    return [
        (row.oid[:PREFIX_BYTES], Place(scanned.offset, row.start, row.length, row.kind))
        for row in frames.read_objects(scanned.frame, scanned.head)
        if row.kind != Kind.MOVE
    ]


class IndexBuilder:
    """Collects the rows of a pack while it is written; of an object that lies in it twice the first place counts."""

    def __init__(self) -> None:
        self._places: dict[bytes, bytes] = {}
        self._frames: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, prefix: bytes, place: tuple[int, int, int, int]) -> None:
        """Add one object."""
        self._places.setdefault(prefix, self._pack(*place))

    def add_frame(self, offset: int, objects: Iterable[tuple[int, ObjectId, int]]) -> None:
        """Add the objects (kind, id, length) of a frame at ``offset``, in its order."""
        places = self._places
        pack_place = self._pack
        start = 0
        for kind, oid, length in objects:
            if kind != Kind.MOVE:
                places.setdefault(oid[:PREFIX_BYTES], pack_place(offset, start, length, kind))
            start += length

    def _pack(self, offset: int, start: int, length: int, kind: int) -> bytes:
        frame = self._frames.setdefault(offset, len(self._frames))
        if frame >= MAX_FRAMES:
            raise ValueError("pack holds too many frames")
        low = start | length << _POSITION_BITS | kind << _KIND_AT | (frame & _FRAME_MASK) << _FRAME_AT
        return PLACE.pack(low, frame >> _FRAME_BITS)

    def encode(self, pack_length: int) -> bytes:
        """Return the ``.idx`` bytes of a pack of this length."""
        places = self._places
        ordered = sorted(places)
        fanout = [0] * 256
        for prefix in ordered:
            fanout[prefix[0]] += 1
        body = b"".join(
            (
                HEADER.pack(MAGIC, pack_length, len(ordered), len(self._frames)),
                FANOUT.pack(*accumulate(fanout)),
                b"".join(ordered),
                b"".join([places[prefix] for prefix in ordered]),
                b"".join(map(OFFSET.pack, self._frames)),
            )
        )
        return body + CHECKSUM.pack(xxh3_64_intdigest(body))


class PackIndex:
    """A decoded view of index bytes (an mmap or plain bytes)."""

    def __init__(self, data: bytes | mmap.mmap, pack_length: int) -> None:
        size = len(data)
        if size < PREFIXES_START + CHECKSUM.size:
            raise StoreDamaged("pack index is cut short")
        magic, described, count, frame_count = HEADER.unpack_from(data)
        if magic != MAGIC:
            raise StoreDamaged("not a pack index: wrong magic")
        rows = count * (PREFIX_BYTES + PLACE.size) + frame_count * OFFSET.size
        if count >= MAX_OBJECTS or frame_count > MAX_FRAMES or size != PREFIXES_START + rows + CHECKSUM.size:
            raise StoreDamaged("pack index declares an impossible count")
        if described != pack_length:
            raise StoreDamaged("pack index describes a pack of another length")
        self._data = data
        self._fanout = FANOUT.unpack_from(data, HEADER.size)
        if self._fanout[255] != count or any(low > high for low, high in pairwise(self._fanout)):
            raise StoreDamaged("pack index has an impossible fanout")
        self.count: int = count
        self._places_start = PREFIXES_START + count * PREFIX_BYTES
        self._frames_start = self._places_start + count * PLACE.size
        self._frame_count = frame_count
        self._pack_length = pack_length
        self._verified = False

    def verify(self) -> None:
        """Check the whole file's checksum, once."""
        if self._verified:
            return
        with memoryview(self._data) as view:
            end = len(view) - CHECKSUM.size
            with view[:end] as body:
                good = xxh3_64_intdigest(body) == CHECKSUM.unpack_from(view, end)[0]
        if not good:
            raise StoreDamaged("pack index checksum does not match")
        self._verified = True

    def _lower_bound(self, prefix: bytes) -> int:
        first = prefix[0]
        low = self._fanout[first - 1] if first else 0
        high = self._fanout[first]
        data = self._data
        while low < high:
            middle = (low + high) >> 1
            at = PREFIXES_START + middle * PREFIX_BYTES
            if data[at : at + PREFIX_BYTES] < prefix:
                low = middle + 1
            else:
                high = middle
        return low

    def find(self, prefix: bytes) -> Place | None:
        """Return the place of the object with this 16-byte prefix."""
        number = self.row_of(prefix)
        return None if number < 0 else self._place(number)

    def row_of(self, prefix: bytes) -> int:
        """Return the number of the row with this 16-byte prefix, -1 when there is none.

        Ids are evenly spread, so a row is guessed from the prefix and a few of its neighbours are searched at the speed
        of memory; only when the guess was off by much a binary search follows.
        """
        first = prefix[0]
        low = self._fanout[first - 1] if first else 0
        high = self._fanout[first]
        if high - low > GUESS_ROWS:
            guess = low + ((high - low) * int.from_bytes(prefix[1:5], "big") >> 32)
            near = max(low, guess - GUESS_ROWS // 2)
            low, high = near, min(high, near + GUESS_ROWS)
        at = PREFIXES_START + low * PREFIX_BYTES
        end = PREFIXES_START + high * PREFIX_BYTES
        data = self._data
        found = data.find(prefix, at, end)
        while found >= 0 and (found - PREFIXES_START) % PREFIX_BYTES:
            found = data.find(prefix, found + 1, end)
        if found >= 0:
            return (found - PREFIXES_START) // PREFIX_BYTES
        if high <= low or data[at : at + PREFIX_BYTES] < prefix < data[end - PREFIX_BYTES : end]:
            return -1
        number = self._lower_bound(prefix)
        at = PREFIXES_START + number * PREFIX_BYTES
        return number if number < self.count and data[at : at + PREFIX_BYTES] == prefix else -1

    def prefix_at(self, number: int) -> bytes:
        """Return the id prefix in a row."""
        at = PREFIXES_START + number * PREFIX_BYTES
        return self._data[at : at + PREFIX_BYTES]

    def place_at(self, number: int) -> Place:
        """Return the place in a row."""
        return self._place(number)

    def _place(self, number: int) -> Place:
        low, high = PLACE.unpack_from(self._data, self._places_start + number * PLACE.size)
        frame = low >> _FRAME_AT | high << _FRAME_BITS
        if frame >= self._frame_count:
            raise StoreDamaged("pack index names a frame that it does not list")
        place = Place(
            OFFSET.unpack_from(self._data, self._frames_start + frame * OFFSET.size)[0],
            low & _POSITION_MASK,
            low >> _POSITION_BITS & _POSITION_MASK,
            low >> _KIND_AT & _KIND_MASK,
        )
        if (
            not HEADER_BYTES <= place.frame <= self._pack_length - frames.SMALLEST
            or place.length > MAX_OBJECT_BYTES
            or place.start > frames.MAX_RAW
            or not Kind.CHUNK <= place.kind <= Kind.LAYER
        ):
            raise StoreDamaged("pack index points outside its pack")
        return place

    def starting_with(self, hex_prefix: str) -> Iterator[Place]:
        """Yield the places of all objects whose id begins with these hex digits (at most 32 count)."""
        wanted = hex_prefix[: 2 * PREFIX_BYTES]
        lowest = bytes.fromhex(wanted.ljust(2 * PREFIX_BYTES, "0"))
        for number in range(self._lower_bound(lowest), self.count):
            at = PREFIXES_START + number * PREFIX_BYTES
            if not self._data[at : at + PREFIX_BYTES].hex().startswith(wanted):
                return
            yield self._place(number)

    def rows(self) -> Iterator[tuple[bytes, Place]]:
        """Yield every row in id order."""
        for number in range(self.count):
            at = PREFIXES_START + number * PREFIX_BYTES
            yield self._data[at : at + PREFIX_BYTES], self._place(number)

    def close(self) -> None:
        """Unmap the file."""
        if isinstance(self._data, mmap.mmap):
            self._data.close()


def map_index(descriptor: int, pack_length: int) -> PackIndex:
    """Map the open ``.idx`` file; raise StoreDamaged when it is not the index of a pack of this length."""
    with storage_errors("reading a pack index"):
        if os.fstat(descriptor).st_size < PREFIXES_START:
            raise StoreDamaged("pack index is cut short")
        data = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    try:
        return PackIndex(data, pack_length)
    except StoreDamaged:
        data.close()
        raise


def scan_index(descriptor: int, pack_length: int) -> PackIndex:
    """Return the index of a pack made by scanning it; raise StoreDamaged unless it is whole to the last byte."""
    builder = IndexBuilder()
    end = HEADER_BYTES
    for scanned in scan_frames(descriptor, HEADER_BYTES, pack_length):
        for prefix, place in frame_places(scanned):
            builder.add(prefix, place)
        end = scanned.end
    if end != pack_length:
        raise StoreDamaged(f"pack is damaged at offset {end}")
    return PackIndex(builder.encode(pack_length), pack_length)

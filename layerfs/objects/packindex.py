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
widths           3×u8      bits of a place that hold the start, the length and the frame's number
place bytes      u8        bytes of a place, w
totals           6×2×u64   objects and their bytes, of each kind from chunk to layer
fanout           256×u32   objects whose first id byte is at most i
prefixes         15·n      second to sixteenth byte of each id, ascending; the first is known from the fanout
places           w·n       from the lowest bit: kind 3 bits, offset in the decoded payload, length, frame number
frame offsets    8·m       u64 each, in the order of their numbers
checksum         u64       XXH3-64 of everything before
===============  ========  ==================================================

An object of a delta frame is indexed like any other; its offset is the sum of the lengths of those before it.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from layerfs.durable.atomicfile import storage_errors
from layerfs.errors import StoreDamaged
from layerfs.ids import ObjectId
from layerfs.kernels import native
from layerfs.objects import frames
from layerfs.objects.kinds import MAX_OBJECT_BYTES, Kind
from layerfs.objects.packs import HEADER_BYTES, ScannedFrame, scan_frames

MAGIC = b"LFINDEX1"
PREFIX_BYTES = 16
SUFFIX_BYTES = PREFIX_BYTES - 1
HEADER = Struct("<8sQQIBBBB")
TOTALS = Struct("<12Q")
FANOUT = Struct("<256I")
OFFSET = Struct("<Q")
CHECKSUM = Struct("<Q")
FANOUT_START = HEADER.size + TOTALS.size
PREFIXES_START = FANOUT_START + FANOUT.size
MAX_OBJECTS = 1 << 32
MAX_FRAMES = 1 << 27
KIND_BITS = 3
_KIND_MASK = (1 << KIND_BITS) - 1
_POSITION_BITS = 25
_POSITION_MASK = (1 << _POSITION_BITS) - 1
_PLACE_BYTES = 10
"""Kind, start, length and the number of the frame: 3 + 25 + 25 + 27 bits."""
_LENGTH_AT, _FRAME_AT = KIND_BITS + _POSITION_BITS, KIND_BITS + 2 * _POSITION_BITS
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
        self._rows = [bytearray() for _ in range(256)]
        self._frames: dict[int, int] = {}

    def add(self, prefix: bytes, place: tuple[int, int, int, int]) -> None:
        """Add one object."""
        frame, start, length, kind = place
        self._put(prefix, _pack(self._number(frame), start, length, kind))

    def add_frame(self, offset: int, objects: Iterable[tuple[int, ObjectId, int]]) -> None:
        """Add the objects (kind, id, length) of a frame at ``offset``, in its order."""
        frame = self._number(offset)
        start = 0
        for kind, oid, length in objects:
            if kind != Kind.MOVE:
                self._put(oid, _pack(frame, start, length, kind))
            start += length

    def _put(self, oid: bytes, place: int) -> None:
        self._rows[oid[0]] += oid[1:PREFIX_BYTES] + place.to_bytes(_PLACE_BYTES, "little")

    def _number(self, offset: int) -> int:
        frame = self._frames.setdefault(offset, len(self._frames))
        if frame >= MAX_FRAMES:
            raise ValueError("pack holds too many frames")
        return frame

    def encode(self, pack_length: int) -> bytearray:
        """Return the ``.idx`` bytes of a pack of this length. What was collected is used up, so as not to have both."""
        fanout = [0] * 256
        totals = [0] * (2 * Kind.LAYER)
        most_start = most_length = 0
        body = bytearray(PREFIXES_START)
        places = bytearray()
        for first in range(256):
            rows = bytes(self._rows[first])
            self._rows[first].clear()
            found: dict[bytes, bytes] = {}
            for at in range(0, len(rows), SUFFIX_BYTES + _PLACE_BYTES):
                middle = at + SUFFIX_BYTES
                found.setdefault(rows[at:middle], rows[middle : middle + _PLACE_BYTES])
            fanout[first] = len(found)
            for suffix in sorted(found):
                place = found[suffix]
                _, start, length, kind = _unpack(int.from_bytes(place, "little"))
                totals[2 * kind - 2] += 1
                totals[2 * kind - 1] += length
                most_start = max(most_start, start)
                most_length = max(most_length, length)
                body += suffix
                places += place
        widths = most_start.bit_length(), most_length.bit_length(), max(0, len(self._frames) - 1).bit_length()
        wide = (KIND_BITS + sum(widths) + 7) // 8
        start_at, length_at, frame_at = accumulate(widths[:2], initial=KIND_BITS)
        for at in range(0, len(places), _PLACE_BYTES):
            frame, start, length, kind = _unpack(int.from_bytes(places[at : at + _PLACE_BYTES], "little"))
            row = kind | start << start_at | length << length_at | frame << frame_at
            body += row.to_bytes(wide, "little")
        HEADER.pack_into(body, 0, MAGIC, pack_length, sum(fanout), len(self._frames), *widths, wide)
        TOTALS.pack_into(body, HEADER.size, *totals)
        FANOUT.pack_into(body, FANOUT_START, *accumulate(fanout))
        for offset in self._frames:
            body += OFFSET.pack(offset)
        body += CHECKSUM.pack(xxh3_64_intdigest(body))
        return body


def _pack(frame: int, start: int, length: int, kind: int) -> int:
    return kind | start << KIND_BITS | length << _LENGTH_AT | frame << _FRAME_AT


def _unpack(value: int) -> tuple[int, int, int, int]:
    start, length = value >> KIND_BITS & _POSITION_MASK, value >> _LENGTH_AT & _POSITION_MASK
    return value >> _FRAME_AT, start, length, value & _KIND_MASK


class PackIndex:
    """A decoded view of index bytes (an mmap or plain bytes)."""

    def __init__(self, data: bytes | bytearray | mmap.mmap, pack_length: int) -> None:
        size = len(data)
        if size < PREFIXES_START + CHECKSUM.size:
            raise StoreDamaged("pack index is cut short")
        magic, described, count, frame_count, *widths, wide = HEADER.unpack_from(data)
        if magic != MAGIC:
            raise StoreDamaged("not a pack index: wrong magic")
        rows = count * (SUFFIX_BYTES + wide) + frame_count * OFFSET.size
        if count >= MAX_OBJECTS or frame_count > MAX_FRAMES or size != PREFIXES_START + rows + CHECKSUM.size:
            raise StoreDamaged("pack index declares an impossible count")
        if max(widths) > MAX_FRAMES.bit_length() or KIND_BITS + sum(widths) > 8 * wide:
            raise StoreDamaged("pack index declares places of an impossible form")
        if described != pack_length:
            raise StoreDamaged("pack index describes a pack of another length")
        self._data = data
        self._fanout = FANOUT.unpack_from(data, FANOUT_START)
        if self._fanout[255] != count or any(low > high for low, high in pairwise(self._fanout)):
            raise StoreDamaged("pack index has an impossible fanout")
        self.count: int = count
        self._wide: int = wide
        self._start_at, self._length_at, self._frame_at = accumulate(widths[:2], initial=KIND_BITS)
        self._start_mask, self._length_mask, self._frame_mask = [(1 << width) - 1 for width in widths]
        self._places_start = PREFIXES_START + count * SUFFIX_BYTES
        self._frames_start = self._places_start + count * wide
        self._frame_count = frame_count
        self._layout = native.IndexLayout(
            FANOUT_START,
            PREFIXES_START,
            self._places_start,
            self._frames_start,
            count,
            frame_count,
            wide,
            *widths,
        )
        self._pack_length = pack_length
        self._verified = False

    def totals(self) -> list[tuple[Kind, int, int]]:
        """Return how many objects of each kind there are, and their bytes."""
        found = TOTALS.unpack_from(self._data, HEADER.size)
        return [
            (Kind(kind), found[2 * kind - 2], found[2 * kind - 1])
            for kind in range(Kind.CHUNK, Kind.LAYER + 1)
        ]

    def second_bytes(self, first: int) -> set[int]:
        """Return the second bytes of the ids that begin with this byte."""
        low = self._fanout[first - 1] if first else 0
        at = PREFIXES_START + low * SUFFIX_BYTES
        return set(self._data[at : at + (self._fanout[first] - low) * SUFFIX_BYTES][::SUFFIX_BYTES])

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
        suffix = prefix[1:]
        data = self._data
        while low < high:
            middle = (low + high) >> 1
            at = PREFIXES_START + middle * SUFFIX_BYTES
            if data[at : at + SUFFIX_BYTES] < suffix:
                low = middle + 1
            else:
                high = middle
        return low

    def find(self, prefix: bytes) -> Place | None:
        """Return the place of the object with this 16-byte prefix."""
        number = self.row_of(prefix)
        return None if number < 0 else self._place(number)

    def find_many(self, keys: Sequence[bytes]) -> list[Place | None]:
        """Return the places of many objects, by ids or their 16-byte prefixes."""
        try:
            found = native.index_places(self._data, self._layout, keys)
        except ValueError as error:
            raise StoreDamaged("pack index names a frame that it does not list") from error
        return [None if place is None else self._checked(Place._make(place)) for place in found]

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
        suffix = prefix[1:PREFIX_BYTES]
        at = PREFIXES_START + low * SUFFIX_BYTES
        end = PREFIXES_START + high * SUFFIX_BYTES
        data = self._data
        found = data.find(suffix, at, end)
        while found >= 0 and (found - PREFIXES_START) % SUFFIX_BYTES:
            found = data.find(suffix, found + 1, end)
        if found >= 0:
            return (found - PREFIXES_START) // SUFFIX_BYTES
        if high <= low or data[at : at + SUFFIX_BYTES] < suffix < data[end - SUFFIX_BYTES : end]:
            return -1
        number = self._lower_bound(prefix[:PREFIX_BYTES])
        at = PREFIXES_START + number * SUFFIX_BYTES
        return number if number < self._fanout[first] and data[at : at + SUFFIX_BYTES] == suffix else -1

    def prefix_at(self, number: int) -> bytes:
        """Return the id prefix in a row."""
        at = PREFIXES_START + number * SUFFIX_BYTES
        return bytes((bisect_right(self._fanout, number),)) + self._data[at : at + SUFFIX_BYTES]

    def place_at(self, number: int) -> Place:
        """Return the place in a row."""
        return self._place(number)

    def _place(self, number: int) -> Place:
        at = self._places_start + number * self._wide
        value = int.from_bytes(self._data[at : at + self._wide], "little")
        frame = value >> self._frame_at & self._frame_mask
        if frame >= self._frame_count:
            raise StoreDamaged("pack index names a frame that it does not list")
        return self._checked(
            Place(
                OFFSET.unpack_from(self._data, self._frames_start + frame * OFFSET.size)[0],
                value >> self._start_at & self._start_mask,
                value >> self._length_at & self._length_mask,
                value & _KIND_MASK,
            )
        )

    def _checked(self, place: Place) -> Place:
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
            if not self.prefix_at(number).hex().startswith(wanted):
                return
            yield self._place(number)

    def rows(self) -> Iterator[tuple[bytes, Place]]:
        """Yield every row in id order."""
        number = 0
        for first, end in enumerate(self._fanout):
            begin = bytes((first,))
            for row in range(number, end):
                at = PREFIXES_START + row * SUFFIX_BYTES
                yield begin + self._data[at : at + SUFFIX_BYTES], self._place(row)
            number = end

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

"""Packs as a list: which there are, what lies in them, and how much of each kind the store holds.

Owns the read-only view behind ``ls-pack``, ``verify-pack``, ``count-objects`` and ``stats``. Counting reads indexes only;
listing a pack reads its frames' heads; the checks themselves are in ``objects/packcheck``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from layerfs.errors import LayerfsError, NotFound, StoreDamaged, UsageError, quote
from layerfs.ids import ObjectId
from layerfs.objects import packs
from layerfs.objects.frames import read_objects
from layerfs.objects.kinds import Kind
from layerfs.objects.packcheck import PackReport, check_pack
from layerfs.objects.packindex import Place
from layerfs.store.store import Store

ROLES = {packs.LOG: "log", packs.BULK: "bulk"}


class PackSummary(NamedTuple):
    """One pack: its name, ``log`` or ``bulk``, ``open`` or ``sealed``, its objects and its length in bytes."""

    name: str
    role: str
    state: str
    objects: int
    length: int


class PackedObject(NamedTuple):
    """An object where it lies: the frame's offset, its bytes in the frame's payload."""

    oid: ObjectId
    kind: Kind
    frame: int
    start: int
    length: int


class KindCount(NamedTuple):
    """Objects of one kind: how many, and the bytes of their payloads."""

    kind: Kind
    objects: int
    size: int


class Counts(NamedTuple):
    """What lies in all packs; an object that lies in two packs counts twice."""

    kinds: tuple[KindCount, ...]
    packs: int
    packed_bytes: int

    @property
    def objects(self) -> int:
        """Number of objects."""
        return sum(count.objects for count in self.kinds)

    @property
    def size(self) -> int:
        """Bytes of all payloads."""
        return sum(count.size for count in self.kinds)


def list_packs(store: Store) -> list[PackSummary]:
    """Return every pack, by number, the open one last."""
    database = store.objects
    rows = []
    for row in store.db.packs():
        length = os.fstat(database.pack_descriptor(row.number)).st_size
        count = database.index(row.number).count
        rows.append(PackSummary(packs.pack_name(row.number), ROLES[row.role], "sealed", count, length))
    with store.db.snapshot():
        state = store.db.state()
        count = sum(number for _, number, _ in store.db.open_totals())
    rows.append(PackSummary(packs.pack_name(state.open_pack), "log", "open", count, state.open_length))
    return rows


def find_pack(store: Store, name: str) -> int:
    """Return the number of the pack called ``name`` (leading zeros and ``.pack`` may be left out)."""
    digits = name.removesuffix(".pack")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise UsageError(f"not the name of a pack: {quote(name)}", "'layerfs ls-pack' lists them")
    number = int(digits)
    if number != store.db.state().open_pack and all(row.number != number for row in store.db.packs()):
        raise NotFound(f"no such pack: {quote(name)}", "'layerfs ls-pack' lists them")
    return number


def list_pack(store: Store, name: str) -> Iterator[PackedObject]:
    """Yield the objects of one pack in the order they lie in it, moves included."""
    number = find_pack(store, name)
    descriptor = store.objects.pack_descriptor(number)
    state = store.db.state()
    end = state.open_length if number == state.open_pack else os.fstat(descriptor).st_size
    return _objects_of(descriptor, end)


def _objects_of(descriptor: int, end: int) -> Iterator[PackedObject]:
    for scanned in packs.scan_frames(descriptor, packs.HEADER_BYTES, end):
        for row in read_objects(scanned.frame, scanned.head):
            yield PackedObject(row.oid, Kind(row.kind), scanned.offset, row.start, row.length)


def verify_packs(store: Store, name: str | None, read_data: bool) -> Iterator[PackReport]:
    """Check one pack, or all of them one after the other."""
    if name is None:
        numbers = [row.number for row in store.db.packs()]
        numbers.append(store.db.state().open_pack)
    else:
        numbers = [find_pack(store, name)]
    return (_verify_pack(store, number, read_data) for number in numbers)


def _verify_pack(store: Store, number: int, read_data: bool) -> PackReport:
    database = store.objects
    with store.db.snapshot():
        state = store.db.state()
        open_rows = store.db.open_rows() if number == state.open_pack else []
    if number == state.open_pack:
        listed = iter([(row.prefix, Place(row.frame, row.start, row.length, row.kind)) for row in open_rows])
        return check_pack(database, number, store.format.store_id, listed, state.open_length, read_data)
    try:
        index = database.index(number)
        if number in database.index_problems:
            raise StoreDamaged(database.index_problems[number])
        index.verify()
        rows = index.rows()
    except LayerfsError as error:
        report = check_pack(database, number, store.format.store_id, None, None, read_data)
        return report._replace(problems=[f"index: {error.message}", *report.problems])
    return check_pack(database, number, store.format.store_id, rows, None, read_data)


def count_objects(store: Store) -> Counts:
    """Count the objects of all packs by kind, from the indexes alone."""
    objects = dict.fromkeys(Kind, 0)
    sizes = dict.fromkeys(Kind, 0)
    database = store.objects
    length = 0
    found: list[tuple[int, int, int]] = []
    rows = store.db.packs()
    for row in rows:
        length += os.fstat(database.pack_descriptor(row.number)).st_size
        found += database.index(row.number).totals()
    with store.db.snapshot():
        state = store.db.state()
        found += store.db.open_totals()
    for kind, count, size in found:
        objects[Kind(kind)] += count
        sizes[Kind(kind)] += size
    kinds = tuple(KindCount(kind, objects[kind], sizes[kind]) for kind in Kind if kind is not Kind.MOVE)
    return Counts(kinds, len(rows) + 1, length + state.open_length)

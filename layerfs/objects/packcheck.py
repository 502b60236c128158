"""Checking packs: every frame's checksum, and the index against what the frames say.

Owns the physical half of ``fsck``: it reads pack files from the first byte to the last and says which frames are whole.
What the objects mean, and which commit and path needs a damaged one, is in ``verify``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from layerfs.errors import StoreDamaged, StoreIoFailed
from layerfs.objects import packs
from layerfs.objects.database import ObjectDatabase
from layerfs.objects.frames import check_frame, read_objects
from layerfs.objects.packindex import PREFIX_BYTES, Place, frame_places


class PackReport(NamedTuple):
    """What a check of one pack found: whole frames by offset, and what is wrong, in words."""

    number: int
    frames: frozenset[int]
    objects: int
    length: int
    problems: list[str]


def check_pack(
    database: ObjectDatabase,
    number: int,
    store_id: bytes,
    index: Iterator[tuple[bytes, Place]] | None,
    length: int | None = None,
    read_data: bool = False,
) -> PackReport:
    """Check a pack up to ``length`` (None: the end of the file) against the rows of its index.

    With ``read_data`` each frame is decoded and each object in it hashed. Without an index the rows are not compared.
    """
    problems: list[str] = []
    whole: set[int] = set()
    found: dict[bytes, Place] = {}
    try:
        descriptor = database.pack_descriptor(number)
        end = os.fstat(descriptor).st_size
        if length is not None and end < length:
            problems.append(f"is {end} bytes long instead of {length}")
        elif length is not None:
            end = length
        header = packs.read_header(descriptor)
        if header.store_id != store_id and header.role == packs.LOG:
            problems.append("belongs to another store")
    except (StoreDamaged, StoreIoFailed) as error:
        return PackReport(number, frozenset(), 0, 0, [error.message])
    at = packs.HEADER_BYTES
    while at < end:
        for scanned in packs.scan_frames(descriptor, at, end):
            at = scanned.end
            try:
                check_frame(scanned.frame)
                for prefix, place in frame_places(scanned):
                    found.setdefault(prefix, place)
                if read_data:
                    _check_objects(database, scanned)
                whole.add(scanned.offset)
            except StoreDamaged as error:
                problems.append(f"frame at {scanned.offset}: {error.message}")
        if at >= end:
            break
        behind = next(packs.find_frame(descriptor, at + 1, end), None)
        resume = end if behind is None else behind.offset
        problems.append(f"bytes {at} to {resume} are no whole frame")
        at = resume
    if index is not None:
        problems.extend(_compare(found, index))
    return PackReport(number, frozenset(whole), len(found), end, problems)


def _check_objects(database: ObjectDatabase, scanned: packs.ScannedFrame) -> None:
    frame = database.decode(scanned.frame, scanned.head)
    for row in read_objects(scanned.frame, scanned.head):
        frame.object(row.oid, f"frame at {scanned.offset}")


def _compare(found: dict[bytes, Place], index: Iterator[tuple[bytes, Place]]) -> list[str]:
    problems: list[str] = []
    indexed: set[bytes] = set()
    wrong = 0
    try:
        for prefix, place in index:
            indexed.add(prefix[:PREFIX_BYTES])
            wrong += found.get(prefix) != place
    except StoreDamaged as error:
        problems.append(f"index: {error.message}")
    if wrong:
        problems.append(f"index: {wrong} rows are not what the pack holds")
    missing = len(found.keys() - indexed)
    if missing:
        problems.append(f"index: {missing} objects of the pack are not in it")
    return problems

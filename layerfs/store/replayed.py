"""The replayed state: what the log says of every pointer, worked out beside the database and without changing anything.

The database is a view of the packs, so whatever differs between the two is damage to one of them. ``verify`` compares;
what brings a store's own database up to date, and may write, is ``log``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from layerfs.durable.atomicfile import Files
from layerfs.durable.metadb import MetaDb, PackRow, State
from layerfs.errors import StoreDamaged
from layerfs.objects import packs
from layerfs.store.log import first_log_pack, log_packs, read_moves
from layerfs.store.pointers import Pointers, read_pointers
from layerfs.store.refs import apply_move


class Replayed(NamedTuple):
    """What the log says: the pointers, the log pack it begins with, and where the last move ends in the open pack."""

    pointers: Pointers
    base: int
    open_length: int


def differences(files: Files, packs_fd: int, known: Pointers, state: State) -> Iterator[str]:
    """Yield, in words, what of a database's pointers is not what the log says up to the move that it knows.

    Raises StoreDamaged when the log cannot be replayed so far.
    """
    replayed = replay(files, packs_fd, known, state)
    if (replayed.base, replayed.open_length) != (state.base, state.open_length):
        yield (
            f"it begins with pack {packs.pack_name(state.base)} and ends at {state.open_length}, "
            f"the log begins with {packs.pack_name(replayed.base)} and ends at {replayed.open_length}"
        )
    for what in ("packs", "refs", "layers", "reflog", "workspaces"):
        mine, said = set(getattr(known, what)), set(getattr(replayed.pointers, what))
        if mine != said:
            row = min(mine ^ said, key=repr)
            where = "is not what the log says" if row in mine else "is missing"
            yield f"{what}: {len(mine ^ said)} rows differ from the log; the first {where}: {_shown(row)}"


def replay(files: Files, packs_fd: int, known: Pointers, state: State) -> Replayed:
    """Return what the log says up to the last move that a database knows; the packs are those it knows as well."""
    first, sequence = first_log_pack(files, packs_fd)
    members = {row.number for row in known.packs} | {state.open_pack}
    chain = sorted(
        (header.first_sequence, number)
        for number, header in log_packs(files, packs_fd)
        if (header.first_sequence, number) >= (sequence, first) and number in members
    )
    if not chain or chain[-1][1] != state.open_pack:
        raise StoreDamaged(f"pack {packs.pack_name(state.open_pack)} is not the end of it")
    scratch = MetaDb.create(b":memory:", State(state.store_id, sequence - 1, first, 0, first), False)
    try:
        with scratch.transaction():
            reached, end = sequence - 1, packs.HEADER_BYTES
            for place, (_, number) in enumerate(chain):
                if place:
                    scratch.add_pack(PackRow(chain[place - 1][1], packs.LOG, reached))
                reached, end = _apply_pack(scratch, files, packs_fd, number, reached, state.sequence)
        if reached != state.sequence:
            raise StoreDamaged(f"it ends with move {reached}, the database knows move {state.sequence}")
        return Replayed(read_pointers(scratch), first, end)
    finally:
        scratch.close()


def _apply_pack(
    scratch: MetaDb, files: Files, packs_fd: int, number: int, reached: int, last: int
) -> tuple[int, int]:
    descriptor = files.open(packs_fd, packs.pack_file(number))
    found = packs.HEADER_BYTES
    try:
        for end, move in read_moves(descriptor, os.fstat(descriptor).st_size):
            if move.sequence > last:
                break
            if move.sequence != reached + 1:
                raise StoreDamaged(
                    f"pack {packs.pack_name(number)} holds move {move.sequence} after {reached}"
                )
            apply_move(scratch, move, number)
            reached, found = move.sequence, end
    finally:
        os.close(descriptor)
    return reached, found


def _shown(row: tuple[object, ...]) -> str:
    return " ".join(
        value.hex()[:12] if isinstance(value, bytes) else str(value) for value in row if value is not None
    )

"""Companions: a database and its journal, two files that mean something only together.

Owns which names belong together, and whether a group that was read held still as a whole: each file for itself may have
stood still while it was read, and the pair be of two instants all the same – the database from before a checkpoint, its
log from after it. Whoever reads such files looks at all of them again afterwards, and reads them again when one moved.
Groups are known by the names that SQLite and DuckDB give; a database that spreads over files of other names (LMDB,
RocksDB) is of one instant only in a frozen commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from layerfs.errors import TornRead, quote

JOURNALS = (b"-wal", b"-journal", b".wal")
"""What follows a database's name in the names of its journals: SQLite's two, and DuckDB's."""

State = tuple[int, int] | None
"""Size in bytes and mtime in nanoseconds of a file; None if it is not there."""


def database_of(journal: bytes) -> bytes:
    """Return the name of the database that a journal belongs to, by its name alone; empty for other names."""
    for ending in JOURNALS:
        if journal.endswith(ending):
            return journal[: -len(ending)]
    return b""


def journals_in(names: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield (database, journal) for every name that is a journal's; whether the database exists is not looked at."""
    for name in names:
        if name.endswith(JOURNALS) and (database := database_of(name)):
            yield database, name


def held_still(then: State, now: State, started_ns: int) -> bool:
    """Whether a file that was read as ``then`` is certain to be the same ``now``.

    A file stamped no earlier than ``started_ns``, the kernel's clock before the first of a group was read, is not: it may
    have been written again within the same tick, and would have the same stamp.
    """
    return then == now and (then is None or then[1] < started_ns)


def state_at(directory: int, name: bytes) -> State:
    """Return the present state of a file; ``name`` is relative to the open directory."""
    try:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return info.st_size, info.st_mtime_ns


def torn(database: bytes) -> TornRead:
    """Return the error for a group that will not hold still."""
    return TornRead(
        f"{quote(database)} and its journal keep changing while they are read",
        "--freeze stops what writes there for the time of a commit; --allow-torn records them as they were read",
    )

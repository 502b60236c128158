"""A database and its journal are captured as of one instant, whatever happens between the reading of the two."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from layerfs.capture import filecontent
from layerfs.capture.capture import capture_directory
from layerfs.capture.companions import database_of, held_still, journals_in
from layerfs.errors import TornRead
from layerfs.objects.content import read_content
from layerfs.objects.environment import walk
from layerfs.objects.memory import MemoryObjects


def a_database(place: Path) -> sqlite3.Connection:
    """Return a database of more than one piece, with its newest rows in the log alone."""
    database = sqlite3.connect(place / "data.db", isolation_level=None)
    database.execute("pragma journal_mode=wal")
    database.execute("create table t (a integer, b blob)")
    database.execute("insert into t values (0, randomblob(300000))")
    database.execute("pragma wal_checkpoint(truncate)")
    database.execute("insert into t values (1, randomblob(5000))")
    return database


def disturbed(database: sqlite3.Connection, times: int, read: Callable[..., object]) -> Callable[..., object]:
    """Return a reader of files after which a checkpoint empties the log and new rows go into it, so many times."""
    left = [times]

    def reading(directory: int, name: bytes, *rest: object) -> object:
        found = read(directory, name, *rest)
        if name == b"data.db" and left[0]:
            left[0] -= 1
            database.execute("delete from t where a > 0")
            database.execute("pragma wal_checkpoint(truncate)")
            database.execute("insert into t values (?, randomblob(5000))", (100 - left[0],))
        return found

    return reading


def captured_rows(place: Path, target: Path) -> list[tuple[int]]:
    """Capture a directory, restore its files and return what the database in there says."""
    store = MemoryObjects()
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        root = capture_directory(fd, store).root
    finally:
        os.close(fd)
    target.mkdir()
    for path, entry in walk(store, root):
        if not path.endswith(b"-shm") and path:
            (target / os.fsdecode(path)).write_bytes(read_content(store, entry))
    with sqlite3.connect(target / "data.db") as database:
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
        return database.execute("select a from t order by a").fetchall()


def test_a_checkpoint_between_the_two_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    place.mkdir()
    database = a_database(place)
    monkeypatch.setattr(filecontent, "read_file", disturbed(database, 2, filecontent.read_file))
    assert captured_rows(place, tmp_path / "out") == [(0,), (100,)]


def test_a_database_that_never_rests_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    place.mkdir()
    database = a_database(place)
    monkeypatch.setattr(filecontent, "read_file", disturbed(database, 1000, filecontent.read_file))
    with pytest.raises(TornRead, match=r"data\.db.* journal"):
        captured_rows(place, tmp_path / "out")


def test_which_names_belong_together() -> None:
    names = [b"a.db", b"a.db-wal", b"b-journal", b"c.duckdb.wal", b"-wal", b"d/e.db-wal", b"wal", b"f-wall"]
    assert list(journals_in(names)) == [
        (b"a.db", b"a.db-wal"),
        (b"b", b"b-journal"),
        (b"c.duckdb", b"c.duckdb.wal"),
        (b"d/e.db", b"d/e.db-wal"),
    ]
    assert database_of(b"plain") == b""


@pytest.mark.parametrize(
    ("then", "now", "still"),
    [
        ((1, 5), (1, 5), True),
        ((1, 5), (1, 6), False),
        ((1, 5), (2, 5), False),
        ((1, 10), (1, 10), False),
        ((1, 5), None, False),
        (None, None, True),
        (None, (1, 5), False),
    ],
)
def test_what_holds_still(then: tuple[int, int] | None, now: tuple[int, int] | None, still: bool) -> None:
    assert held_still(then, now, 10) is still

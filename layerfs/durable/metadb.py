"""The pointer database: everything of a store that moves, in one small SQLite file.

Owns the only use of ``sqlite3``. The database is a *materialised view* of the moves recorded in the log packs: each move
is applied in one transaction together with the index rows of its batch and the new ``state``. It runs in WAL mode with
``synchronous=NORMAL``, so a commit costs no sync of its own: after a power loss it may be some moves behind the packs,
and ``log`` brings it up to date by the same code that applied them. Only the layer cache is not in the packs, because it
may be deleted at any time.

Invariant: outside of a transaction, ``state.sequence`` moves have been applied, no part of any other, and the open pack
is complete up to ``state.open_length``. Writers hold the lane; readers need nothing. No sqlite3 error leaves this module.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from layerfs.errors import Busy, LayerfsError, NoSpace, StoreDamaged, StoreIoFailed, Unable
from layerfs.ids import ID_BYTES, CommitId, LayerId, ObjectId

DATABASE_FILE = b"meta.db"
USER_VERSION = 2
BUSY_MILLISECONDS = 10_000

SCHEMA = """
CREATE TABLE state (              -- one row: how far the log of moves is applied
  one INTEGER PRIMARY KEY CHECK (one = 1),  -- always 1
  store_id BLOB NOT NULL,         -- the store's 16-byte id, equal to the format file's
  sequence INTEGER NOT NULL,      -- sequence of the last applied move, 0 for none
  open_pack INTEGER NOT NULL,     -- number of the log pack that is appended to
  open_length INTEGER NOT NULL,   -- its length after the last applied move; bytes beyond are not yet true
  base INTEGER NOT NULL           -- log pack with which a replay of everything begins; none before it is needed
);
CREATE TABLE packs (              -- sealed packs that belong to the store; the open pack is not among them
  number INTEGER PRIMARY KEY,     -- number in the file name
  role INTEGER NOT NULL,          -- 1 log, 2 bulk
  sequence INTEGER NOT NULL       -- move that registered it (bulk), or the last move in it (log)
);
CREATE TABLE open_objects (       -- index of the open pack, emptied when it is sealed
  prefix BLOB PRIMARY KEY,        -- first 16 bytes of the object id
  frame INTEGER NOT NULL,         -- offset of its frame in the open pack
  start INTEGER NOT NULL,         -- offset in the frame's decoded payload
  length INTEGER NOT NULL,        -- length of the object
  kind INTEGER NOT NULL           -- object kind
) WITHOUT ROWID;
CREATE TABLE refs (               -- branches and tags
  name TEXT PRIMARY KEY,          -- refs/heads/… or refs/tags/…
  target BLOB NOT NULL            -- commit id
) WITHOUT ROWID;
CREATE TABLE layers (             -- the stack of main, without gaps from 1
  number INTEGER PRIMARY KEY,     -- layer number
  layer BLOB NOT NULL,            -- layer id
  target BLOB NOT NULL,           -- commit id of the layer
  sequence INTEGER NOT NULL       -- move that added it
);
CREATE TABLE reflog (             -- every value a ref ever had
  name TEXT NOT NULL,             -- ref name; stays when the ref is deleted
  sequence INTEGER NOT NULL,      -- move
  position INTEGER NOT NULL,      -- position of the change within the move
  old BLOB,                       -- commit before, NULL when the ref was made
  new BLOB,                       -- commit after, NULL when the ref was deleted
  actor TEXT NOT NULL,            -- who
  time_ns INTEGER NOT NULL,       -- when, nanoseconds since the epoch
  why TEXT NOT NULL,              -- the operation, for people
  PRIMARY KEY (name, sequence, position)
) WITHOUT ROWID;
CREATE TABLE workspaces (         -- registered workspaces
  name TEXT PRIMARY KEY,          -- workspace name
  record BLOB NOT NULL,           -- opaque here, see workspace/records
  sequence INTEGER NOT NULL       -- move that put it
) WITHOUT ROWID;
CREATE TABLE layer_cache (        -- materialised lowers in cache/; not in the moves, deletable at any time
  directory TEXT PRIMARY KEY,     -- directory name below cache/
  root BLOB NOT NULL,             -- root id of the tree that the directory, stacked on its parents, shows
  kind TEXT NOT NULL,             -- base: a full tree; delta: differences from parent
  flavour TEXT NOT NULL,          -- trusted or user: the xattr namespace of its overlay marks
  parent TEXT,                    -- directory name a delta lies on, NULL for a base
  disk_bytes INTEGER NOT NULL,    -- disk use, measured when it was made
  last_used_ns INTEGER NOT NULL,  -- for eviction, nanoseconds since the epoch
  synced INTEGER NOT NULL,        -- 1 once syncfs returned after it was complete
  boot_id TEXT NOT NULL           -- kernel boot in which it was made: an unsynced one counts only within it
) WITHOUT ROWID;
CREATE INDEX layer_cache_root ON layer_cache (root);
"""


class State(NamedTuple):
    """How far the log of moves is applied."""

    store_id: bytes
    sequence: int
    open_pack: int
    open_length: int
    base: int


class PackRow(NamedTuple):
    """A sealed pack."""

    number: int
    role: int
    sequence: int


class OpenRow(NamedTuple):
    """An object of the open pack."""

    prefix: bytes
    frame: int
    start: int
    length: int
    kind: int


class LayerRow(NamedTuple):
    """A layer of main."""

    number: int
    layer: LayerId
    commit: CommitId
    sequence: int


class ReflogRow(NamedTuple):
    """One change of one ref."""

    name: str
    sequence: int
    position: int
    old: CommitId | None
    new: CommitId | None
    actor: str
    time_ns: int
    why: str


class CachedLayer(NamedTuple):
    """A materialised lower in the layer cache."""

    directory: str
    root: bytes
    kind: str
    flavour: str
    parent: str | None
    disk_bytes: int
    last_used_ns: int
    synced: bool
    boot_id: str


MOST_KIND = 6
"""The kinds of objects are numbers from 1 on; moves, which come last, are not indexed."""
_INT = (int,)
_TEXT = (str,)
_BYTES = (bytes,)
_MAYBE_TEXT = (str, type(None))
_MAYBE_BYTES = (bytes, type(None))
_Row = TypeVar("_Row", bound=tuple[Any, ...])
_FORMS: dict[type, tuple[tuple[type, ...], ...]] = {
    State: (_BYTES, _INT, _INT, _INT, _INT),
    PackRow: (_INT, _INT, _INT),
    OpenRow: (_BYTES, _INT, _INT, _INT, _INT),
    LayerRow: (_INT, _BYTES, _BYTES, _INT),
    ReflogRow: (_TEXT, _INT, _INT, _MAYBE_BYTES, _MAYBE_BYTES, _TEXT, _INT, _TEXT),
    CachedLayer: (_TEXT, _BYTES, _TEXT, _TEXT, _MAYBE_TEXT, _INT, _INT, _INT, _TEXT),
}
"""What may stand in each column. SQLite keeps whatever a damaged page says, of whatever type it says."""
_IDS: dict[type, tuple[int, ...]] = {LayerRow: (1, 2), ReflogRow: (3, 4)}
"""The columns that hold ids."""


def _formed(form: type[_Row], values: Sequence[Any]) -> _Row:
    """Return a row as what it is; raise StoreDamaged when a column holds what it cannot hold."""
    for value, allowed in zip(values, _FORMS[form], strict=True):
        if type(value) not in allowed:
            raise _impossible()
    for column in _IDS.get(form, ()):
        if values[column] is not None and len(values[column]) != ID_BYTES:
            raise _impossible()
    if form is OpenRow and not 0 < values[-1] <= MOST_KIND:
        raise _impossible()
    return form(*values)


def _commit_id(value: Any) -> CommitId:
    if type(value) is not bytes or len(value) != ID_BYTES:
        raise _impossible()
    return CommitId(ObjectId(value))


def _text_of(value: Any) -> str:
    if type(value) is not str:
        raise _impossible()
    return value


def _bytes_of(value: Any) -> bytes:
    if type(value) is not bytes:
        raise _impossible()
    return value


def _number_of(value: Any) -> int:
    if type(value) is not int:
        raise _impossible()
    return value


def _impossible() -> StoreDamaged:
    return StoreDamaged("store's database holds impossible values", "'layerfs fsck --repair' rebuilds it")


_FAILURES = (sqlite3.Error, OverflowError, UnicodeError)
"""What a call of SQLite raises: its own errors, and Python's where a value of a row fits no type of ours."""


def _failure(error: Exception) -> LayerfsError:
    """Return the layerfs error for a failed SQLite call; the caller raises it."""
    if not isinstance(error, sqlite3.Error):
        return _impossible()
    code = getattr(error, "sqlite_errorcode", 0) or 0
    primary = code & 0xFF
    if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return NoSpace("no space left while updating the store's database", "nothing was published")
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Busy("store is busy: its database is locked", "try again")
    if primary in (
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
    ):
        return StoreIoFailed(f"i/o error in the store's database: {error}")
    return StoreDamaged(f"store's database does not verify: {error}", "'layerfs fsck --repair' rebuilds it")


def _is_text(name: str) -> bool:
    """Whether a name is UTF-8, as all names in the database are; what comes from a command line need not be."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class _mapped:
    """Turn SQLite's errors into ours, around what is more than one statement."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _FAILURES):
            raise _failure(error) from error


class MetaDb:
    """An open connection. Safe to share between threads: every call is one statement under SQLite's own mutex."""

    def __init__(self, path: bytes, durable: bool = True) -> None:
        self._durable = durable
        with _mapped():
            self._db = sqlite3.connect(
                path, timeout=BUSY_MILLISECONDS / 1000, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA synchronous=" + ("NORMAL" if durable else "OFF"))

    @classmethod
    def create(cls, path: bytes, state: State, durable: bool = True) -> MetaDb:
        """Create the schema in a new, empty file."""
        self = cls(path, durable)
        with _mapped():
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.executescript("BEGIN IMMEDIATE;" + SCHEMA)
            self._db.execute("INSERT INTO state VALUES (1, ?, ?, ?, ?, ?)", state)
            self._db.execute(f"PRAGMA user_version={USER_VERSION}")
            self._db.execute("COMMIT")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self

    @classmethod
    def open(cls, path: bytes, store_id: bytes, durable: bool = True) -> MetaDb:
        """Open an existing database of this store; another one, or one of another version, is refused."""
        self = cls(path, durable)
        try:
            version = self._one("PRAGMA user_version")[0]
            if version == 0:
                raise StoreDamaged("store's database is empty", "'layerfs fsck --repair' rebuilds it")
            if version != USER_VERSION:
                raise Unable(f"store's database has version {version}, this layerfs knows {USER_VERSION}")
            if self.state().store_id != store_id:
                raise StoreDamaged("store's database belongs to another store")
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Close the connection; the last one to close folds the WAL into the file."""
        with _mapped():
            self._db.close()

    def _one(self, statement: str, values: Sequence[Any] = ()) -> Any:
        try:
            return self._db.execute(statement, values).fetchone()
        except _FAILURES as error:
            raise _failure(error) from error

    def _all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._db.execute(statement, values).fetchall()
        except _FAILURES as error:
            raise _failure(error) from error

    def _run(self, statement: str, values: Sequence[Any] = ()) -> int:
        try:
            return self._db.execute(statement, values).rowcount
        except _FAILURES as error:
            raise _failure(error) from error

    @contextmanager
    def transaction(self, sync: bool = False) -> Iterator[None]:
        """All writes of the body or none; they are visible to other processes when the block ends.

        With ``sync`` they, and all before them, survive a power loss too: needed before packs that they no longer name
        are removed.
        """
        if sync and self._durable:
            self._run("PRAGMA synchronous=FULL")
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._run("ROLLBACK")
            raise
        finally:
            if sync and self._durable:
                self._run("PRAGMA synchronous=NORMAL")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads of the body see one state of the database."""
        self._run("BEGIN")
        try:
            yield
        finally:
            self._run("ROLLBACK")

    def check(self) -> list[str]:
        """Return what SQLite's own integrity check finds wrong."""
        found = [str(row[0]) for row in self._all("PRAGMA integrity_check(20)")]
        return [] if found == ["ok"] else found

    def compact(self) -> None:
        """Give back the room of what was deleted; when somebody is in the way it stays for later use."""
        try:
            self._run("VACUUM")
        except Busy:
            return
        self._one("PRAGMA wal_checkpoint(TRUNCATE)")

    def change_counter(self) -> int:
        """Return a number that differs once another connection has committed (cheap: no file is read)."""
        return int(self._one("PRAGMA data_version")[0])

    def state(self) -> State:
        """Return how far the log is applied."""
        row = self._one("SELECT store_id, sequence, open_pack, open_length, base FROM state")
        if row is None:
            raise StoreDamaged("store's database has no state", "'layerfs fsck --repair' rebuilds it")
        return _formed(State, row)

    def set_state(self, sequence: int, open_pack: int, open_length: int) -> None:
        """Record how far the log is applied (in the transaction that applied it)."""
        self._run(
            "UPDATE state SET sequence=?, open_pack=?, open_length=?", (sequence, open_pack, open_length)
        )

    def restart(self, base: int) -> None:
        """Forget every pointer: a restart that begins log pack ``base`` says them anew, in the same transaction."""
        for table in ("packs", "refs", "layers", "reflog", "workspaces"):
            self._run(f"DELETE FROM {table}")
        self._run("UPDATE state SET base=?", (base,))

    def packs(self) -> list[PackRow]:
        """Return the sealed packs in number order."""
        return [
            _formed(PackRow, row)
            for row in self._all("SELECT number, role, sequence FROM packs ORDER BY number")
        ]

    def add_pack(self, row: PackRow) -> None:
        """Register a sealed pack; doing so twice changes nothing."""
        self._run("INSERT OR REPLACE INTO packs VALUES (?, ?, ?)", row)

    def drop_pack(self, number: int) -> bool:
        """Forget a sealed pack; return whether it was there."""
        return self._run("DELETE FROM packs WHERE number=?", (number,)) > 0

    def find_open(self, prefix: bytes) -> tuple[int, OpenRow] | None:
        """Return the open pack's number and the place of an object in it, both of one moment."""
        row = self._one(
            "SELECT open_pack, prefix, frame, start, length, kind FROM open_objects, state WHERE prefix=?",
            (prefix,),
        )
        return None if row is None else (_number_of(row[0]), _formed(OpenRow, row[1:]))

    def find_open_range(self, low: bytes, high: bytes) -> list[tuple[int, OpenRow]]:
        """Return the open pack's number and place for the objects with low ≤ prefix ≤ high, in id order."""
        rows = self._all(
            "SELECT open_pack, prefix, frame, start, length, kind FROM open_objects, state "
            "WHERE prefix BETWEEN ? AND ? ORDER BY prefix",
            (low, high),
        )
        return [(_number_of(row[0]), _formed(OpenRow, row[1:])) for row in rows]

    def has_open(self) -> bool:
        """Return whether objects lie in the open pack."""
        return self._one("SELECT 1 FROM open_objects LIMIT 1") is not None

    def open_rows(self) -> list[OpenRow]:
        """Return the whole index of the open pack, in file order."""
        statement = "SELECT prefix, frame, start, length, kind FROM open_objects ORDER BY frame, start"
        return [_formed(OpenRow, row) for row in self._all(statement)]

    def open_totals(self) -> list[tuple[int, int, int]]:
        """Return kind, number and bytes of the objects in the open pack."""
        return self._all("SELECT kind, count(*), sum(length) FROM open_objects GROUP BY kind")

    def add_open(self, rows: Iterable[tuple[bytes, int, int, int, int]]) -> None:
        """Index objects of the open pack; the first place of an object stays."""
        with _mapped():
            self._db.executemany("INSERT OR IGNORE INTO open_objects VALUES (?, ?, ?, ?, ?)", rows)

    def clear_open(self) -> None:
        """Empty the index of the open pack, because it is sealed."""
        self._run("DELETE FROM open_objects")

    def ref(self, name: str) -> CommitId | None:
        """Return what a ref points at."""
        if not _is_text(name):
            return None
        row = self._one("SELECT target FROM refs WHERE name=?", (name,))
        return None if row is None else _commit_id(row[0])

    def refs(self, prefix: str) -> list[tuple[str, CommitId]]:
        """Return the refs whose name begins with ``prefix``, by name."""
        statement = "SELECT name, target FROM refs WHERE name >= ? AND name < ? ORDER BY name"
        rows = self._all(statement, (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)))
        return [(_text_of(name), _commit_id(target)) for name, target in rows]

    def keep_ref(self, name: str, target: CommitId) -> None:
        """Set a ref as a restart says it; its reflog is said separately."""
        self._run("INSERT INTO refs VALUES (?, ?)", (name, target))

    def keep_reflog(self, row: ReflogRow) -> None:
        """Set a line of the reflog as a restart says it."""
        self._run("INSERT INTO reflog VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def set_ref(self, row: ReflogRow) -> None:
        """Set, make or delete a ref and write its reflog."""
        if row.new is None:
            self._run("DELETE FROM refs WHERE name=?", (row.name,))
        else:
            self._run("INSERT OR REPLACE INTO refs VALUES (?, ?)", (row.name, row.new))
        self._run("INSERT OR REPLACE INTO reflog VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def reflog(self, name: str | None, limit: int = -1) -> list[ReflogRow]:
        """Return the changes of a ref (of all refs for None), newest first."""
        if name is not None and not _is_text(name):
            return []
        where = "" if name is None else "WHERE name=:name "
        statement = f"SELECT * FROM reflog {where}ORDER BY sequence DESC, position DESC LIMIT :limit"
        with _mapped():
            rows = self._db.execute(statement, {"name": name, "limit": limit}).fetchall()
        return [_formed(ReflogRow, row) for row in rows]

    def count_new(self, since: int) -> int:
        """Return how many commits the moves after ``since`` gave to refs."""
        statement = "SELECT COUNT(DISTINCT new) FROM reflog WHERE sequence > ? AND new IS NOT NULL"
        return int(self._one(statement, (since,))[0])

    def top_layer(self) -> LayerRow | None:
        """Return the newest layer of main."""
        row = self._one("SELECT * FROM layers ORDER BY number DESC LIMIT 1")
        return None if row is None else _formed(LayerRow, row)

    def layer(self, number: int) -> LayerRow | None:
        """Return a layer by number."""
        row = self._one("SELECT * FROM layers WHERE number=?", (number,))
        return None if row is None else _formed(LayerRow, row)

    def layers(self) -> list[LayerRow]:
        """Return all layers, newest first."""
        return [_formed(LayerRow, row) for row in self._all("SELECT * FROM layers ORDER BY number DESC")]

    def add_layer(self, row: LayerRow, replace: bool = False) -> None:
        """Put a layer on top of main; only a repair may find one there already, and replaces it."""
        self._run(f"INSERT {'OR REPLACE ' if replace else ''}INTO layers VALUES (?, ?, ?, ?)", row)

    def workspace(self, name: str) -> bytes | None:
        """Return a workspace's record."""
        if not _is_text(name):
            return None
        row = self._one("SELECT record FROM workspaces WHERE name=?", (name,))
        return None if row is None else _bytes_of(row[0])

    def workspace_rows(self) -> list[tuple[str, bytes, int]]:
        """Return all workspaces with the move that put each."""
        rows = self._all("SELECT name, record, sequence FROM workspaces ORDER BY name")
        return [(_text_of(name), _bytes_of(record), _number_of(move)) for name, record, move in rows]

    def workspaces(self) -> list[tuple[str, bytes]]:
        """Return all workspace records by name."""
        rows = self._all("SELECT name, record FROM workspaces")
        return [(_text_of(name), _bytes_of(record)) for name, record in rows]

    def put_workspace(self, name: str, record: bytes, sequence: int) -> None:
        """Set a workspace's record."""
        self._run("INSERT OR REPLACE INTO workspaces VALUES (?, ?, ?)", (name, record, sequence))

    def drop_workspace(self, name: str) -> None:
        """Forget a workspace."""
        self._run("DELETE FROM workspaces WHERE name=?", (name,))

    def cached_layers(self, root: bytes | None = None) -> list[CachedLayer]:
        """Return the layer cache (of one root), least recently used first."""
        where, values = ("WHERE root=? ", (root,)) if root is not None else ("", ())
        rows = self._all(f"SELECT * FROM layer_cache {where}ORDER BY last_used_ns", values)
        return [_formed(CachedLayer, row)._replace(synced=bool(row[7])) for row in rows]

    def put_cached_layer(self, row: CachedLayer) -> None:
        """Record a materialised lower (one statement, no lane needed)."""
        self._run("INSERT OR REPLACE INTO layer_cache VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def touch_cached_layer(self, directory: str, now_ns: int) -> None:
        """Note that a cached lower is used now."""
        self._run("UPDATE layer_cache SET last_used_ns=? WHERE directory=?", (now_ns, directory))

    def drop_cached_layer(self, directory: str) -> None:
        """Forget a cached lower."""
        self._run("DELETE FROM layer_cache WHERE directory=?", (directory,))

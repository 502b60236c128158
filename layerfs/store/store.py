"""The store: one directory that holds an environment's whole history, opened.

Owns the life of a store (create, open, close), the lane in which pointers move, and batches. It joins the parts: ``log``
writes and replays moves, ``metadb`` holds their outcome, ``refs`` reads it, ``objects`` reads packs. The order of writes
and what each crash leaves is documented in ``log``. Opening costs a few system calls and no scan: if the open pack is
longer than the database says, somebody is writing right now or died doing so, and only then is the lane tried.

Names in the directory, all 0700 or 0600: ``format``, ``lane.lock``, ``gate.lock``, the locks and the list of ``lease``,
``meta.db``, ``packs/``, ``tmp/``, ``cache/``, ``workspaces/``, ``mnt/``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from layerfs.durable import reserve
from layerfs.durable.atomicfile import Files, storage_errors
from layerfs.durable.lane import DEFAULT_TIMEOUT, LaneLock
from layerfs.durable.metadb import DATABASE_FILE, MetaDb, PackRow, State
from layerfs.errors import (
    AlreadyExists,
    Busy,
    LayerfsError,
    MissingObject,
    NoSpace,
    NotAStore,
    Refused,
    StoreDamaged,
    StoreIoFailed,
    quote,
)
from layerfs.ids import ObjectId, short
from layerfs.objects import packs
from layerfs.objects.database import ObjectDatabase
from layerfs.objects.kinds import Kind
from layerfs.objects.moves import Kept, LayerAdd, Move, Op, PackAdd, PackDrop, RefSet
from layerfs.store import storeformat
from layerfs.store.log import SEAL_BYTES, Log, first_layer, first_log_pack
from layerfs.store.refs import Refs, check_ops, check_ref_names, salvage_moves
from layerfs.store.storeformat import DURABLE, StoreFormat

if TYPE_CHECKING:
    from layerfs.objects.batch import Batch
    from layerfs.objects.bulk import BulkPack
    from layerfs.store.pointers import Pointers

PACKS = b"packs"
SCRATCH = b"tmp"
NO_ROOM = 256 * 1024
"""With less than this free, a database that cannot be opened may be one that SQLite finds no room to open."""

KEPT_ROOM = 128 * 1024
"""Where the reserve was given up, new content leaves this to those who make room."""

MAPPED_ROOM = 64 * 1024
"""What SQLite's map of the WAL takes at most when a store is opened, and some more."""

DIRECTORIES = (PACKS, SCRATCH, b"cache", b"workspaces", b"mnt")
Clock = Callable[[], int]


class Lane:
    """What may be done while the lane is held: read fresh pointers and apply moves."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.refs = store.refs

    def apply(
        self, batch: Batch | None, ops: Sequence[Op], actor: str = "", time_ns: int | None = None
    ) -> int:
        """Make a batch and the operations durable and true, all or nothing; return the move's sequence.

        An operation whose ``old`` is not the value found raises ExpectationFailed and nothing happens. ``batch`` may be
        None when only pointers move; it cannot be used again afterwards.
        """
        return self._store._apply(batch, ops, actor, time_ns)

    def seal(self) -> None:
        """Seal the open pack, so that everything there is lies in sealed ones."""
        self._store._seal()

    def restart(self, kept: Iterable[Kept], actor: str = "") -> int:
        """Make ``kept`` the whole state, durably, and remove the packs that it does not name; return the sequence."""
        return self._store._restart(kept, actor)


class Store:
    """An open store. Close it, or use it in a ``with`` statement."""

    def __init__(
        self, path: bytes, root_fd: int, fmt: StoreFormat, files: Files, clock: Clock, seal_bytes: int
    ) -> None:
        self.path = path
        self.format = fmt
        self.files = files
        self._clock = clock
        self._root_fd = root_fd
        self._database: MetaDb | None = None
        self._objects: ObjectDatabase | None = None
        self.notes: list[str] = []
        self.crowded = False
        """Whether others moved what this process was about to move, the last time (``landing``)."""
        self._packs_fd = self._directory(PACKS)
        try:
            self._scratch_fd = self._directory(SCRATCH)
        except BaseException:
            os.close(self._packs_fd)
            raise
        self._lane = LaneLock(files, root_fd)
        self._state: State | None = None
        """What the database says of the log, as long as the lane is held and nothing has moved."""
        self._log = Log(files, self._packs_fd, self._scratch_fd, fmt.store_id, seal_bytes)

    @classmethod
    def create(
        cls,
        path: bytes,
        *,
        clock: Clock,
        source: bytes | None = None,
        durability: str = DURABLE,
        allow_remote: bool = False,
        files: Files | None = None,
        seal_bytes: int = SEAL_BYTES,
    ) -> Store:
        """Make a new store in ``path``, which must be absent or an empty directory, and open it.

        The ``format`` file is written last, so a directory in which creation stopped is no store and may be tried again.
        """
        kind = storeformat.check_file_system(path, allow_remote)
        files = files or Files(durable=durability == DURABLE)
        root_fd = _make_root(files, path)
        try:
            files.owner = storeformat.check_owner(path, root_fd)
            fmt = StoreFormat(storeformat.VERSION, os.urandom(16), clock(), source, durability)
            if _is_entry(root_fd, storeformat.FORMAT_FILE):
                raise AlreadyExists(f"there is a store already in {quote(path)}")
            _clear_unfinished(files, root_fd, path)
            for name in DIRECTORIES:
                files.make_directory(name, root_fd)
            self = cls(path, root_fd, fmt, files, clock, seal_bytes)
        except BaseException:
            os.close(root_fd)
            raise
        try:
            number = self._log.start()
            self._make_database(State(fmt.store_id, 0, number, packs.HEADER_BYTES, number)).close()
            files.replace(root_fd, storeformat.FORMAT_FILE, storeformat.encode_format(fmt))
            _sync_parent(files, path)
            self._attach()
            self.restore_reserve()
            if kind == "overlay":
                self.notes.append("store lies on overlayfs: the overlay engine is not available in it")
        except BaseException:
            self.close()
            raise
        return self

    @classmethod
    def open(
        cls,
        path: bytes,
        *,
        clock: Clock,
        files: Files | None = None,
        seal_bytes: int = SEAL_BYTES,
        attach: bool = True,
    ) -> Store:
        """Open an existing store; ``attach=False`` leaves the database alone, for :meth:`rebuild_database`."""
        files = files or Files()
        try:
            root_fd = files.open_directory(path)
        except FileNotFoundError:
            raise NotAStore(f"cannot open store {quote(path)}: no such directory") from None
        except LayerfsError as error:
            raise _cannot_open(path, error) from error
        try:
            files.owner = storeformat.check_owner(path, root_fd)
            fmt = storeformat.read_format(files, root_fd, path)
            files.durable = fmt.durability == DURABLE
            self = cls(path, root_fd, fmt, files, clock, seal_bytes)
        except BaseException:
            os.close(root_fd)
            raise
        if attach:
            try:
                try:
                    self._attach()
                except (StoreIoFailed, NoSpace):
                    if self.free_bytes() >= NO_ROOM or not self.release_reserve():
                        raise
                    self._attach()
                self._recover_if_free()
            except BaseException:
                self.close()
                raise
        return self

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close everything; a store may be closed twice."""
        self._detach()
        self._log.close()
        self._lane.close()
        for descriptor in (self._packs_fd, self._scratch_fd, self._root_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._root_fd = self._packs_fd = self._scratch_fd = -1

    @property
    def db(self) -> MetaDb:
        """The pointer database."""
        if self._database is None:
            raise RuntimeError("the store is not attached to its database")
        return self._database

    @property
    def objects(self) -> ObjectDatabase:
        """The object database."""
        if self._objects is None:
            raise RuntimeError("the store is not attached to its database")
        return self._objects

    @property
    def refs(self) -> Refs:
        """The pointers as they are now."""
        return Refs(self.db)

    def batch(self, level: int | None = None, threads: int | None = None) -> Batch:
        """Start a batch of objects; ``level`` is zstd's."""
        from layerfs.durable.lease import take_lease
        from layerfs.objects.batch import Batch

        lease = take_lease(self.files, self._root_fd)
        try:
            base = self.db.state().base
            self.objects.follow(base)
            return Batch(self.objects, self._make_bulk, level, threads, lease, base)
        except BaseException:
            lease.release()
            raise

    @contextmanager
    def lane(self, timeout: float = DEFAULT_TIMEOUT, recover: bool = True) -> Iterator[Lane]:
        """Hold the lane; wait at most ``timeout`` seconds for it, then raise Busy. Only a repair does not recover."""
        self._lane.enter(timeout)
        try:
            if recover:
                self._recover()
            yield Lane(self)
        finally:
            self._state = None
            self._lane.leave()

    def seal_open_pack(self) -> None:
        """Seal the open pack now (before a copy or a repack)."""
        with self.lane() as lane:
            if self.db.state().open_length > packs.HEADER_BYTES:
                lane.seal()

    def rebuild_database(self) -> int:
        """Make the database anew from the packs alone; return how many moves were replayed.

        The old one, if any, is replaced only when the new one is complete. What is not in the packs is lost: the layer
        cache, which is rebuilt by use.
        """
        self._lane.enter()
        try:
            first, sequence = first_log_pack(self.files, self._packs_fd)
            state = State(self.format.store_id, sequence - 1, first, packs.HEADER_BYTES, first)
            self._replace_database(state, self._log.recover)
            return self.db.state().sequence - sequence + 1
        finally:
            self._lane.leave()

    def salvage_database(self, sequence: int, moves: Iterable[Move], numbers: Iterable[int]) -> None:
        """Make the database anew from the moves that could be found, which need not follow from each other.

        Every pack of ``numbers`` is registered in it before it takes the old one's place, or a repair that follows on a
        killed one would take them for nobody's. A restart must follow.
        """
        self._lane.enter()
        try:
            begun = self._log.begin(sequence + 1)
            state = State(self.format.store_id, sequence, begun, packs.HEADER_BYTES, begun)

            def fill(fresh: MetaDb) -> None:
                salvage_moves(fresh, moves, begun)
                with fresh.transaction():
                    for number in numbers:
                        fresh.add_pack(PackRow(number, packs.BULK, sequence))

            self._replace_database(state, fill)
        finally:
            self._lane.leave()

    def first_layer(self) -> tuple[int, int]:
        """Return the move that made main's first layer and where it ends in its log pack; zeros if it is in none."""
        return first_layer(self.files, self._packs_fd)

    def differences(self, known: Pointers, state: State) -> Iterator[str]:
        """Yield what of a database's pointers the log says otherwise; see ``replayed``."""
        from layerfs.store.replayed import differences

        return differences(self.files, self._packs_fd, known, state)

    def keep_database(self) -> None:
        """Use the database as it is, for a log that cannot be replayed: its open pack is retired if it is not whole."""
        self._lane.enter()
        try:
            self._detach()
            self._attach()
            self._log.retire(self.db)
            self.objects.refresh()
        finally:
            self._lane.leave()

    def attach_as_is(self) -> None:
        """Attach to the database without recovering, for a repair."""
        self._detach()
        self._attach()

    def reattach_objects(self) -> None:
        """Open packs and indexes again, after a repair changed them."""
        self.objects.close()
        self._objects = ObjectDatabase(self.files, self._packs_fd, self.db)

    def _replace_database(self, state: State, fill: Callable[[MetaDb], object]) -> None:
        name = b".rebuild.db"
        _remove_database(self.files, self._root_fd, name)
        fresh = self._make_database(state, name)
        try:
            fill(fresh)
        finally:
            fresh.close()
        self._detach()
        _remove_database(self.files, self._root_fd, DATABASE_FILE, keep_main=True)
        self.files.rename(self._root_fd, name, DATABASE_FILE)
        self.files.sync_directory(self._root_fd)
        self._attach()

    @contextmanager
    def upkeep(self) -> Iterator[None]:
        """Hold the lock of collection, repacking and purging; raise Busy when another process does."""
        from layerfs.durable.lease import upkeep

        with upkeep(self.files, self._root_fd):
            yield

    @contextmanager
    def condemned(self, numbers: Sequence[int], wait: float) -> Iterator[None]:
        """Hold packs condemned, see ``lease``; inside :meth:`upkeep`."""
        from layerfs.durable.lease import condemned

        with condemned(self.files, self._root_fd, numbers, wait):
            yield

    @contextmanager
    def leased(self) -> Iterator[frozenset[int]]:
        """Hold a lease without a batch: no collection begins to drop anything meanwhile. Yields the condemned packs."""
        from layerfs.durable.lease import take_lease

        lease = take_lease(self.files, self._root_fd)
        try:
            self.objects.follow(self.db.state().base)
            yield lease.condemned
        finally:
            lease.release()

    def make_bulk(self) -> BulkPack:
        """Start a bulk pack that the caller registers by a move or a restart, and then releases."""
        return self._make_bulk()

    def free_bytes(self) -> int:
        """Return the room there is on the store's file system."""
        return reserve.free_bytes(self._root_fd)

    def has_reserve(self) -> bool:
        """Whether the reserve is there."""
        return reserve.is_there(self._root_fd)

    def release_reserve(self) -> bool:
        """Give up the reserve; return whether that made room."""
        return reserve.release(self.files, self._root_fd)

    def restore_reserve(self) -> bool:
        """Make the reserve again if there is room; return whether it is there."""
        return reserve.restore(self.files, self._root_fd)

    def sweep(self) -> list[bytes]:
        """Remove what dead writers left in ``packs/``; return the names."""
        with self.lane():
            return self._sweep()

    def _sweep(self) -> list[bytes]:
        from layerfs.objects.bulk import sweep

        state = self.db.state()
        registered = {row.number for row in self.db.packs()} | {state.open_pack, state.base}
        return sweep(self.files, self._packs_fd, registered, state.base)

    def _apply(self, batch: Batch | None, ops: Sequence[Op], actor: str, time_ns: int | None) -> int:
        if not self._lane.held:
            raise RuntimeError("a move is applied outside the lane")
        check_ref_names(ops)
        check_ops(self.refs, ops)
        prepared = batch.prepare() if batch is not None else None
        state, self._state = self._state or self.db.state(), None
        self._check_targets(batch, ops)
        self._check_collected(batch, state)
        if batch is not None and self.free_bytes() < KEPT_ROOM and not self.has_reserve():
            raise NoSpace(
                "no space left for new content",
                "free some space, with 'layerfs gc' perhaps; nothing was published",
            )
        if prepared is not None and prepared.bulk is not None:
            ops = (PackAdd(packs.pack_name(prepared.bulk)), *ops)
        sequence = state.sequence + 1
        move = Move(sequence, self._clock() if time_ns is None else time_ns, actor, tuple(ops))
        groups = prepared.groups if prepared is not None else ()
        try:
            sealed = self._log.append(self.db, state, groups, move)
        except NoSpace:
            # Whoever only moves pointers may be about to make room; new content is what the disk is full for.
            if batch is not None or not self.release_reserve():
                raise
            sealed = self._log.append(self.db, state, groups, move)
        if batch is not None:
            batch.applied()
        if sealed or any(isinstance(op, PackAdd | PackDrop) for op in ops):
            self.objects.refresh()
        else:
            self.objects.appended()
        self._take_notes()
        if prepared is not None and prepared.bulk is not None:
            self._sweep()
        return sequence

    def _seal(self) -> None:
        self._state = None
        self._log.seal(self.db)
        self.objects.refresh()

    def _restart(self, kept: Iterable[Kept], actor: str) -> int:
        if not self._lane.held:
            raise RuntimeError("a restart is made outside the lane")
        self._state = None
        sequence = self._log.restart(self.db, kept, actor, self._clock())
        self.objects.refresh()
        self._sweep()
        return sequence

    def _check_targets(self, batch: Batch | None, ops: Sequence[Op]) -> None:
        """Refuse a pointer to an object that is not there or is of another kind."""
        source = self.objects if batch is None else batch
        wanted: dict[tuple[ObjectId, Kind], None] = {}
        for op in ops:
            if isinstance(op, RefSet) and op.new is not None:
                wanted[op.new, Kind.COMMIT] = None
            elif isinstance(op, LayerAdd):
                wanted |= {(op.commit, Kind.COMMIT): None, (op.layer, Kind.LAYER): None}
        for oid, kind in wanted:
            found = source.kind_of(oid)
            if found is None:
                raise MissingObject(f"no such {kind.label}: {short(oid)}")
            if found != kind:
                raise Refused(f"object {short(oid)} is a {found.label}, not a {kind.label}")

    def _check_collected(self, batch: Batch | None, state: State) -> None:
        """Refuse a batch that builds on something a collection dropped while the batch was made.

        What it deduplicated against is safe (``lease``); this is about states it read that nothing reached any more.
        """
        if batch is None or batch.base == state.base:
            return
        for oid in batch.needed():
            if not self.objects.contains(oid):
                raise Busy(
                    f"object {short(oid)}, on which this builds, was collected meanwhile",
                    "do it again from a state that a name reaches",
                )

    def _recover(self) -> None:
        """Inside the lane: make the database equal to the packs, whatever a crash left."""
        state = self.db.state()
        if self._log.unfinished(state) is None:
            self._state = state
            self.objects.follow(state.base)
            return
        self._log.recover(self.db)
        self.objects.refresh()
        self._take_notes()
        self._sweep()

    def _recover_if_free(self) -> None:
        """On opening: recover if nobody is in the lane; otherwise a live writer is, and all is well."""
        if self._log.unfinished(self.db.state()) is None:
            return
        try:
            with self.lane(timeout=0):
                return
        except Busy:
            return

    def _take_notes(self) -> None:
        self.notes.extend(self._log.notes)
        self._log.notes.clear()

    def _make_bulk(self) -> BulkPack:
        from layerfs.objects.bulk import BulkPack

        return BulkPack(self.files, self._packs_fd, self.format.store_id, lambda: self._log.poisoned)

    def _make_database(self, state: State, name: bytes = DATABASE_FILE) -> MetaDb:
        self._make_room_to_open()
        descriptor = self.files.create(self._root_fd, name)
        os.close(descriptor)
        return MetaDb.create(os.path.join(self.path, name), state, self.files.durable)

    def _make_room_to_open(self) -> None:
        """Raise NoSpace where SQLite would rather kill the process.

        It maps its index of the WAL into memory, having written one byte to every 4 KiB of it. Where blocks are smaller
        than that, a page fault may still find no room, and the kernel answers with SIGBUS.
        """
        found = os.fstatvfs(self._root_fd)
        if found.f_frsize >= 4096 or found.f_bavail * found.f_frsize >= MAPPED_ROOM:
            return
        if not self.release_reserve():
            raise NoSpace("no space left to open the store's database", "free some space and try again")

    def _attach(self) -> None:
        path = os.path.join(self.path, DATABASE_FILE)
        if not _is_entry(self._root_fd, DATABASE_FILE):
            raise StoreDamaged(
                f"store has lost its database {quote(path)}", "'layerfs fsck --repair' rebuilds it"
            )
        self._make_room_to_open()
        self._database = MetaDb.open(path, self.format.store_id, self.files.durable)
        self._objects = ObjectDatabase(self.files, self._packs_fd, self._database)

    def _detach(self) -> None:
        if self._objects is not None:
            self._objects.close()
            self._objects = None
        if self._database is not None:
            self._database.close()
            self._database = None

    def _directory(self, name: bytes) -> int:
        try:
            return self.files.open_directory(name, self._root_fd)
        except FileNotFoundError:
            raise StoreDamaged(f"store {quote(self.path)} has lost its directory {quote(name)}") from None


class _Unfinished(NamedTuple):
    """Names that may lie in a directory where creating a store stopped half way."""

    files: frozenset[bytes]
    directories: frozenset[bytes]


_REMAINS = _Unfinished(
    frozenset(
        {
            reserve.RESERVE_FILE,
            DATABASE_FILE,
            DATABASE_FILE + b"-wal",
            DATABASE_FILE + b"-shm",
            DATABASE_FILE + b"-journal",
        }
    ),
    frozenset(DIRECTORIES),
)


def _make_root(files: Files, path: bytes) -> int:
    try:
        files.make_directory(path)
    except FileExistsError:
        pass
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        files.make_directory(path)
    return files.open_directory(path)


def _clear_unfinished(files: Files, root_fd: int, path: bytes) -> None:
    """Empty a directory in which an earlier creation stopped; refuse one that holds anything else."""
    with storage_errors("reading the store's directory"):
        names = [os.fsencode(name) for name in os.listdir(root_fd)]
    strange = [
        name
        for name in names
        if name not in _REMAINS.files and name not in _REMAINS.directories and not name.startswith(b".new-")
    ]
    if strange:
        raise AlreadyExists(f"cannot make a store in {quote(path)}: it holds {quote(strange[0])}")
    for name in names:
        if name not in _REMAINS.directories:
            files.remove(root_fd, name)
            continue
        directory = files.open_directory(name, root_fd)
        try:
            for entry in os.listdir(directory):
                if name != PACKS or packs.file_number(os.fsencode(entry)) not in (None, 1):
                    raise AlreadyExists(f"cannot make a store in {quote(path)}: it holds {quote(name)}")
                files.remove(directory, os.fsencode(entry))
        finally:
            os.close(directory)
        with storage_errors("removing a directory"):
            os.rmdir(name, dir_fd=root_fd)


def _remove_database(files: Files, root_fd: int, name: bytes, keep_main: bool = False) -> None:
    for suffix in (b"-wal", b"-shm") if keep_main else (b"", b"-wal", b"-shm"):
        if _is_entry(root_fd, name + suffix):
            files.remove(root_fd, name + suffix)


def _is_entry(root_fd: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=root_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _sync_parent(files: Files, path: bytes) -> None:
    parent = files.open_directory(os.path.dirname(os.path.abspath(path)))
    try:
        files.sync_directory(parent)
    finally:
        os.close(parent)


def _cannot_open(path: bytes, error: LayerfsError) -> LayerfsError:
    return NotAStore(f"cannot open store {quote(path)}: {error.message}")

"""The log: the open pack, its batches, and the state the database derives from them.

Owns appending a batch with its move, sealing the open pack, and bringing a database up to date after a crash, a power
loss or its own loss. All of it happens inside the lane. The order of writes, and what a crash between each two leaves:

Commit of a batch
  1. *write* frames and move frame at the end of the open pack. After a crash: a torn tail, no whole move beyond the
     database's length; the next to enter the lane truncates it. Nothing was acknowledged.
  2. *fdatasync*. After a crash the batch may be whole: it is replayed, complete, though it was not acknowledged.
  3. *one SQLite transaction*: index rows, refs, layers, reflog, workspaces, sequence and length. Acknowledged. After a
     power loss WAL with ``synchronous=NORMAL`` may have forgotten it; the pack has not, and it is replayed.
  If a step fails instead (no space, I/O error) the pack is truncated to its old length, so nothing is published; if even
  that fails the handle refuses to write again, and the next process finds either the whole batch or a torn tail.

Bulk pack (outside the lane, before 1): pack synced, index synced, both named, directory synced. After a crash before the
  move it is a pack nobody registered, which :func:`~layerfs.objects.bulk.sweep` removes when its lock is free.

Sealing the open pack N, between two batches
  a. write ``N.idx`` (temporary, sync, rename, sync directory). *The index of the open pack exists only if a seal has
     begun*; whoever enters the lane and sees it finishes the seal before anything else.
  b. write the header of the next log pack under a temporary name, sync, name it M, sync directory. M names N as its
     predecessor, so it is found even by a database that has forgotten everything since.
  c. one SQLite transaction: N is sealed, its index rows go, M is open.
  After a crash before b the seal is done again; after b, M is found and c is done.

Restarting (:meth:`Log.restart`, by a collection): the open pack is sealed as above, but M begins with a *restart*: moves
  that say every pointer anew, so that no log pack before M is needed as a log any more. M is written whole before it
  gets its name in step b, and step c applies the restart in its one transaction, which is synced: only then may packs
  that the restart no longer names be removed. After a crash before b nothing has happened; after b, M is found and c is
  done; after c, packs that nobody names are left, which the next sweep removes.

Replay runs the same code for one missing move or for all of them: from the open pack and the length the database knows,
if the last move it knows does end there, apply whole batches; if the pack has an index go on with its successor. A
rebuild starts with an empty database at the newest log pack that begins with a restart, or else at the first. Bytes
beyond the last whole batch are a torn tail only if no whole move more than one step ahead lies behind them: only the last
batch can be unacknowledged, so anything else is damage and is reported, never cut off. A tail that holds one whole move
is kept in ``tmp/`` before it is cut.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from layerfs.durable.atomicfile import Files
from layerfs.durable.metadb import MetaDb, PackRow, State
from layerfs.errors import NoSpace, StoreDamaged, StoreIoFailed
from layerfs.ids import ObjectId
from layerfs.objects import packs
from layerfs.objects.frames import (
    SOLID,
    FrameObject,
    decode_payload,
    encode_frame,
    make_compressor,
    read_objects,
)
from layerfs.objects.kinds import Kind, object_id
from layerfs.objects.moves import Kept, LayerAdd, Move, PackKept, Restart, decode_move, encode_move
from layerfs.objects.packindex import PREFIX_BYTES, IndexBuilder, frame_places, map_index
from layerfs.store.refs import apply_move

if TYPE_CHECKING:
    from layerfs.objects.batch import Group

SEAL_BYTES = 8 * 1024 * 1024
RESTART_BYTES = 4 * 1024 * 1024
RESTART_LEVEL = 9
FIRST_MOVES = 4
"""Among so many the first capture is found, unless the store began without one."""
LOG_TEMPORARY = b".log-new"
TORN_PREFIX = b"torn-"

OpenRowValues = tuple[bytes, int, int, int, int]


class Unfinished(NamedTuple):
    """Why the state on disk is not the state in the database."""

    tail_bytes: int
    seal_begun: bool


class Log:
    """The log of one store. Every method but :meth:`unfinished` must run inside the lane."""

    def __init__(
        self, files: Files, packs_fd: int, scratch_fd: int, store_id: bytes, seal_bytes: int = SEAL_BYTES
    ) -> None:
        self._files = files
        self._packs_fd = packs_fd
        self._scratch_fd = scratch_fd
        self._store_id = store_id
        self._seal_bytes = seal_bytes
        self._open: tuple[int, int] | None = None
        self._poisoned = False
        self.notes: list[str] = []

    def close(self) -> None:
        """Close the open pack."""
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    @property
    def poisoned(self) -> bool:
        """Whether a write failed and could not be taken back, so a move that was given up may yet come true."""
        return self._poisoned

    def start(self) -> int:
        """Create the first log pack of a new store; return its number."""
        return self._new_pack(1, 0)

    def begin(self, first_sequence: int) -> int:
        """Create a log pack that follows none, for a repair; return its number. A restart must follow."""
        return self._new_pack(first_sequence, 0)

    def retire(self, db: MetaDb) -> None:
        """Go on in a new log pack when the open one cannot be brought to what the database says; for a repair."""
        try:
            self.recover(db)
            return
        except StoreDamaged as error:
            self.notes.append(f"open pack is retired: {error.message}")
        self.close()
        state = db.state()
        number = self._new_pack(state.sequence + 1, state.open_pack)
        with db.transaction():
            db.add_pack(PackRow(state.open_pack, packs.LOG, state.sequence))
            db.clear_open()
            db.set_state(state.sequence, number, packs.HEADER_BYTES)

    def unfinished(self, state: State) -> Unfinished | None:
        """Return what a crash may have left (or a live writer is doing right now); None is the usual answer."""
        length = os.fstat(self._descriptor(state.open_pack)).st_size
        begun = _exists(self._packs_fd, packs.index_file(state.open_pack))
        if length == state.open_length and not begun:
            return None
        return Unfinished(length - state.open_length, begun)

    def append(self, db: MetaDb, state: State, groups: Sequence[Group], move: Move) -> bool:
        """Commit a batch: after this returns the move is durable and true. Return whether the open pack was sealed then.

        ``state`` was read from the database in this lane, and the move's operations were checked against it.
        """
        if self._poisoned:
            raise StoreIoFailed("an earlier write to this store failed", "open it again")
        if move.sequence != state.sequence + 1:
            raise RuntimeError("moves are numbered without gaps")
        descriptor = self._descriptor(state.open_pack)
        offset = state.open_length
        parts: list[bytes] = []
        rows: list[OpenRowValues] = []
        for group in groups:
            assert group.frame is not None
            start = 0
            for kind, oid, length in group.listed():
                rows.append((oid[:PREFIX_BYTES], offset, start, length, kind))
                start += length
            parts.append(group.frame)
            offset += len(group.frame)
        parts.append(encode_frame([_move_row(move)], None))
        data = b"".join(parts)
        end = state.open_length + len(data)
        try:
            self._files.write(descriptor, data, state.open_length)
            self._files.sync(descriptor)
            with db.transaction():
                if rows:
                    db.add_open(rows)
                apply_move(db, move, state.open_pack, checked=True)
                db.set_state(move.sequence, state.open_pack, end)
        except BaseException:
            self._take_back(db, descriptor, state.open_length, move.sequence)
            raise
        if end < self._seal_bytes:
            return False
        try:
            self.seal(db)
        except NoSpace as error:
            self.notes.append(f"open pack is not sealed yet: {error.message}")
        return True

    def _take_back(self, db: MetaDb, descriptor: int, length: int, sequence: int) -> None:
        """Cut off a batch whose commit failed, unless the transaction has made it true all the same."""
        self._poisoned = True
        if db.state().sequence < sequence:
            self._files.truncate(descriptor, length)
            self._files.sync(descriptor)
        self._poisoned = False

    def seal(self, db: MetaDb) -> None:
        """Make the open pack a sealed one and start the next."""
        self._write_index(db)
        state = db.state()
        self._switch(db, self._new_pack(state.sequence + 1, state.open_pack))

    def restart(self, db: MetaDb, kept: Iterable[Kept], actor: str, time_ns: int) -> int:
        """Make ``kept`` the whole state, in a new log pack that needs none before it; return the last sequence.

        The open pack is sealed and belongs to the store as long as objects lie in it; the caller names all other packs.
        """
        if self._poisoned:
            raise StoreIoFailed("an earlier write to this store failed", "open it again")
        state = db.state()
        own = [PackKept(packs.pack_name(state.open_pack), packs.LOG, state.sequence)] if db.has_open() else []
        parts = list(_split((*own, *kept)))
        moves = [
            Move(
                state.sequence + 1 + number,
                time_ns,
                actor,
                (Restart(len(parts)), *ops) if not number else ops,
            )
            for number, ops in enumerate(parts)
        ]
        compressor = make_compressor(RESTART_LEVEL)
        data = b"".join(encode_frame([_move_row(move)], compressor) for move in moves)
        self._write_index(db)
        successor = self._new_pack(state.sequence + 1, state.open_pack, data)
        try:
            self._switch(db, successor)
        except BaseException:
            # Were it to stay, the next in the lane would make it true, though the caller takes back what it names.
            self._poisoned = True
            if db.state().open_pack != successor:
                self._files.remove(self._packs_fd, packs.pack_file(successor))
                self._files.sync_directory(self._packs_fd)
            self._poisoned = False
            raise
        return moves[-1].sequence

    def _write_index(self, db: MetaDb) -> None:
        state = db.state()
        builder = IndexBuilder()
        for row in db.open_rows():
            builder.add(row.prefix, row[1:])
        self._files.replace(
            self._packs_fd, packs.index_file(state.open_pack), builder.encode(state.open_length)
        )
        self._files.sync(self._descriptor(state.open_pack))

    def _switch(self, db: MetaDb, successor: int) -> None:
        restart = self._read_restart(successor)
        with db.transaction(sync=bool(restart)):
            state = db.state()
            db.add_pack(PackRow(state.open_pack, packs.LOG, state.sequence))
            db.clear_open()
            sequence, end = state.sequence, packs.HEADER_BYTES
            for batch in restart:
                if batch.move.sequence != sequence + 1:
                    raise StoreDamaged(
                        f"pack {packs.pack_name(successor)} holds move {batch.move.sequence} out of order"
                    )
                apply_move(db, batch.move, successor)
                sequence, end = batch.move.sequence, batch.end
            db.set_state(sequence, successor, end)

    def _read_restart(self, number: int) -> list[LoggedBatch]:
        """Return the moves of the restart that a log pack begins with; none for one that just goes on."""
        descriptor = self._files.open(self._packs_fd, packs.pack_file(number))
        try:
            if not packs.read_header(descriptor).flags & packs.RESTARTS:
                return []
            return read_restart(descriptor, number)
        finally:
            os.close(descriptor)

    def recover(self, db: MetaDb) -> int:
        """Apply every whole batch the database does not know, cut off a torn tail, finish a seal; return the moves."""
        applied = 0
        while True:
            state = db.state()
            descriptor = self._descriptor(state.open_pack)
            successor = self._successor(state.open_pack)
            # A pack with a successor was sealed, even if its index was lost since.
            begun = successor is not None or _exists(self._packs_fd, packs.index_file(state.open_pack))
            applied += self._replay(db, descriptor, successor is not None)
            if not begun:
                return applied
            if successor is None:
                self.seal(db)
                return applied
            self._mend_index(descriptor, state.open_pack)
            self._switch(db, successor)

    def _replay(self, db: MetaDb, descriptor: int, has_successor: bool) -> int:
        state = db.state()
        length = os.fstat(descriptor).st_size
        name = packs.pack_name(state.open_pack)
        if length < state.open_length:
            raise StoreDamaged(
                f"pack {name} is {length} bytes long, {state.open_length} are acknowledged",
                "'layerfs fsck --repair' saves what is whole",
            )
        _check_position(descriptor, state)
        applied = 0
        end = state.open_length
        for batch in _batches(descriptor, state.open_length, length):
            if batch.move.sequence != state.sequence + 1 + applied:
                raise StoreDamaged(f"pack {name} holds move {batch.move.sequence} out of order at {end}")
            with db.transaction():
                db.add_open(batch.rows)
                apply_move(db, batch.move, state.open_pack)
                db.set_state(batch.move.sequence, state.open_pack, batch.end)
            applied += 1
            end = batch.end
        if end < length:
            self._cut_tail(descriptor, name, end, length, state.sequence + applied, has_successor)
        return applied

    def _cut_tail(
        self, descriptor: int, name: str, end: int, length: int, sequence: int, has_successor: bool
    ) -> None:
        behind = [
            move
            for found in packs.find_frame(descriptor, end, length)
            for move in moves_in(found)
            if move.sequence > sequence
        ]
        if has_successor or any(move.sequence > sequence + 1 for move in behind):
            raise StoreDamaged(
                f"pack {name} is damaged at offset {end}, with acknowledged moves behind it",
                "'layerfs fsck --repair' saves what is whole",
            )
        if behind:
            kept = TORN_PREFIX + name.encode("ascii") + b"-%d" % end
            tail = packs.read_exactly(descriptor, end, length - end, "reading a torn tail")
            self._files.replace(self._scratch_fd, kept, tail)
        self._files.truncate(descriptor, end)
        self._files.sync(descriptor)
        self.notes.append(f"cut {length - end} bytes of an unfinished batch off pack {name}")

    def _mend_index(self, descriptor: int, number: int) -> None:
        """Write the index of a sealed pack again if it is not the index of this pack."""
        length = os.fstat(descriptor).st_size
        try:
            index = self._files.open(self._packs_fd, packs.index_file(number))
        except FileNotFoundError:
            self._files.replace(self._packs_fd, packs.index_file(number), build_index(descriptor, length))
            return
        try:
            mapped = map_index(index, length)
            mapped.verify()
            mapped.close()
        except StoreDamaged:
            self._files.replace(self._packs_fd, packs.index_file(number), build_index(descriptor, length))
        finally:
            os.close(index)

    def _successor(self, number: int) -> int | None:
        """Return the log pack that follows pack ``number``."""
        found = [
            candidate
            for candidate, header in log_packs(self._files, self._packs_fd)
            if header.previous == number
        ]
        if len(found) > 1:
            raise StoreDamaged(f"pack {packs.pack_name(number)} has two successors")
        return found[0] if found else None

    def _new_pack(self, first_sequence: int, previous: int, restart: bytes = b"") -> int:
        descriptor = self._files.create(self._packs_fd, LOG_TEMPORARY, exclusive=False)
        try:
            self._files.truncate(descriptor, 0)
            number = max((number for number in _numbers(self._packs_fd)), default=0) + 1
            while True:
                flags = packs.RESTARTS if restart else 0
                header = packs.PackHeader(packs.LOG, self._store_id, number, first_sequence, previous, flags)
                self._files.write(descriptor, packs.encode_header(header) + restart, 0)
                self._files.sync(descriptor)
                try:
                    self._files.rename_new(self._packs_fd, LOG_TEMPORARY, packs.pack_file(number))
                    break
                except FileExistsError:
                    number += 1
        except NoSpace:
            self._files.remove(self._packs_fd, LOG_TEMPORARY)
            raise
        finally:
            os.close(descriptor)
        self._files.sync_directory(self._packs_fd)
        return number

    def _descriptor(self, number: int) -> int:
        if self._open is not None and self._open[0] == number:
            return self._open[1]
        self.close()
        try:
            descriptor = self._files.open(self._packs_fd, packs.pack_file(number), write=True)
        except FileNotFoundError:
            raise StoreDamaged(
                f"open pack {packs.pack_name(number)} is missing",
                "'layerfs fsck --repair' saves what is whole",
            ) from None
        self._open = (number, descriptor)
        return descriptor


class LoggedBatch(NamedTuple):
    """A whole batch found in a log pack."""

    move: Move
    rows: list[OpenRowValues]
    end: int


def _check_position(descriptor: int, state: State) -> None:
    """Raise StoreDamaged unless the last move that the database knows ends in the open pack where the database says.

    Everything behind that place is about to be taken for the database's future, or cut off. A database in which a bit has
    flipped must not have the say in that.
    """
    if state.open_length == packs.HEADER_BYTES:
        fits = state.sequence == packs.read_header(descriptor).first_sequence - 1
    else:
        fits = any(
            found.end == state.open_length
            and any(move.sequence == state.sequence for move in moves_in(found))
            for found in packs.find_frame(descriptor, packs.HEADER_BYTES, state.open_length)
        )
    if not fits:
        raise StoreDamaged(
            f"store's database does not fit its log: no move {state.sequence} ends at {state.open_length} "
            f"in pack {packs.pack_name(state.open_pack)}",
            "'layerfs fsck --repair' makes it anew from the packs",
        )


def _batches(descriptor: int, offset: int, length: int) -> Iterator[LoggedBatch]:
    """Yield whole batches from ``offset`` on; stops where no whole one follows."""
    rows: list[OpenRowValues] = []
    for found in packs.scan_frames(descriptor, offset, length):
        moves = moves_in(found)
        if moves:
            yield LoggedBatch(moves[0], rows, found.end)
            rows = []
        else:
            rows.extend((prefix, *place) for prefix, place in frame_places(found))


def read_moves(descriptor: int, length: int) -> Iterator[tuple[int, Move]]:
    """Yield (offset of the end, move) of every whole batch of a log pack."""
    for batch in _batches(descriptor, packs.HEADER_BYTES, length):
        yield batch.end, batch.move


def first_layer(files: Files, packs_fd: int) -> tuple[int, int]:
    """Return the move that made main's first layer and where it ends; zeros if the log does not begin with the store."""
    number, sequence = first_log_pack(files, packs_fd)
    if sequence != 1:
        return 0, 0
    descriptor = files.open(packs_fd, packs.pack_file(number))
    try:
        for end, move in islice(read_moves(descriptor, os.fstat(descriptor).st_size), FIRST_MOVES):
            if any(isinstance(op, LayerAdd) for op in move.ops):
                return move.sequence, end
    finally:
        os.close(descriptor)
    return 0, 0


def read_restart(descriptor: int, number: int) -> list[LoggedBatch]:
    """Return the moves of the restart that an open log pack begins with; raise StoreDamaged unless all are there."""
    found = _batches(descriptor, packs.HEADER_BYTES, os.fstat(descriptor).st_size)
    first = next(found, None)
    if first is not None and first.move.ops and isinstance(first.move.ops[0], Restart):
        restart = [first, *islice(found, first.move.ops[0].parts - 1)]
        if len(restart) == first.move.ops[0].parts:
            return restart
    raise StoreDamaged(f"pack {packs.pack_name(number)} does not begin with the restart it promises")


def _split(kept: Iterable[Kept]) -> Iterator[tuple[Kept, ...]]:
    """Yield what a restart says in pieces that each fit one move with much room to spare; at least one."""
    part: list[Kept] = []
    size = 0
    for op in kept:
        size += 64 + sum(len(field) for field in op if isinstance(field, str | bytes))
        if part and size > RESTART_BYTES:
            yield tuple(part)
            part, size = [], 0
        part.append(op)
    yield tuple(part)


def _move_row(move: Move) -> tuple[int, ObjectId, bytes]:
    payload = encode_move(move)
    return Kind.MOVE, object_id(Kind.MOVE, payload), payload


def moves_in(found: packs.ScannedFrame) -> list[Move]:
    """Return the move a frame holds: a move frame holds nothing else."""
    if found.head.type != SOLID:
        return []
    rows = read_objects(found.frame, found.head)
    if rows[0].kind != Kind.MOVE:
        return []
    return [_verified_move(found, rows)]


def _verified_move(found: packs.ScannedFrame, rows: list[FrameObject]) -> Move:
    payload = decode_payload(found.frame, found.head)
    if len(rows) != 1 or object_id(Kind.MOVE, payload) != rows[0].oid:
        raise StoreDamaged(f"move frame at {found.offset} does not verify")
    return decode_move(payload)


def build_index(descriptor: int, length: int) -> bytearray:
    """Return the index of a pack, made by scanning it."""
    builder = IndexBuilder()
    for found in packs.scan_frames(descriptor, packs.HEADER_BYTES, length):
        for prefix, place in frame_places(found):
            builder.add(prefix, place)
    return builder.encode(length)


def log_packs(files: Files, packs_fd: int) -> Iterator[tuple[int, packs.PackHeader]]:
    """Yield number and header of every readable log pack."""
    for number in sorted(_numbers(packs_fd)):
        descriptor = files.open(packs_fd, packs.pack_file(number))
        try:
            header = packs.read_header(descriptor)
        except StoreDamaged:
            continue
        finally:
            os.close(descriptor)
        if header.role == packs.LOG and header.number == number:
            yield number, header


def first_log_pack(files: Files, packs_fd: int) -> tuple[int, int]:
    """Return the pack with which a replay of everything begins, and the sequence of its first move."""
    found = [(header.first_sequence, number, header.flags) for number, header in log_packs(files, packs_fd)]
    restarts = [row for row in found if row[2] & packs.RESTARTS]
    begins = restarts or [row for row in found if row[0] == 1]
    if not begins or (not restarts and len(begins) != 1):
        raise StoreDamaged("the first log pack is missing or there are several")
    sequence, number, _ = max(begins)
    return number, sequence


def _numbers(packs_fd: int) -> list[int]:
    return [number for entry in os.listdir(packs_fd) if (number := packs.file_number(os.fsencode(entry)))]


def _exists(dir_fd: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True

"""Repair: what can be made anew is made anew, what is whole is saved, what is bad is set aside, and nothing is deleted.

In this order, inside the lock of upkeep:

1. *Database.* It is replayed from the log when the log is whole. When the log is not, but the database is, the database
   is kept; when neither is, every move that can be found is applied, gaps or not.
2. *Packs.* A pack that is damaged gets an index of its whole frames, so that these can be read; then every object in
   them that verifies is copied into a new pack, and the damaged file is kept under ``quarantine/``. A pack that is gone
   is struck off.
3. *Indexes* that do not verify are made anew by a scan.
4. *The other store*, if one is named: every object that is needed and missing is taken from it, verified.
5. *Log.* If anything of it was lost it begins anew with a restart.

What is then still missing ``fsck`` lists, by commit and path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from layerfs.errors import LayerfsError, MissingObject, StoreDamaged
from layerfs.ids import ObjectId
from layerfs.objects import packs
from layerfs.objects.frames import FrameObject, read_objects
from layerfs.objects.kinds import Kind
from layerfs.objects.links import links_of
from layerfs.objects.moves import LayerAdd, Move, Op, RefSet
from layerfs.objects.packcopy import CopyOptions, copy_frame, delta_objects
from layerfs.objects.packindex import IndexBuilder, frame_places, map_index
from layerfs.store.log import first_log_pack, log_packs, moves_in, read_moves
from layerfs.store.pointers import kept_ops, read_pointers, starts_of
from layerfs.store.store import PACKS, Store

QUARANTINE = b"quarantine"
Clock = Callable[[], int]


def repair_store(path: bytes, clock: Clock, other: bytes | None = None) -> list[str]:
    """Repair a store, with the help of another one if ``other`` names it; return what was done, in words."""
    with Store.open(path, clock=clock, attach=False) as store, store.upkeep():
        repair = _Repair(store, path)
        try:
            repair.database()
            repair.packs()
            if other is not None:
                with Store.open(other, clock=clock) as theirs, theirs.leased():
                    repair.fetch(theirs)
            repair.finish()
        finally:
            repair.close()
        return [*repair.done, *store.notes]


class _Bad(NamedTuple):
    """A pack that is not whole; ``is_there`` False when its file is gone."""

    number: int
    is_there: bool


class _Repair:
    def __init__(self, store: Store, path: bytes) -> None:
        self._store = store
        self._path = path
        self._directory = store.files.open_directory(os.path.join(path, PACKS))
        self._log_is_broken = False
        self.done: list[str] = []

    def close(self) -> None:
        """Close what is open."""
        os.close(self._directory)

    def database(self) -> None:
        """Bring the database up, from the best there is."""
        store = self._store
        if self._database_is_sound():
            if self._log_is_whole():
                self.done.append(f"database made anew from {store.rebuild_database()} moves")
                return
            store.keep_database()
            self.done.append("the log cannot be replayed: database kept as it is")
        else:
            try:
                self.done.append(f"database made anew from {store.rebuild_database()} moves")
                return
            except StoreDamaged as error:
                moves = self._all_moves()
                # With moves lost nobody knows which pack files belong to the store: all are taken to.
                last = max((move.sequence for move in moves), default=0)
                store.salvage_database(last, moves, self._numbers())
                self.done.append(f"{error.message}: database made of the {len(moves)} moves that were found")
        self._log_is_broken = True

    def _database_is_sound(self) -> bool:
        try:
            self._store.attach_as_is()
            return not self._store.db.check()
        except LayerfsError:
            return False

    def _log_is_whole(self) -> bool:
        """Whether the log says exactly as many moves as the database has applied; changes nothing."""
        try:
            state = self._store.db.state()
            registered = {row.number for row in self._store.db.packs()}
            first, expected = first_log_pack(self._store.files, self._directory)
            chain = sorted(
                (header.first_sequence, number)
                for number, header in log_packs(self._store.files, self._directory)
                if (header.first_sequence, number) >= (expected, first)
                and (number in registered or number == state.open_pack)
            )
            for _, number in chain:
                with self._pack(number) as descriptor:
                    length = os.fstat(descriptor).st_size
                    found = list(read_moves(descriptor, length))
                    if [move.sequence for _, move in found] != list(range(expected, expected + len(found))):
                        return False
                    expected += len(found)
                    end = found[-1][0] if found else packs.HEADER_BYTES
                    if number != state.open_pack and end != length:
                        return False
            return expected - 1 >= state.sequence
        except LayerfsError:
            return False

    def _all_moves(self) -> list[Move]:
        """Return every move that can be found, from the newest restart on if there is one, in order."""
        found: dict[int, Move] = {}
        for number in self._numbers():
            with self._pack(number) as descriptor:
                for scanned in packs.find_frame(descriptor, 0, os.fstat(descriptor).st_size):
                    with suppress(LayerfsError):
                        for move in moves_in(scanned):
                            found[move.sequence] = move
        return [found[sequence] for sequence in sorted(found)]

    def packs(self) -> None:
        """Save what is whole of damaged packs, and make indexes anew."""
        store = self._store
        bad: list[_Bad] = []
        for row in store.db.packs():
            try:
                with self._pack(row.number) as descriptor:
                    if not _is_whole(descriptor):
                        self._index_what_is_whole(descriptor, row.number)
                        bad.append(_Bad(row.number, True))
                    elif self._rebuild_index(descriptor, row.number):
                        self.done.append(f"index of pack {packs.pack_name(row.number)} made anew")
            except FileNotFoundError:
                bad.append(_Bad(row.number, False))
        store.reattach_objects()
        if bad:
            self._replace(bad)
            stranded = [_Bad(row.number, True) for row in store.db.packs() if self._is_stranded(row.number)]
            if stranded:
                self._replace(stranded)

    def _is_stranded(self, number: int) -> bool:
        """Whether a pack holds an object that cannot be decoded, because another one that it needs is lost."""
        database = self._store.objects
        with self._pack(number) as descriptor:
            for _, row in delta_objects(descriptor, os.fstat(descriptor).st_size):
                try:
                    database.prefixes(row.oid)
                except LayerfsError:
                    return True
        return False

    def _replace(self, bad: list[_Bad]) -> None:
        store = self._store
        writer = store.make_bulk()
        try:
            for pack in bad:
                name = packs.pack_name(pack.number)
                if not pack.is_there:
                    self.done.append(f"pack {name} is gone: struck off")
                    continue
                saved = self._save(pack.number, writer.append_frame)
                self._set_aside(pack.number)
                self.done.append(
                    f"pack {name} is not whole: {saved} objects saved, the file is in quarantine"
                )
            new = [writer.seal()] if writer.length > packs.HEADER_BYTES else []
            with store.lane(recover=False) as lane:
                gone = {pack.number for pack in bad}
                lane.restart(kept_ops(read_pointers(store.db), gone, new), "fsck --repair")
                for pack in bad:
                    # The sweep leaves what it cannot read; this has its second name already.
                    for file in (packs.pack_file(pack.number), packs.index_file(pack.number)):
                        with suppress(FileNotFoundError):
                            store.files.remove(self._directory, file)
            self._log_is_broken = False
            if new:
                writer.release()
        finally:
            writer.abandon()

    def _save(self, number: int, emit: Callable[[bytes], None]) -> int:
        """Copy every object of a damaged pack that verifies; return how many did."""
        database = self._store.objects
        saved = 0
        with self._pack(number) as descriptor:
            for scanned in packs.find_frame(descriptor, packs.HEADER_BYTES, os.fstat(descriptor).st_size):
                whole = set(_verified(self._store, scanned))
                if not whole:
                    continue
                frame = copy_frame(database, scanned, _These(whole), CopyOptions())
                if frame is not None:
                    emit(frame)
                    saved += len(whole)
        return saved

    def _set_aside(self, number: int) -> None:
        """Give a damaged pack a second name under ``quarantine/``; the sweep takes the first one away."""
        root = self._store.files.open_directory(self._path)
        try:
            with suppress(FileExistsError):
                self._store.files.make_directory(QUARANTINE, root)
            there = self._store.files.open_directory(QUARANTINE, root)
        finally:
            os.close(root)
        try:
            name = packs.pack_file(number)
            with suppress(FileExistsError):
                os.link(name, name, src_dir_fd=self._directory, dst_dir_fd=there, follow_symlinks=False)
            self._store.files.sync_directory(there)
        finally:
            os.close(there)

    def fetch(self, other: Store) -> None:
        """Take what is needed and missing from another store, whose objects verify as they are read."""
        store = self._store
        seen: set[ObjectId] = set()
        fetched = lost = 0
        names = self._lost_names(other)
        with store.batch() as batch:
            waiting = list(starts_of(read_pointers(store.db)))
            waiting += [name.new for name in names if isinstance(name, RefSet) and name.new is not None]
            waiting += [
                oid for name in names if isinstance(name, LayerAdd) for oid in (name.layer, name.commit)
            ]
            while waiting:
                oid = waiting.pop()
                if oid in seen:
                    continue
                seen.add(oid)
                found = _find(store, oid)
                if found is None:
                    found = _find(other, oid)
                    if found is None:
                        lost += 1
                        continue
                    batch.put(*found, oid=oid)
                    fetched += 1
                kind, payload = found
                waiting.extend(link for link in links_of(kind, payload) if link not in seen)
            if fetched or names:
                batch.prepare()
                with store.lane(recover=False) as lane:
                    lane.apply(batch, names, "fsck --repair")
        if names:
            self.done.append(
                f"no name was left: {len(names)} branches, tags and layers taken from the other store"
            )
        if fetched:
            self.done.append(f"{fetched} objects fetched from the other store")
        if lost:
            self.done.append(f"{lost} objects are missing in both stores")

    def _lost_names(self, other: Store) -> list[Op]:
        """Return how the other store's branches, tags and layers are taken where this one has lost all of its own."""
        if self._store.refs.all():
            return []
        theirs = read_pointers(other.db)
        layers: list[Op] = [LayerAdd(row.number, row.layer, row.commit) for row in theirs.layers]
        return [*layers, *(RefSet(name, None, commit, "fsck --repair") for name, commit in theirs.refs)]

    def finish(self) -> None:
        """Begin the log anew if moves were lost."""
        if self._log_is_broken:
            with self._store.lane(recover=False) as lane:
                lane.restart(kept_ops(read_pointers(self._store.db), ()), "fsck --repair")
            self.done.append("the log begins anew with the state as it is")

    def _index_what_is_whole(self, descriptor: int, number: int) -> None:
        length = os.fstat(descriptor).st_size
        builder = IndexBuilder()
        for scanned in packs.find_frame(descriptor, packs.HEADER_BYTES, length):
            with suppress(StoreDamaged):
                for prefix, place in frame_places(scanned):
                    builder.add(prefix, place)
        self._store.files.replace(self._directory, packs.index_file(number), builder.encode(length))

    def _rebuild_index(self, descriptor: int, number: int) -> bool:
        length = os.fstat(descriptor).st_size
        if self._index_is_right(descriptor, number, length):
            return False
        builder = IndexBuilder()
        for scanned in packs.scan_frames(descriptor, packs.HEADER_BYTES, length):
            for prefix, place in frame_places(scanned):
                builder.add(prefix, place)
        self._store.files.replace(self._directory, packs.index_file(number), builder.encode(length))
        return True

    def _index_is_right(self, descriptor: int, number: int, length: int) -> bool:
        try:
            opened = self._store.files.open(self._directory, packs.index_file(number))
        except FileNotFoundError:
            return False
        try:
            index = map_index(opened, length)
        except LayerfsError:
            return False
        finally:
            os.close(opened)
        try:
            index.verify()
            return True
        except LayerfsError:
            return False
        finally:
            index.close()

    def _numbers(self) -> list[int]:
        names = (os.fsencode(name) for name in os.listdir(self._directory))
        return sorted(number for name in names if (number := packs.file_number(name)))

    def _pack(self, number: int) -> _Opened:
        return _Opened(self._store.files.open(self._directory, packs.pack_file(number)))


class _Opened:
    """An open file for a ``with`` statement."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


class _These:
    """The objects to copy out of one frame."""

    def __init__(self, oids: set[ObjectId]) -> None:
        self._oids = oids

    def object(self, row: FrameObject, frame: int) -> bool:
        """Whether the object verified."""
        return row.oid in self._oids

    def prefix(self, oid: ObjectId, prefix: bytes) -> bool:
        """No prefix is trusted: what is saved stands alone."""
        return False


def _verified(store: Store, scanned: packs.ScannedFrame) -> Iterator[ObjectId]:
    """Yield the objects of a whole frame that decode and hash to their ids."""
    try:
        decoded = store.objects.decode(scanned.frame, scanned.head)
        rows = read_objects(scanned.frame, scanned.head)
    except LayerfsError:
        return
    for row in rows:
        if row.kind == Kind.MOVE:
            continue
        with suppress(StoreDamaged, MissingObject):
            decoded.object(row.oid, f"frame at {scanned.offset}")
            yield row.oid


def _is_whole(descriptor: int) -> bool:
    length = os.fstat(descriptor).st_size
    try:
        packs.read_header(descriptor)
    except StoreDamaged:
        return False
    end = packs.HEADER_BYTES
    for scanned in packs.scan_frames(descriptor, end, length):
        end = scanned.end
    return end == length


def _find(store: Store, oid: ObjectId) -> tuple[Kind, bytes] | None:
    """Return an object that is there and verifies."""
    try:
        return store.objects.find(oid)
    except StoreDamaged:
        return None

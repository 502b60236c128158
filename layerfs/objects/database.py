"""The object database: every object of a store, read and verified wherever it lies.

Owns the set of packs as one process sees it, the cache of decoded frames, and the promise that no object is returned
unless its bytes hash to its id. An object of a delta frame is decoded by following prefixes down to an object that has
none. Writers make chains of at most ``MAX_CHAIN`` prefixes and 16 MiB, prefixes included; an object that two of them
stored at once lies in the store twice, with chains of its own, so readers take a copy without prefix where there is one,
never the same copy twice, and chains of up to ``READ_CHAIN``, whatever a pack says.

It never writes; objects get in through ``batch`` and ``store``. Another process may seal the open pack, add packs or drop
them at any time: a miss, or a pack that is gone, re-reads the list of packs, only if the database has changed, before an
object counts as missing, and before that is said the indexes are checked to the last byte. A dropped pack stays readable
for whoever has it open and is closed when nobody reads it any more.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from layerfs.durable.atomicfile import Files
from layerfs.durable.metadb import MetaDb
from layerfs.errors import MissingObject, StoreDamaged
from layerfs.ids import ObjectId, short
from layerfs.objects import frames, packs
from layerfs.objects.decodedframe import DecodedFrame, DeltaFrame, DenseFrame, Frame
from layerfs.objects.kinds import Kind
from layerfs.objects.packfinder import PackFinder, allow_descriptors
from layerfs.objects.packindex import PREFIX_BYTES, PackIndex, Place, map_index, scan_index
from layerfs.objects.source import ReadGroup

if TYPE_CHECKING:
    from zstandard import ZstdDecompressor

CACHE_BYTES = 32 * 1024 * 1024
DECODED_KEPT = 20_000
DELTA_CACHE_BYTES = 16 * 1024 * 1024
MAX_CHAIN = 48
MAX_CHAIN_BYTES = frames.MAX_RAW
READ_CHAIN = 8 * MAX_CHAIN
PREFETCH_THRESHOLD = 4
PREFETCH_DEPTH = 4
OPEN_LOOKUPS_BEFORE_SET = 200
MANY_OBJECTS = 1_000
"""So many are looked for together, in packs that hold as many."""

Value = TypeVar("Value")


class PackMissing(StoreDamaged):
    """A pack's file is not there: dropped by somebody a moment ago, or lost."""

    slug = "pack-missing"


class _PackFile:
    """An open pack. Closed with its last reference, so that dropping it never takes the number from under a reader."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class Decoded(NamedTuple):
    """The payload of an object, how many prefixes were followed for it, and the bytes decoded in all."""

    payload: bytes
    depth: int
    total: int


class Located(NamedTuple):
    """An object found: its pack's number and its place there."""

    pack: int
    place: Place


class ObjectDatabase:
    """An ObjectSource over all packs of a store. Safe to use from several threads."""

    def __init__(self, files: Files, packs_fd: int, db: MetaDb, cache_bytes: int = CACHE_BYTES) -> None:
        self._files = files
        self._packs_fd = packs_fd
        self._db = db
        self._lock = allocate_lock()
        self._descriptors: dict[int, _PackFile] = {}
        self._indexes: dict[int, PackIndex] = {}
        self._sealed: list[int] = []
        self._finder = PackFinder((), self._index)
        self._seen = -1
        self._base = -1
        self._cache: OrderedDict[tuple[int, int], Frame] = OrderedDict()
        self._cache_bytes = cache_bytes
        self._cached = 0
        self._deltas: OrderedDict[bytes, Decoded] = OrderedDict()
        self._delta_bytes = 0
        self._decompressors: list[ZstdDecompressor] = []
        self._values: dict[ObjectId, Any] = {}
        self._open_lookups = 0
        self._open_prefixes: set[bytes] | None = None
        self.index_problems: dict[int, str] = {}
        self.refresh()

    def close(self) -> None:
        """Close every pack and index."""
        for index in self._indexes.values():
            index.close()
        self._indexes.clear()
        self._descriptors.clear()
        self._cache.clear()
        self._deltas.clear()

    def appended(self) -> None:
        """Note that this process added objects to the open pack; the list of packs is what it was."""
        self._open_prefixes = None
        self._open_lookups = 0

    def follow(self, base: int) -> None:
        """Forget packs that were dropped: ``base`` is that of the database now, and only a restart drops packs.

        For whoever is going to rely on what is there. A process that has an index open would find things in it for ever.
        """
        if base != self._base:
            self.refresh()

    def refresh(self) -> None:
        """Read the list of sealed packs again, newest first (what was just written is what is asked for most)."""
        self._seen = self._db.change_counter()
        state = self._db.state()
        self._base, open_pack = state.base, state.open_pack
        self._sealed = [row.number for row in reversed(self._db.packs())]
        if self._finder.numbers != self._sealed:
            self._finder = PackFinder(self._sealed, self._index)
            allow_descriptors(len(self._sealed))
        known = {*self._sealed, open_pack}
        self.appended()
        with self._lock:
            for number in self._descriptors.keys() - known:
                del self._descriptors[number]
                self._indexes.pop(number, None)
                self.index_problems.pop(number, None)

    def read(self, oid: ObjectId, kind: Kind) -> bytes:
        """Return the payload of an object of a known kind."""
        found, payload = self.get(oid)
        if found != kind:
            raise StoreDamaged(f"object {short(oid)} is a {found.label}, not a {kind.label}")
        return payload

    def decoded(self, oid: ObjectId, kind: Kind, decode: Callable[[bytes], Value]) -> Value:
        """Return what ``decode`` makes of an object, kept for the next who asks: every walk meets the same commits.

        One kind is always decoded by one function, to a value that nobody changes.
        """
        found: Value | None = self._values.get(oid)
        if found is None:
            found = decode(self.read(oid, kind))
            if len(self._values) >= DECODED_KEPT:
                self._values.clear()
            self._values[oid] = found
        return found

    def get(self, oid: ObjectId) -> tuple[Kind, bytes]:
        """Return kind and payload; raise MissingObject."""
        while True:
            try:
                located = self._locate(oid)
                return self._frame(located.pack, located.place.frame).object(
                    oid, _where(located), located.place
                )
            except PackMissing:
                if not self._refresh_if_changed():
                    raise

    def find(self, oid: ObjectId) -> tuple[Kind, bytes] | None:
        """Return kind and payload, None for an object that is not there."""
        try:
            return self.get(oid)
        except MissingObject:
            return None

    def contains(self, oid: ObjectId) -> bool:
        """Return whether the store holds an object of this id."""
        return self._lookup_fresh(oid) is not None

    def kind_of(self, oid: ObjectId) -> Kind | None:
        """Return an object's kind as the index has it, without reading it; None when it is not there."""
        located = self._lookup_fresh(oid)
        return None if located is None else Kind(located.place.kind)

    def known(self, oid: ObjectId, condemned: frozenset[int] = frozenset()) -> bool:
        """Return whether the object is surely there; a recent one may be overlooked. For writers: cheap.

        What lies only in ``condemned`` packs, which a collection is about to drop, does not count.
        """
        while True:
            try:
                return self._known(oid[:PREFIX_BYTES], condemned)
            except PackMissing:
                if not self._refresh_if_changed():
                    raise

    def _known(self, prefix: bytes, condemned: frozenset[int]) -> bool:
        for number in self._finder.candidates(prefix):
            if number not in condemned and self._index(number).find(prefix) is not None:
                return True
        if self._open_prefixes is None:
            if self._open_lookups < OPEN_LOOKUPS_BEFORE_SET:
                self._open_lookups += 1
                return self._db.find_open(prefix) is not None
            self._open_prefixes = {row.prefix for row in self._db.open_rows()}
        return prefix in self._open_prefixes

    def locate(self, oid: ObjectId) -> Located:
        """Return where an object lies; raise MissingObject."""
        return self._locate(oid)

    def read_many(self, oids: Iterable[ObjectId]) -> Iterator[tuple[ObjectId, Kind, bytes]]:
        """Yield the objects in the order of the packs, each once, decoding each frame once and ahead of the reader."""
        groups = self.read_groups(oids)
        if len(groups) < PREFETCH_THRESHOLD:
            for group in groups:
                yield from group()
            return
        from concurrent.futures import Future, ThreadPoolExecutor

        with ThreadPoolExecutor(2, "layerfs-read") as pool:
            ahead: deque[Future[list[tuple[ObjectId, Kind, bytes]]]] = deque()
            try:
                for group in groups:
                    ahead.append(pool.submit(group))
                    if len(ahead) == PREFETCH_DEPTH:
                        yield from ahead.popleft().result()
                while ahead:
                    yield from ahead.popleft().result()
            finally:
                for future in ahead:
                    future.cancel()

    def read_groups(self, oids: Iterable[ObjectId]) -> list[ReadGroup]:
        """Return how to read the objects: one call for each frame, in the order of the packs, which decodes it once.

        Calls may come from several threads, and each returns what it read in the order in which it lies there.
        """
        wanted: dict[tuple[int, int], list[tuple[int, ObjectId, Place]]] = {}
        for oid, pack, place in self._locate_many(list(dict.fromkeys(oids))):
            wanted.setdefault((pack, place.frame), []).append((place.start, oid, place))
        # Few frames may be in the cache already, and stay there; many would only push everything else out.
        load = self._frame if len(wanted) < PREFETCH_THRESHOLD else self._read_frame
        return [partial(self._read_group, load, *at, wanted[at]) for at in sorted(wanted)]

    def _read_group(
        self,
        load: Callable[[int, int], Frame],
        pack: int,
        offset: int,
        rows: list[tuple[int, ObjectId, Place]],
    ) -> list[tuple[ObjectId, Kind, bytes]]:
        try:
            frame = load(pack, offset)
        except PackMissing:  # dropped since the objects were located
            return [(oid, *self.get(oid)) for _, oid, _ in rows]
        where = f"pack {packs.pack_name(pack)}, frame at {offset}"
        rows.sort()
        return [(oid, *frame.object(oid, where, place)) for _, oid, place in rows]

    def resolve_prefix(self, hex_prefix: str, kind: Kind | None = None, limit: int = 100) -> list[ObjectId]:
        """Return the ids (of one kind) that begin with these hex digits, in id order, at most ``limit``."""
        digits = hex_prefix.lower()
        if len(digits) > 64 or any(digit not in "0123456789abcdef" for digit in digits):
            return []
        self._refresh_if_changed()
        found: set[ObjectId] = set()
        for pack, place in self._starting_with(digits):
            if kind is not None and place.kind != kind:
                continue
            for row in self._frame(pack, place.frame).rows.values():
                if row.start == place.start and row.kind == place.kind and row.oid.hex().startswith(digits):
                    found.add(row.oid)
            if len(found) >= limit:
                break
        return sorted(found)

    def _starting_with(self, digits: str) -> Iterator[tuple[int, Place]]:
        for number in self._sealed:
            for place in self._index(number).starting_with(digits):
                yield number, place
        low = bytes.fromhex(digits[:32].ljust(32, "0"))
        high = bytes.fromhex(digits[:32].ljust(32, "f"))
        for open_pack, row in self._db.find_open_range(low, high):
            yield open_pack, Place(row.frame, row.start, row.length, row.kind)

    def pack_numbers(self) -> list[int]:
        """Return the sealed packs, newest first."""
        return list(self._sealed)

    def index(self, number: int) -> PackIndex:
        """Return the index of a sealed pack."""
        return self._index(number)

    def sound_index(self, number: int) -> PackIndex:
        """Return the index of a sealed pack, checked to the last byte: for whoever drops what it does not list."""
        index = self._index(number)
        try:
            index.verify()
        except StoreDamaged as error:
            raise StoreDamaged(
                f"the index of pack {packs.pack_name(number)} is damaged",
                "'layerfs fsck --repair' rebuilds it",
            ) from error
        return index

    def pack_descriptor(self, number: int) -> int:
        """Return an open descriptor of a pack, owned by the database."""
        return self._descriptor(number).descriptor

    def _locate(self, oid: ObjectId) -> Located:
        located = self._lookup_fresh(oid)
        if located is not None:
            return located
        for number in self._sealed:
            try:
                self.sound_index(number)
            except StoreDamaged as error:
                raise StoreDamaged(
                    f"object {short(oid)} is not found, and {error.message}", error.hint
                ) from error
        raise MissingObject(f"no such object: {oid.hex()}")

    def _locate_many(self, oids: list[ObjectId]) -> Iterator[tuple[ObjectId, int, Place]]:
        """Locate many objects: in each large pack all of them at once, one by one what is left."""
        left = oids
        for number in self._sealed if len(oids) >= MANY_OBJECTS else ():
            try:
                index = self._index(number)
            except PackMissing:  # dropped a moment ago; looking one by one finds out where everything went
                break
            if index.count < MANY_OBJECTS:
                continue
            places = index.find_many(left)
            missing: list[ObjectId] = []
            for oid, place in zip(left, places, strict=True):
                if place is None:
                    missing.append(oid)
                else:
                    yield oid, number, place
            left = missing
        for oid in left:
            pack, place = self._locate(oid)
            yield oid, pack, place

    def _lookup_fresh(self, oid: ObjectId) -> Located | None:
        while True:
            try:
                located = self._lookup(oid)
            except PackMissing:
                if not self._refresh_if_changed():
                    raise
            else:
                if located is not None or not self._refresh_if_changed():
                    return located

    def _refresh_if_changed(self) -> bool:
        if self._db.change_counter() == self._seen:
            return False
        self.refresh()
        return True

    def _lookup(self, oid: ObjectId) -> Located | None:
        prefix = oid[:PREFIX_BYTES]
        for number in self._finder.candidates(prefix):
            place = self._index(number).find(prefix)
            if place is not None:
                return Located(number, place)
        found = self._db.find_open(prefix)
        if found is None:
            return None
        open_pack, row = found
        return Located(open_pack, Place(row.frame, row.start, row.length, row.kind))

    def _descriptor(self, number: int) -> _PackFile:
        descriptor = self._descriptors.get(number)
        if descriptor is None:
            with self._lock:
                descriptor = self._descriptors.get(number)
                if descriptor is None:
                    try:
                        descriptor = _PackFile(self._files.open(self._packs_fd, packs.pack_file(number)))
                    except FileNotFoundError:
                        raise PackMissing(f"pack {packs.pack_name(number)} is missing") from None
                    self._descriptors[number] = descriptor
        return descriptor

    def _index(self, number: int) -> PackIndex:
        index = self._indexes.get(number)
        if index is None:
            pack = self._descriptor(number)
            with self._lock:
                index = self._indexes.get(number)
                if index is None:
                    index = self._indexes[number] = self._load_index(number, pack.descriptor)
        return index

    def _load_index(self, number: int, pack: int) -> PackIndex:
        """Map the index; without a usable one the pack is scanned: slow, noted, but right."""
        length = os.fstat(pack).st_size
        try:
            descriptor = self._files.open(self._packs_fd, packs.index_file(number))
            try:
                return map_index(descriptor, length)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, StoreDamaged) as error:
            missing = isinstance(error, FileNotFoundError)
            self.index_problems[number] = "pack index is missing" if missing else str(error)
            return scan_index(pack, length)

    def _frame(self, pack: int, offset: int) -> Frame:
        key = (pack, offset)
        with self._lock:
            frame = self._cache.get(key)
            if frame is not None:
                self._cache.move_to_end(key)
                return frame
        frame = self._read_frame(pack, offset)
        with self._lock:
            if key not in self._cache:
                self._cache[key] = frame
                self._cached += frame.weight
                while self._cached > self._cache_bytes and len(self._cache) > 1:
                    _, old = self._cache.popitem(last=False)
                    self._cached -= old.weight
        return frame

    def _read_frame(self, pack: int, offset: int) -> Frame:
        try:
            opened = self._descriptor(pack)
            frame, head = packs.read_frame(opened.descriptor, offset)
            return self.decode(frame, head)
        except PackMissing:
            raise
        except StoreDamaged as error:
            where = f"pack {packs.pack_name(pack)}, frame at {offset}"
            raise StoreDamaged(
                f"{error.message} ({where})", "'layerfs fsck' names what is affected"
            ) from error

    def decode(self, frame: bytes, head: frames.FrameHead) -> Frame:
        """Decode a checked frame; of a delta frame the list of what it holds and the streams."""
        try:
            decompressor = self._decompressors.pop()
        except IndexError:
            import zstandard

            decompressor = zstandard.ZstdDecompressor()
        try:
            payload = frames.read_payload(frame, head, decompressor)
        finally:
            self._decompressors.append(decompressor)
        if head.type == frames.DELTA:
            return DeltaFrame(payload, frames.read_deltas(payload, head), self._resolve_payload)
        if head.type == frames.DENSE:
            return DenseFrame(payload, head)
        return DecodedFrame(payload, frame, head)

    def prefix(self, oid: ObjectId) -> Decoded | None:
        """Return an object for use as a prefix, and what it takes to decode it; None when it cannot be had.

        Not verified: whatever is decoded with it is.
        """
        try:
            located = self._lookup_fresh(oid)
            return None if located is None else self._decoded_at(located)
        except (StoreDamaged, MissingObject):
            return None

    def prefixes(self, oid: ObjectId, most: int | None = None) -> list[ObjectId]:
        """Return the prefixes (16 bytes of an id) that decoding an object needs: the nearest ones, at most ``most``."""
        found: list[ObjectId] = []
        located = self._locate(oid)
        passed: set[Located] = set()
        while True:
            frame = self._frame(located.pack, located.place.frame)
            prefix = frame.at(located.place).prefix if isinstance(frame, DeltaFrame) else None
            if prefix is None:
                return found
            found.append(ObjectId(prefix))
            if len(found) == most:
                return found
            passed.add(located)
            located = self._follow(prefix, passed)

    def _follow(self, prefix: bytes, passed: set[Located]) -> Located:
        """Return where a prefix is read: a copy that has none itself if there is one, never one passed before."""
        if len(passed) > READ_CHAIN:
            raise StoreDamaged("an object's chain of prefixes is too deep")
        located = self._lookup_fresh(ObjectId(prefix))
        if located is None:
            raise MissingObject(f"no such object: {prefix.hex()}…")
        copies = self._copies(prefix)
        if len(copies) < 2 and located not in passed:
            return located
        left = [copy for copy in copies if copy not in passed]
        if not left:
            raise StoreDamaged("an object's chain of prefixes is too deep: it is a ring")
        alone = (
            copy for copy in left if not isinstance(self._frame(copy.pack, copy.place.frame), DeltaFrame)
        )
        return next(alone, left[0])

    def _copies(self, prefix: bytes) -> list[Located]:
        """Return every place in which an object lies."""
        found = [(number, self._index(number).find(prefix)) for number in self._finder.candidates(prefix)]
        copies = [Located(number, place) for number, place in found if place is not None]
        there = self._db.find_open(prefix)
        if there is not None:
            open_pack, row = there
            copies.append(Located(open_pack, Place(row.frame, row.start, row.length, row.kind)))
        return copies

    def _decoded_at(self, located: Located) -> Decoded:
        place = located.place
        frame = self._frame(located.pack, place.frame)
        if isinstance(frame, DeltaFrame):
            return self._resolve(frame, frame.at(place))
        return Decoded(frame.at(place), 0, len(frame.payload))

    def _resolve_payload(self, frame: DeltaFrame, row: frames.DeltaObject) -> bytes:
        return self._resolve(frame, row).payload

    def _resolve(self, frame: DeltaFrame, row: frames.DeltaObject) -> Decoded:
        """Decode one object of a delta frame, from the nearest prefix that is known or has none itself."""
        chain: list[tuple[DeltaFrame, frames.DeltaObject]] = []
        passed: set[Located] = set()
        base: Decoded | None = None
        while base is None:
            with self._lock:
                base = self._deltas.get(row.oid)
                if base is not None:
                    self._deltas.move_to_end(row.oid)
                    break
            chain.append((frame, row))
            if row.prefix is None:
                break
            located = self._follow(row.prefix, passed)
            passed.add(located)
            below = self._frame(located.pack, located.place.frame)
            if isinstance(below, DeltaFrame):
                frame, row = below, below.at(located.place)
            else:
                base = self._decoded_at(located)
        depth, total = (0, 0) if base is None else (base.depth, base.total)
        if depth + len(chain) > READ_CHAIN:
            raise StoreDamaged("an object's chain of prefixes is too deep")
        if total + sum(step.length for _, step in chain) > MAX_CHAIN_BYTES:
            raise StoreDamaged("an object's chain of prefixes is too long")
        for step_frame, step in reversed(chain):
            payload = frames.read_stream(step_frame.data, step, None if base is None else base.payload)
            base = Decoded(payload, depth if base is None else base.depth + 1, total + step.length)
            total = base.total
            self._keep_delta(step.oid, base)
        assert base is not None
        return base

    def _keep_delta(self, oid: bytes, decoded: Decoded) -> None:
        with self._lock:
            if oid in self._deltas:
                return
            self._deltas[oid] = decoded
            self._delta_bytes += len(decoded.payload) + 200
            while self._delta_bytes > DELTA_CACHE_BYTES:
                _, old = self._deltas.popitem(last=False)
                self._delta_bytes -= len(old.payload) + 200


def _where(located: Located) -> str:
    return f"pack {packs.pack_name(located.pack)}, frame at {located.place.frame}"

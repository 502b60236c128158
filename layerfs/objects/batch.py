"""Batches: objects on their way into a store.

Owns grouping, deduplication and compression of what one operation writes, all outside the lane. ``put`` hashes, asks
whether the object is known, and appends to a group; full groups are compressed by background threads (zstd lets go of the
GIL) and come out in the order they were filled. Chunks go 1 MiB to a frame, everything else 256 KiB, so that reading a
tree node never costs more than that. A small batch stays in memory until ``store`` appends it to the open pack; a big one
writes a bulk pack of its own as it goes, and what is in flight is bounded, so memory is bounded too.

The caller of ``put`` may name an object of the store that is ``like`` the new one, usually the version before. Such
objects share a delta frame, in which each is compressed with the one it is like as its prefix, as long as the chain that
makes is short. No chain can become a ring: an object that the store has by the time its prefix is read gets none.

Invariant: nothing of a batch is visible to anybody before the move that ``store`` writes. A batch reads its own objects
back, so trees just built can be edited before they are committed. ``put`` may be called from several threads.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import itemgetter
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, NamedTuple

from layerfs.errors import MissingObject, StoreDamaged
from layerfs.ids import ID_BYTES, ObjectId, short
from layerfs.objects import frames
from layerfs.objects.bulk import BulkPack
from layerfs.objects.database import MAX_CHAIN, MAX_CHAIN_BYTES, Decoded, ObjectDatabase, Value
from layerfs.objects.decodedframe import Frame
from layerfs.objects.kinds import Kind, object_id
from layerfs.objects.links import links_of
from layerfs.objects.packedmap import PackedMap

if TYPE_CHECKING:
    from zstandard import ZstdCompressor

    from layerfs.durable.lease import Lease

LEVEL = 9
BULK_LEVEL = 2
BULK_BEGINS_BYTES = 64 * 1024 * 1024
"""What makes a store, and what comes in bulk later, is compressed at a quarter of the cost, 17% larger until repacked."""
CONTENT_DELTA, NODE_DELTA = (9, 600), (6, 96)
"""The level of streams, and how long one may be without a look at older versions. Measured on 131 states of a public
history: contents take 4% less at level 9 than at 6, nodes nothing; level 12 would save 2% more for eight times the work.
Two older versions save 9% of contents, for a fourth of the work, and 11% of nodes; chains are a quarter shorter. A third
one would save nothing, and shorter streams are not worth the look."""
OLDER_VERSIONS = 2
TRIAL_LEVEL = 1
DELTA_FRAME_LEVEL = 12
"""The streams of a frame together: 4% less than at level 9, for a few milliseconds in a thousand objects."""
DELTA_GROUP_OBJECTS = 1024
GROUP_OBJECTS = 8 * 1024
"""Most objects in a group: half a dozen groups are in flight, and a tiny object takes 250 bytes besides its own."""
GATHERED_BYTES = 2048
LEAST_PREFIXED = 32
"""Shorter objects are not worth a prefix."""
CHUNK_GROUP_BYTES = 1024 * 1024
NODE_GROUP_BYTES = 256 * 1024
BULK_BYTES = 8 * 1024 * 1024
BULK_OBJECTS = 2_000
MAX_THREADS = 8
READ_BACK_FRAMES = 16
_NUMBER_BYTES = 4


class Group:
    """Objects that will share a frame, in the order they were put; ``likes`` is None for a solid frame."""

    __slots__ = ("frame", "likes", "number", "offset", "prefixes", "raw", "rows")

    def __init__(self, number: int, likes: dict[ObjectId, ObjectId] | None = None) -> None:
        self.number = number
        self.rows: dict[ObjectId, tuple[int, bytes]] = {}
        self.likes = likes
        self.prefixes: list[ObjectId] = []
        self.raw = 0
        self.frame: bytes | None = None
        self.offset = -1

    def listed(self) -> list[tuple[int, ObjectId, int]]:
        """Return (kind, id, length) of the objects, as a pack index wants them."""
        return [(kind, oid, len(payload)) for oid, (kind, payload) in self.rows.items()]

    def encode(self, compressor: ZstdCompressor, database: ObjectDatabase) -> None:
        """Make the frame; this is the work the threads do."""
        if self.likes is None:
            rows = [(kind, oid, payload) for oid, (kind, payload) in self.rows.items()]
            self.frame = frames.encode_frame(rows, compressor)
            return
        deltas = []
        for oid, (kind, payload) in self.rows.items():
            prefix, stream = _encode_like(database, oid, payload, self.likes.get(oid), kind)
            if prefix is not None:
                self.prefixes.append(ObjectId(prefix))
            deltas.append(frames.DeltaRow(kind, oid, len(payload), prefix, stream))
        self.frame = frames.encode_delta_frame(deltas, compressor)


def _encode_like(
    database: ObjectDatabase, oid: ObjectId, payload: bytes, like: ObjectId | None, kind: int
) -> tuple[bytes | None, bytes]:
    """Return an object's prefix and stream: with what it is like, with one that this was made from, or alone."""
    level, small = CONTENT_DELTA if kind == Kind.CHUNK else NODE_DELTA
    best: tuple[bytes, bytes] | None = None
    chosen: tuple[ObjectId, bytes] | None = None
    first, least = b"", 0
    for prefix, found in () if like is None else _candidates(database, like):
        if found.depth >= MAX_CHAIN or found.total + len(payload) > MAX_CHAIN_BYTES:
            continue
        if best is None:
            first = found.payload
            best = prefix[: frames.PREFIX_BYTES], frames.encode_stream(payload, found.payload, level)
            if len(best[1]) <= small:
                break
            continue
        least = least or len(frames.encode_stream(payload, first, TRIAL_LEVEL))
        length = len(frames.encode_stream(payload, found.payload, TRIAL_LEVEL))
        if length < least:
            chosen, least = (prefix, found.payload), length
    if best is not None and chosen is not None:
        stream = frames.encode_stream(payload, chosen[1], level)
        if len(stream) < len(best[1]):
            best = chosen[0][: frames.PREFIX_BYTES], stream
    # Asked after the last prefix was read, so that there is no ring.
    if best is not None and database.contains(oid):
        best = None
    if best is not None and len(best[1]) * 2 < len(payload):
        return best
    alone = frames.encode_stream(payload, None, level)
    return (None, alone) if best is None or len(alone) <= len(best[1]) else best


def _candidates(database: ObjectDatabase, like: ObjectId) -> Iterator[tuple[ObjectId, Decoded]]:
    """Yield what may serve an object as its prefix: what it is like, then the versions before that.

    Where lines of work take turns, the version before the last is often the closer one. When the chain is full, what it
    began with is all there is: it is like the object as well, only less so.
    """
    found = database.prefix(like)
    if found is None:
        return
    older: list[ObjectId] = []
    if found.depth:
        with suppress(StoreDamaged, MissingObject):
            older = database.prefixes(like, None if found.depth >= MAX_CHAIN else OLDER_VERSIONS)
    if found.depth >= MAX_CHAIN:
        older = older[-1:]
    else:
        yield like, found
    for prefix in older:
        found = database.prefix(prefix)
        if found is not None:
            yield prefix, found


class Prepared(NamedTuple):
    """What ``store`` writes for a batch: frames for the open pack, and the number of a sealed bulk pack."""

    groups: list[Group]
    bulk: int | None


class BatchStats(NamedTuple):
    """What went through a batch: objects and bytes put, of these new, and what the new ones take in frames."""

    put_objects: int
    put_bytes: int
    new_objects: int
    new_bytes: int
    stored_bytes: int


class Batch:
    """An ObjectSink, and an ObjectSource over the store and itself."""

    def __init__(
        self,
        database: ObjectDatabase,
        make_bulk: Callable[[], BulkPack],
        level: int | None = None,
        threads: int | None = None,
        lease: Lease | None = None,
        base: int = 0,
    ) -> None:
        self.base = base
        self._lease = lease
        self._condemned = frozenset() if lease is None else lease.condemned
        self._database = database
        self._make_bulk = make_bulk
        self._level = level
        self._thread_limit = threads or min(MAX_THREADS, os.cpu_count() or 1)
        self._lock = Lock()
        self._known = PackedMap(ID_BYTES, _NUMBER_BYTES)
        self._prefixes: set[ObjectId] = set()
        self._live: dict[int, Group] = {}
        self._offsets: dict[int, int] = {}
        self._next_group = 0
        self._chunks = self._new_group()
        self._nodes = self._new_group()
        self._deltas = self._new_group({})
        self._ready: list[Group] = []
        self._bulk: BulkPack | None = None
        self._bulk_number: int | None = None
        self._pipeline: _Pipeline | None = None
        self._compressors = _Compressors()
        self._is_first = not database.pack_numbers()
        self._read_back: OrderedDict[int, Frame] = OrderedDict()
        self._put_objects = self._put_bytes = self._new_bytes = self._stored_bytes = 0
        self._closed = False

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def stats(self) -> BatchStats:
        """Return counts so far; the stored bytes are whole after :meth:`prepare`."""
        return BatchStats(
            self._put_objects, self._put_bytes, len(self._known), self._new_bytes, self._stored_bytes
        )

    def put(
        self,
        kind: Kind,
        payload: bytes | memoryview,
        oid: ObjectId | None = None,
        *,
        like: ObjectId | None = None,
    ) -> ObjectId:
        """Store an object unless it is known.

        ``oid`` is its id when the caller has hashed it already; ``like`` an object of the store that is probably much
        like it, which costs little to say and is only a hint.
        """
        if oid is None:
            oid = object_id(kind, payload)
        length = len(payload)
        with self._lock:
            self._put_objects += 1
            self._put_bytes += length
            if oid in self._known or self._database.known(oid, self._condemned):
                return oid
            if self._closed:
                raise RuntimeError("batch is closed")
            if kind == Kind.MOVE:
                raise ValueError("moves are written by the store only")
            if like is not None and length >= LEAST_PREFIXED and like != oid and self._may_prefix(like):
                group = self._deltas
            else:
                like = None
                group = self._chunks if kind == Kind.CHUNK else self._nodes
            if group.raw + length > frames.MAX_RAW:
                group = self._close_group(group)
            self._known.put(oid, group.number)
            group.rows[oid] = (kind, payload if type(payload) is bytes else bytes(payload))
            group.raw += length
            self._new_bytes += length
            most = GROUP_OBJECTS
            if like is not None:
                assert group.likes is not None
                group.likes[oid] = like
                most = DELTA_GROUP_OBJECTS
            limit = NODE_GROUP_BYTES if group is self._nodes else CHUNK_GROUP_BYTES
            if group.raw >= limit or len(group.rows) >= most:
                self._close_group(group)
        return oid

    def _may_prefix(self, like: ObjectId) -> bool:
        """Whether an object lies in the store and surely stays: chains of prefixes cross packs, so none while some go."""
        return not self._condemned and like not in self._known

    def contains(self, oid: ObjectId) -> bool:
        """Return whether the batch or the store holds an object."""
        return self._holds(oid) or self._database.contains(oid)

    def kind_of(self, oid: ObjectId) -> Kind | None:
        """Return an object's kind, None when neither the batch nor the store has it."""
        return self.get(oid)[0] if self._holds(oid) else self._database.kind_of(oid)

    def read(self, oid: ObjectId, kind: Kind) -> bytes:
        """Return the payload of an object of the batch or the store."""
        if not self._holds(oid):
            return self._database.read(oid, kind)
        found, payload = self.get(oid)
        if found != kind:
            raise StoreDamaged(f"object {short(oid)} is a {found.label}, not a {kind.label}")
        return payload

    def decoded(self, oid: ObjectId, kind: Kind, decode: Callable[[bytes], Value]) -> Value:
        """Return what ``decode`` makes of an object; only those of the store are kept."""
        return decode(self.read(oid, kind)) if self._holds(oid) else self._database.decoded(oid, kind, decode)

    def get(self, oid: ObjectId) -> tuple[Kind, bytes]:
        """Return kind and payload of an object of the batch or the store."""
        with self._lock:
            number = None if self._closed else self._known.get(oid)
            if number is None:
                return self._database.get(oid)
            group = self._live.get(number)
            row = None if group is None else group.rows.get(oid)
            if row is not None:
                return Kind(row[0]), row[1]
            return self._read_bulk(number).object(oid, "bulk pack being written")

    def prepare(self) -> Prepared:
        """Finish compression and seal the bulk pack, if there is one. Call it before entering the lane.

        More may be put afterwards (a merge commit made inside the lane): it goes to the open pack.
        """
        with self._lock:
            self._gather_small()
            for group in (self._chunks, self._nodes, self._deltas):
                if group.rows:
                    self._close_group(group)
        if self._pipeline is not None:
            self._pipeline.finish()
            self._pipeline = None
        if self._bulk is not None and self._bulk_number is None:
            self._bulk_number = self._bulk.seal()
        return Prepared(list(self._ready), self._bulk_number)

    def _gather_small(self) -> None:
        """Let a few small objects travel in the delta frame: a frame of their own would cost more than they do."""
        for group in (self._chunks, self._nodes):
            if self._deltas.rows and group.rows and group.raw <= GATHERED_BYTES:
                for oid in group.rows:
                    self._known.change(oid, self._deltas.number)
                self._deltas.rows.update(group.rows)
                self._deltas.raw += group.raw
                group.rows = {}
                group.raw = 0

    def applied(self) -> None:
        """Note that a move has made the batch true; the bulk pack belongs to the store now."""
        self._closed = True
        self._live.clear()
        self._ready.clear()
        if self._bulk is not None:
            self._bulk.release()
        self._release_lease()

    def close(self) -> None:
        """Drop a batch; unless it was applied nothing of it remains."""
        if self._pipeline is not None:
            self._pipeline.stop()
            self._pipeline = None
        if not self._closed and self._bulk is not None:
            self._bulk.abandon()
        self._closed = True
        self._live.clear()
        self._read_back.clear()
        self._release_lease()

    def _release_lease(self) -> None:
        if self._lease is not None:
            self._lease.release()

    def needed(self) -> Iterator[ObjectId]:
        """Yield what the batch's own objects name without holding it: what the store must have when they are true."""
        for oid, _ in sorted(self._known.items(), key=itemgetter(1)):  # group by group: each is decoded once
            kind, payload = self.get(ObjectId(oid))
            yield from (link for link in links_of(kind, payload) if link not in self._known)
        yield from self._prefixes

    def _holds(self, oid: ObjectId) -> bool:
        return not self._closed and oid in self._known

    def _new_group(self, likes: dict[ObjectId, ObjectId] | None = None) -> Group:
        group = Group(self._next_group, likes)
        self._next_group += 1
        self._live[group.number] = group
        return group

    def _close_group(self, group: Group) -> Group:
        """Send a group on its way (under the lock) and return its successor."""
        successor = self._new_group(None if group.likes is None else {})
        if group is self._chunks:
            self._chunks = successor
        elif group is self._deltas:
            self._deltas = successor
        else:
            self._nodes = successor
        small = self._pipeline is None and self._new_bytes < CHUNK_GROUP_BYTES
        level = self._level_now() if group.likes is None else max(self._level_now(), DELTA_FRAME_LEVEL)
        if small or self._bulk_number is not None:
            group.encode(self._compressors(level), self._database)
            self._emit(group)
        else:
            if self._pipeline is None:
                self._pipeline = _Pipeline(self._emit, self._database, self._thread_limit)
            self._pipeline.submit(group, level)
        return successor

    def _level_now(self) -> int:
        if self._level is not None:
            return self._level
        if self._is_first and self._new_bytes >= CHUNK_GROUP_BYTES:
            return BULK_LEVEL
        return LEVEL if self._new_bytes < BULK_BEGINS_BYTES else BULK_LEVEL

    def _emit(self, group: Group) -> None:
        """Take a finished group, in order (called by one thread at a time)."""
        assert group.frame is not None
        self._stored_bytes += len(group.frame)
        self._prefixes.update(group.prefixes)
        self._ready.append(group)
        if self._bulk_number is not None:
            return
        if self._bulk is None:
            if self._new_bytes <= BULK_BYTES and len(self._known) <= BULK_OBJECTS:
                return
            self._bulk = self._make_bulk()
        waiting, self._ready = self._ready, []
        for ready in waiting:
            assert ready.frame is not None
            self._offsets[ready.number] = self._bulk.append(ready.frame, ready.listed())
            del self._live[ready.number]

    def _read_bulk(self, number: int) -> Frame:
        frame = self._read_back.get(number)
        if frame is None:
            if self._bulk is None or number not in self._offsets:
                raise MissingObject("object of a closed batch")
            data = self._bulk.read(self._offsets[number])
            frame = self._read_back[number] = self._database.decode(data, frames.read_head(data))
            if len(self._read_back) > READ_BACK_FRAMES:
                self._read_back.popitem(last=False)
        else:
            self._read_back.move_to_end(number)
        return frame


def make_compressor(level: int) -> ZstdCompressor:
    """Return a compressor for frames; one thread at a time may use it."""
    import zstandard

    return zstandard.ZstdCompressor(level=level)


class _Compressors:
    """The compressors of one thread, one for each level."""

    def __init__(self) -> None:
        self._made: dict[int, ZstdCompressor] = {}

    def __call__(self, level: int) -> ZstdCompressor:
        """Return the compressor of a level."""
        found = self._made.get(level)
        if found is None:
            found = self._made[level] = make_compressor(level)
        return found


class _Pipeline:
    """Threads that encode groups, a bounded number at a time, and hand them on in the order they came."""

    def __init__(self, emit: Callable[[Group], None], database: ObjectDatabase, threads: int) -> None:
        self._emit = emit
        self._database = database
        self._limit = threads * 3
        self._change = Condition()
        self._todo: deque[tuple[Group, int]] = deque()
        self._order: deque[Group] = deque()
        self._emitting = False
        self._stopping = False
        self._failure: BaseException | None = None
        self._threads = [
            Thread(target=self._work, name=f"layerfs-pack-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, group: Group, level: int) -> None:
        """Queue a group; waits while too many are in flight; raises what a thread met."""
        with self._change:
            while len(self._order) >= self._limit and self._failure is None:
                self._change.wait()
            self._check()
            self._todo.append((group, level))
            self._order.append(group)
            self._change.notify_all()

    def finish(self) -> None:
        """Wait until everything submitted was handed on, and end the threads."""
        with self._change:
            while (self._order or self._emitting) and self._failure is None:
                self._change.wait()
        self.stop()
        self._check()

    def stop(self) -> None:
        """End the threads; what is still queued is dropped."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        compressors = _Compressors()
        while True:
            with self._change:
                while not self._todo and not self._stopping:
                    self._change.wait()
                if self._stopping:
                    return
                group, level = self._todo.popleft()
            try:
                group.encode(compressors(level), self._database)
                self._hand_on()
            except BaseException as error:
                with self._change:
                    self._failure = self._failure or error
                    self._stopping = True
                    self._emitting = False
                    self._change.notify_all()
                return

    def _hand_on(self) -> None:
        """Emit finished groups from the head of the order; one thread at a time does it for all."""
        while True:
            with self._change:
                if self._emitting or self._failure or not self._order or self._order[0].frame is None:
                    return
                self._emitting = True
                group = self._order[0]
            self._emit(group)
            with self._change:
                self._order.popleft()
                self._emitting = False
                self._change.notify_all()

"""Repack: the objects of a store in few packs, ordered so that like lies with like, and compressed deeply.

Order: contents by the name of their file (extension, last name, path) and then by version, so that versions of one file
and files of one kind share a frame; tree nodes by path and version, a directory's after those of what is below it, whose
ids they then need not hold (``objects/frames``); commits and roots by version. What no name reaches comes last,
and nothing is left out. Frames are dense and large: one is decoded as a whole, and a bulk reader decodes each once.
Contents that do not compress lie in small frames as they are.

Packs that were repacked before stay as they are, but for small ones, which are put together as new ones come. Nobody
waits: reading and compressing happen outside the lane, and the new packs are synced but belong to nobody until one
restart of the log (``log``), inside the lane, names them instead of the old ones. Killed before it the store is what it
was, and the new packs are swept; killed after it, the old files are swept. All log packs are rewritten with the rest: the
restart says every pointer anew. One repack or collection runs at a time; a repack drops no object, so writers need no
warning.

Memory is bounded by the batches in which objects are read and the frames in flight, plus some 150 bytes per object that
is rewritten, for the order.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from layerfs.errors import MissingObject, StoreDamaged
from layerfs.ids import ObjectId
from layerfs.objects import frames, packs
from layerfs.objects.bulk import BulkPack
from layerfs.objects.commits import Commit, decode_commit
from layerfs.objects.entry import EntryKind, decode_root
from layerfs.objects.environment import join
from layerfs.objects.extents import decode_extent_node
from layerfs.objects.kinds import Kind
from layerfs.objects.links import links_of, named_among
from layerfs.objects.packindex import PREFIX_BYTES
from layerfs.objects.trees import decode_node
from layerfs.progress import SILENT, Progress
from layerfs.store.pointers import kept_ops, read_pointers, starts_of
from layerfs.store.store import Store

if TYPE_CHECKING:
    from concurrent.futures import Future

LEVEL = 17
NODE_LEVEL = 12
"""Measured on 132 states of a public history (573 MB of contents, 42 MB of nodes). Contents ordered by path take 24.3 MB
in frames of 4 MiB at level 9, 22.5 in 16 MiB; ordered by name 20.84 in 12 MiB. A quarter of these frames takes 5.24 MB at
level 9, 5.17 at 12, 4.81 at 16, 4.68 at 17 and 4.56 at 19, for 1, 2, 17, 17 and 27 times the work; compressing at 17
more than doubles the time of the whole repack, which nobody waits for. Nodes that leave out the ids of what is below
take 3.14 MB in frames of 1 MiB at level 12 instead of 5.69; 3.13 in 4 MiB, and 2.92 there at level 19."""

DEEP_RATIO = 6
"""Contents are compressed at the deeper level where versions of files make the frame so many times smaller: there it is
some 15 MB/s, and pays. On text without versions it is ten times slower and saves little; there level 12 has to do."""

CONTENT_BYTES = 12 * 1024 * 1024
NODE_BYTES = 1024 * 1024
RAW_BYTES = 1024 * 1024
READ_BYTES = 24 * 1024 * 1024
"""Contents read at once; in the order of the packs, so that a frame is decoded once for each such batch at most."""

NAME_ORDER_BYTES = 4 << 30
"""Above so many bytes contents are ordered by path alone, which is nearly how they lie already."""

NEW_PACK_BYTES = 1 << 30
SMALL_PACKS = 8
THREADS = 2
AFTER_ALL_NAMES = b"\xff" * 256
"""A directory's nodes lie after those of what is below it, whose ids they then need not hold."""

ORDER = (Kind.LAYER, Kind.COMMIT, Kind.ROOT, Kind.TREE, Kind.EXTENT, Kind.CHUNK)


class Repacked(NamedTuple):
    """What a repack did: packs rewritten, packs made of them, objects in these, and their bytes before and after."""

    old_packs: int = 0
    new_packs: int = 0
    objects: int = 0
    before_bytes: int = 0
    after_bytes: int = 0


class RepackOptions(NamedTuple):
    """``everything``: also packs that were repacked before; ``level``: zstd's."""

    everything: bool = False
    level: int = LEVEL


Step = Callable[[str], None]


def repack(
    store: Store,
    options: RepackOptions = RepackOptions(),  # noqa: B008
    actor: str = "",
    progress: Progress = SILENT,
    step: Step = lambda name: None,
) -> Repacked:
    """Repack a store; raise Busy when a collection or another repack runs. ``step`` is told before each step."""
    with store.upkeep():
        step("seal")
        if store.db.has_open():
            store.seal_open_pack()
        store.objects.refresh()
        chosen = _choose(store, options.everything)
        if not chosen:
            return Repacked()
        made: list[BulkPack] = []
        try:
            step("order")
            order = _Order(store, frozenset(chosen), progress)
            order.find()
            step("write")
            _Writer(store, order, made, options.level, progress).write()
            step("swap")
            with store.lane() as lane:
                now = read_pointers(store.db)
                numbers = [pack.number for pack in made if pack.number is not None]
                lane.restart(kept_ops(now, chosen, numbers), actor)
                store.db.compact()
            step("release")
        finally:
            registered = {row.number for row in store.db.packs()}
            for pack in made:
                if pack.number in registered:
                    pack.release()
                else:
                    pack.abandon()
        taken = sum(pack.length for pack in made)
        return Repacked(len(chosen), len(made), order.count, sum(chosen.values()), taken)


def _choose(store: Store, everything: bool) -> dict[int, int]:
    """Return number and length of the packs to rewrite."""
    fresh: dict[int, int] = {}
    done: list[tuple[int, int]] = []
    for row in store.db.packs():
        descriptor = store.objects.pack_descriptor(row.number)
        length = os.fstat(descriptor).st_size
        if everything or not _is_repacked(descriptor, length):
            fresh[row.number] = length
        else:
            done.append((length, row.number))
    if not fresh and len(done) < SMALL_PACKS:
        return {}
    # Packs grow like powers of two, so that each object is rewritten a logarithmic number of times.
    total = sum(fresh.values())
    for length, number in sorted(done):
        if length > total and len(done) < SMALL_PACKS:
            break
        fresh[number] = length
        total += length
    return fresh


def _is_repacked(descriptor: int, length: int) -> bool:
    if length < packs.HEADER_BYTES + frames.HEADER.size:
        return False
    start = packs.read_exactly(descriptor, packs.HEADER_BYTES, frames.HEADER.size, "reading a pack")
    return frames.read_head(start).type == frames.DENSE


class _Order:
    """Every object of the packs that are rewritten, in the order in which it will lie."""

    def __init__(self, store: Store, chosen: frozenset[int], progress: Progress) -> None:
        self._store = store
        self._objects = store.objects
        self._chosen = chosen
        self._progress = progress
        self._seen: set[bytes] = set()
        self._paths: dict[bytes, int] = {}
        self._rows: dict[Kind, list[tuple[int, int, int, ObjectId, int]]] = {kind: [] for kind in ORDER}
        self._versions: dict[int, int] = {}

    @property
    def count(self) -> int:
        """Number of objects."""
        return sum(map(len, self._rows.values()))

    def find(self) -> None:
        """Walk history, oldest state first, and then take what it does not reach.

        What an index does not list is dropped with its pack, so an index that lies stops it all.
        """
        for number in self._chosen:
            self._objects.sound_index(number)
        self._progress.phase("ordering")
        layers, commits = self._history()
        for oid in layers:
            self._take(Kind.LAYER, oid, b"", 0)
        for version, (oid, commit) in enumerate(commits, 1):
            self._take(Kind.COMMIT, oid, b"", version)
            self._state(commit, version)
            self._progress.advance(1)
        self._rest()

    def _history(self) -> tuple[list[ObjectId], list[tuple[ObjectId, Commit]]]:
        """Return layers, and commits with each after its parents."""
        layers: dict[ObjectId, None] = {}
        decoded: dict[ObjectId, Commit] = {}
        commits: dict[ObjectId, None] = {}
        waiting = [(oid, False) for oid in dict.fromkeys(starts_of(read_pointers(self._store.db)))]
        while waiting:
            oid, is_done = waiting.pop()
            if oid in commits or oid in layers:
                continue
            if is_done:
                commits[oid] = None
                continue
            kind, payload = self._objects.get(oid)
            if kind is Kind.LAYER:
                layers[oid] = None
                waiting.extend((link, False) for link in links_of(kind, payload))
            elif kind is Kind.COMMIT:
                decoded[oid] = decode_commit(payload)
                waiting.append((oid, True))
                waiting.extend((parent, False) for parent in decoded[oid].parents if parent not in commits)
        return list(layers), [(oid, decoded[oid]) for oid in commits]

    def _take(self, kind: Kind, oid: ObjectId, path: bytes, version: int) -> bool:
        """Note an object that is to be rewritten; return whether it is, and was not noted before."""
        prefix = oid[:PREFIX_BYTES]
        if prefix in self._seen:
            return False
        self._seen.add(prefix)
        try:
            located = self._objects.locate(oid)
        except MissingObject:
            return False
        if located.pack not in self._chosen:
            return False
        number = self._paths.setdefault(path, len(self._paths))
        rows = self._rows[kind]
        rows.append((number, version, len(rows), oid, located.place.length))
        if kind is Kind.CHUNK:
            self._versions[number] = self._versions.get(number, 0) + 1
        return True

    def _state(self, commit: Commit, version: int) -> None:
        """Take the nodes and contents that a state is the first to have.

        A node that stays where it is, because it was repacked before, has everything below it in repacked packs.
        """
        if not self._take(Kind.ROOT, commit.root, b"", version):
            return
        root = decode_root(self._objects.read(commit.root, Kind.ROOT))
        waiting: list[tuple[bytes, ObjectId]] = [(b"", ObjectId(root.ref))]
        while waiting:
            path, oid = waiting.pop()
            if not self._take(Kind.TREE, oid, path, version):
                continue
            node = decode_node(self._objects.read(oid, Kind.TREE))
            waiting.extend((path, child.oid) for child in reversed(node.children))
            for name, entry in node.entries:
                if entry.kind is EntryKind.DIR:
                    waiting.append((join(path, name), ObjectId(entry.ref)))
                elif entry.kind is EntryKind.FILE and entry.size:
                    self._content(join(path, name), ObjectId(entry.ref), version)

    def _content(self, path: bytes, ref: ObjectId, version: int) -> None:
        waiting = [ref]
        while waiting:
            oid = waiting.pop()
            if oid[:PREFIX_BYTES] in self._seen:
                continue
            kind = self._objects.kind_of(oid)
            if kind is Kind.CHUNK:
                self._take(kind, oid, path, version)
            elif kind is Kind.EXTENT and self._take(kind, oid, path, version):
                node = decode_extent_node(self._objects.read(oid, kind))
                waiting.extend(child.oid for child in reversed(node.children))
                waiting.extend(piece.chunk for piece in reversed(node.extents) if piece.chunk is not None)

    def _rest(self) -> None:
        """Take what lies in the packs and no state reaches, in the order in which it lies."""
        for number in sorted(self._chosen):
            index = self._objects.index(number)
            if all(prefix in self._seen for prefix, _ in index.rows()):
                continue
            descriptor = self._objects.pack_descriptor(number)
            end = os.fstat(descriptor).st_size
            at = packs.HEADER_BYTES
            for scanned in packs.scan_frames(descriptor, at, end):
                at = scanned.end
                for row in frames.read_objects(scanned.frame, scanned.head):
                    if row.kind != Kind.MOVE:
                        self._take(Kind(row.kind), row.oid, b"\xff", 1 << 62)
            if at != end:
                raise StoreDamaged(
                    f"pack {packs.pack_name(number)} is damaged at offset {at}",
                    "'layerfs fsck' names what is affected",
                )

    def objects(self, kind: Kind) -> list[tuple[ObjectId, int, bool]]:
        """Return id, length and whether there are other versions, of every object of a kind, in order."""
        rows = self._rows[kind]
        by_name = kind is Kind.CHUNK and sum(row[4] for row in rows) <= NAME_ORDER_BYTES
        ordered = sorted(self._paths, key=_name_key if by_name else _after_what_is_below)
        rank = dict(zip((self._paths[path] for path in ordered), range(len(ordered)), strict=True))
        later = 1 if kind is Kind.CHUNK else -1
        rows.sort(key=lambda row: (rank[row[0]], row[1], later * row[2]))
        return [(row[3], row[4], self._versions.get(row[0], 0) > 1) for row in rows]


def _name_key(path: bytes) -> tuple[bytes, bytes, bytes]:
    name = path.rpartition(b"/")[2]
    return name.rpartition(b".")[2], name, path


def _after_what_is_below(path: bytes) -> list[bytes]:
    return [*path.split(b"/"), AFTER_ALL_NAMES] if path else [AFTER_ALL_NAMES]


class _Writer:
    """Reads objects in order and writes them as dense frames; a few threads compress."""

    def __init__(
        self, store: Store, order: _Order, made: list[BulkPack], level: int, progress: Progress
    ) -> None:
        self._store = store
        self._order = order
        self._made = made
        self._level = level
        self._progress = progress
        self._pack: BulkPack | None = None
        self._flight: deque[tuple[Future[bytes], list[tuple[ObjectId, int]], Kind]] = deque()

    def write(self) -> None:
        """Write all objects; the packs in ``made`` are sealed when it returns."""
        from concurrent.futures import ThreadPoolExecutor

        plan = [(kind, self._order.objects(kind)) for kind in ORDER]
        total = sum(length for _, rows in plan for _, length, _ in rows)
        self._progress.phase("compressing", self._order.count, total)
        with ThreadPoolExecutor(THREADS, "layerfs-repack") as pool:
            try:
                for kind, rows in plan:
                    for group, raw in self._groups(kind, rows):
                        while len(self._flight) >= THREADS:
                            self._land()
                        ids = [(oid, len(payload)) for oid, payload in group]
                        deeper = self._level if kind is Kind.CHUNK else max(self._level, NODE_LEVEL)
                        level = None if raw else deeper
                        self._flight.append((pool.submit(_encode, kind, group, level), ids, kind))
                        del group
                while self._flight:
                    self._land()
            finally:
                for future, _, _ in self._flight:
                    future.cancel()
        if self._pack is not None:
            self._pack.seal()

    def _groups(
        self, kind: Kind, rows: Sequence[tuple[ObjectId, int, bool]]
    ) -> Iterator[tuple[list[tuple[ObjectId, bytes]], bool]]:
        """Yield what will share a frame, and whether it is stored as it is."""
        limit = CONTENT_BYTES if kind is Kind.CHUNK else NODE_BYTES
        group: list[tuple[ObjectId, bytes]] = []
        raw: list[tuple[ObjectId, bytes]] = []
        size = raw_size = 0
        for oid, payload, has_versions in self._read(rows):
            room = frames.COLUMN_BYTES + len(payload)
            if kind is Kind.CHUNK and not has_versions and frames.is_incompressible(payload):
                if raw and raw_size + room > RAW_BYTES:
                    yield raw, True
                    raw, raw_size = [], 0
                raw.append((oid, payload))
                raw_size += room
                continue
            if group and (size + room > limit or len(group) == frames.MAX_COUNT):
                yield group, False
                group, size = [], 0
            group.append((oid, payload))
            size += room
        if raw:
            yield raw, True
        if group:
            yield group, False

    def _read(self, rows: Sequence[tuple[ObjectId, int, bool]]) -> Iterator[tuple[ObjectId, bytes, bool]]:
        """Yield payloads in the order of the rows; they are read in batches, each in the order of the packs."""
        for batch in _batches(rows):
            found = {
                oid: payload for oid, _, payload in self._store.objects.read_many(row[0] for row in batch)
            }
            for oid, _, has_versions in batch:
                yield oid, found.pop(oid), has_versions

    def _land(self) -> None:
        future, ids, kind = self._flight.popleft()
        frame = future.result()
        if self._pack is not None and self._pack.length + len(frame) > NEW_PACK_BYTES:
            self._pack.seal()
            self._pack = None
        if self._pack is None:
            self._pack = self._store.make_bulk()
            self._made.append(self._pack)
        self._pack.append(frame, [(kind, oid, length) for oid, length in ids])
        self._progress.advance(len(ids), sum(length for _, length in ids))


def _batches(rows: Iterable[tuple[ObjectId, int, bool]]) -> Iterator[list[tuple[ObjectId, int, bool]]]:
    batch: list[tuple[ObjectId, int, bool]] = []
    size = 0
    for row in rows:
        if batch and size + row[1] > READ_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += row[1]
    if batch:
        yield batch


def _encode(kind: Kind, group: list[tuple[ObjectId, bytes]], level: int | None) -> bytes:
    payloads = [payload for _, payload in group]
    size = sum(map(len, payloads)) + frames.COLUMN_BYTES * (len(payloads) + 1)
    if size > frames.MAX_RAW:  # an object that fills a frame leaves no room for a column of lengths
        compressor = None if level is None else frames.make_compressor(min(level, NODE_LEVEL), size)
        return frames.encode_frame([(kind, oid, payload) for oid, payload in group], compressor)
    named = named_among(kind, group)
    if level is None:
        return frames.encode_dense_frame(kind, payloads, None, named)
    plain = level if level > LEVEL else min(level, NODE_LEVEL)
    frame = frames.encode_dense_frame(kind, payloads, frames.make_compressor(plain, size), named)
    if plain < level and len(frame) * DEEP_RATIO < size:
        frame = frames.encode_dense_frame(kind, payloads, frames.make_compressor(level, size), named)
    return frame

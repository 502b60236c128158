"""Collection: ``gc`` gives back what no name reaches any more, beside writers and readers, killable at any moment.

What is kept: everything that branches, tags, layers, workspaces and the kept part of the reflog reach. Reflog lines
expire, those of names that are gone sooner; until then a deleted branch can be had back. Order (``lease`` explains the
middle):

1. seal the open pack, so that what lies in it can be judged as well;
2. mark what is reachable (``liveness``) and choose packs: one with nothing reachable is dropped; one that holds
   unreachable commits, trees or other nodes, or much unreachable content, is written anew. So after a collection every
   object that can be found has everything below it, which is what lets writers take over parts of old states unread;
3. condemn these packs, wait until nobody relies on what lies in them, and mark again from the names of now;
4. copy what is reachable from the condemned packs into new ones, synced but not registered;
5. in the lane: if names moved, mark from the new ones; if that needs something from a condemned pack, copy that too,
   outside the lane, and come back. Then *restart* the log (``log``): one synced transaction, after which the new packs
   are registered, the condemned ones and expired reflog lines are gone. Their files are removed last.

Killed before 5 the store is what it was, and new packs that nobody registered are swept; killed after, files that nobody
names are swept. On a disk with little room packs are done in several rounds, the emptiest first. Last, the layer cache
gives up what it holds of states that are gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

from layerfs.durable.metadb import PackRow
from layerfs.ids import ObjectId
from layerfs.objects import packs
from layerfs.objects.bulk import BulkPack
from layerfs.objects.frames import FrameObject
from layerfs.objects.kinds import Kind
from layerfs.objects.packcopy import CopyOptions, copy_pack, delta_objects
from layerfs.objects.packindex import PREFIX_BYTES
from layerfs.progress import SILENT, Progress
from layerfs.store.liveness import Liveness, PackMarks
from layerfs.store.pointers import Pointers, Retention, expire, kept_ops, read_pointers, starts_of
from layerfs.store.store import Store
from layerfs.workspace.cacheupkeep import forget_dead

GARBAGE_SHARE = 5
"""A pack is written anew when more than one byte in so many is unreachable content."""

SMALL_BYTES = 4 * 1024 * 1024
SMALL_PACKS = 8
"""So many packs below that size are put together."""

NEW_PACK_BYTES = 1 << 30
WAIT_SECONDS = 30.0
ROOM_BYTES = 1 << 20
"""What a copy leaves free on the disk for the database and the log."""

LEAST_ROOM_BYTES = 100 * 1024
"""The same when there is no more."""


class PackPlan(NamedTuple):
    """One pack that goes: its size, its unreachable objects, and the share of it that is copied."""

    number: int
    length: int
    objects: int
    garbage: int
    copied: int
    """Bytes that the copy will take at most; an estimate from the lengths of the objects."""


class Plan(NamedTuple):
    """What a collection is going to do."""

    condemned: tuple[PackPlan, ...]
    reflog_lines: int
    objects: int
    packs: int


class Collected(NamedTuple):
    """What a collection did, or with ``dry_run`` would do (its sizes are then estimates)."""

    dropped_packs: int = 0
    new_packs: int = 0
    dropped_objects: int = 0
    kept_objects: int = 0
    freed_bytes: int = 0
    reflog_lines: int = 0
    dry_run: bool = False


class CollectOptions(NamedTuple):
    """``wait``: seconds for writers that began before; ``thorough``: no byte of a dropped object stays in a pack."""

    retention: Retention
    wait: float = WAIT_SECONDS
    dry_run: bool = False
    thorough: bool = False


Step = Callable[[str], None]


def collect(
    store: Store,
    options: CollectOptions,
    actor: str = "",
    progress: Progress = SILENT,
    step: Step = lambda name: None,
) -> Collected:
    """Collect a store. Raises Busy when another collection runs or a writer does not finish, StoreDamaged (and drops
    nothing) when something that is needed is missing. ``step`` is told before each step, for tests.
    """
    with store.upkeep():
        done = collect_held(store, options, actor, progress, step)
        if options.dry_run:
            return done
        forgotten = forget_dead(store, options.retention.now_ns)
        return done._replace(freed_bytes=done.freed_bytes + forgotten.freed_bytes)


def collect_held(
    store: Store,
    options: CollectOptions,
    actor: str = "",
    progress: Progress = SILENT,
    step: Step = lambda name: None,
) -> Collected:
    """Do the same for a caller that holds the store's lock of upkeep."""
    total = Collected(dry_run=options.dry_run)
    if store.free_bytes() < ROOM_BYTES and not options.dry_run:
        store.release_reserve()
    while True:
        done, more = _Collection(store, options, actor, progress, step).run()
        total = _add(total, done)
        if not more:
            if not options.dry_run:
                store.sweep()
                store.restore_reserve()
            return total


def _add(a: Collected, b: Collected) -> Collected:
    return Collected(
        a.dropped_packs + b.dropped_packs,
        a.new_packs + b.new_packs,
        a.dropped_objects + b.dropped_objects,
        b.kept_objects,
        a.freed_bytes + b.freed_bytes,
        a.reflog_lines + b.reflog_lines,
        a.dry_run,
    )


class _Collection:
    """One round."""

    def __init__(
        self, store: Store, options: CollectOptions, actor: str, progress: Progress, step: Step
    ) -> None:
        self._store = store
        self._options = options
        self._actor = actor
        self._progress = progress
        self._step = step
        self._made: list[BulkPack] = []
        self._copied: dict[int, bytes] = {}

    def run(self) -> tuple[Collected, bool]:
        """Do one round; also return whether another one is worth it."""
        store = self._store
        self._step("seal")
        if not self._options.dry_run and store.db.has_open():
            store.seal_open_pack()
        self._step("mark")
        self._progress.phase("marking")
        pointers = read_pointers(store.db)
        rows = pointers.packs
        store.objects.refresh()
        self._live = Liveness(store.objects, [row.number for row in rows], progress=self._progress)
        self._mark(pointers)
        self._live.forget_copies(row.number for row in rows if row.role == packs.LOG)
        self._stranded = set(self._strand(rows))
        plan = self._plan(pointers)
        if self._options.dry_run:
            return self._answer(plan, sum(pack.copied for pack in plan.condemned), 0), False
        if not plan.condemned and not plan.reflog_lines:
            return Collected(kept_objects=self._live.marked), False
        chosen = self._within_room(plan.condemned)
        with ExitStack() as held:
            if chosen:
                self._step("condemn")
                numbers = [pack.number for pack in chosen]
                held.enter_context(store.condemned(numbers, self._options.wait))
            held.callback(self._release)
            self._swap(chosen, pointers)
            taken = sum(pack.length for pack in self._made)
            answer = self._answer(plan._replace(condemned=chosen), taken, len(self._made))
        return answer, len(chosen) < len(plan.condemned) and bool(chosen)

    def _mark(self, pointers: Pointers) -> None:
        kept, _ = expire(pointers, self._options.retention)
        self._live.mark(starts_of(pointers._replace(reflog=kept)))

    def _strand(self, rows: Iterable[PackRow]) -> Iterator[int]:
        """Yield packs with reachable objects whose prefix is not reachable: these are stored anew, without one."""
        for row in rows:
            marks = self._live.packs[row.number]
            if row.number in self._copied or not any(marks.rows):
                continue
            descriptor = self._store.objects.pack_descriptor(row.number)
            for offset, found in delta_objects(descriptor, os.fstat(descriptor).st_size):
                assert found.prefix is not None
                if marks.has(found.oid[:PREFIX_BYTES], offset) and not self._serves(
                    marks, found.oid, found.prefix
                ):
                    yield row.number
                    break

    def _serves(self, marks: PackMarks, oid: ObjectId, prefix: bytes) -> bool:
        """Whether a prefix stays, and cannot come to need the object itself.

        Between objects that lie in the store once there can be no circle, since each was written after its prefix; of
        one that lies in it twice only a prefix in the same pack is trusted.
        """
        here = marks.index.row_of(prefix)
        if here >= 0 and marks.rows[here]:
            return True
        if sum(pack.index.row_of(oid[:PREFIX_BYTES]) >= 0 for pack in self._live.packs.values()) > 1:
            return False
        return self._is_live(prefix)

    def _is_live(self, prefix: bytes) -> bool:
        for pack in self._live.packs.values():
            row = pack.index.row_of(prefix)
            if row >= 0 and pack.rows[row]:
                return True
        return any(oid[:PREFIX_BYTES] == prefix for oid in self._live.others)

    def _plan(self, pointers: Pointers) -> Plan:
        _, expired = expire(pointers, self._options.retention)
        found = [self._judge(row) for row in pointers.packs]
        condemned = [pack for pack, bad in found if bad]
        small = [pack for pack, bad in found if not bad and pack.length < SMALL_BYTES]
        if len(small) >= SMALL_PACKS:
            condemned += small
        elif condemned or expired:
            condemned += [pack for pack in small if not pack.objects]
        return Plan(tuple(condemned), len(expired), self._live.marked, len(found))

    def _judge(self, row: PackRow) -> tuple[PackPlan, bool]:
        """Return what a pack holds and whether it is to go."""
        marks = self._live.packs[row.number]
        length = os.fstat(self._store.objects.pack_descriptor(row.number)).st_size
        garbage = garbage_bytes = 0
        nodes = False
        for number in marks.unmarked():
            place = marks.index.place_at(number)
            garbage += 1
            garbage_bytes += place.length
            nodes = nodes or place.kind != Kind.CHUNK
        if garbage == marks.index.count:
            return PackPlan(row.number, length, garbage, garbage, 0), garbage > 0
        total = sum(marks.index.place_at(number).length for number in range(marks.index.count)) or 1
        kept = total - garbage_bytes
        most = min(length * kept // total, kept + 128 * (marks.index.count - garbage)) + 4096
        plan = PackPlan(row.number, length, marks.index.count, garbage, most)
        bad = nodes or garbage_bytes * GARBAGE_SHARE > total or row.number in self._stranded
        return plan, bad or bool(garbage and self._options.thorough)

    def _within_room(self, wanted: tuple[PackPlan, ...]) -> tuple[PackPlan, ...]:
        """Return the packs whose copies the disk has room for now, the emptiest first; raise NoSpace if none fits."""
        room = self._store.free_bytes() - ROOM_BYTES
        ordered = sorted(wanted, key=lambda pack: pack.copied)
        if sum(pack.copied for pack in ordered) > room:
            self._store.release_reserve()
            room = self._store.free_bytes() - LEAST_ROOM_BYTES
        chosen: list[PackPlan] = []
        for pack in ordered:
            room -= pack.copied
            if room < 0 and pack.copied:
                break
            chosen.append(pack)
        # Sizes are estimates: the emptiest pack is tried even where it seems not to fit; failing changes nothing.
        return tuple(chosen) or tuple(ordered[:1])

    def _swap(self, chosen: tuple[PackPlan, ...], before: Pointers) -> None:
        store = self._store
        gone = {pack.number for pack in chosen}
        self._step("mark again")
        pointers = read_pointers(store.db)
        self._mark(pointers)
        self._step("copy")
        self._progress.phase("copying", size=sum(pack.length for pack in chosen))
        self._copy(gone)
        while True:
            with store.lane() as lane:
                now = read_pointers(store.db)
                if now.sequence != pointers.sequence:
                    self._mark(now)
                    pointers = now
                if self._is_copied(gone):
                    kept, _ = expire(now, self._options.retention)
                    self._step("swap")
                    lane.restart(kept_ops(now._replace(reflog=kept), gone, self._new_numbers()), self._actor)
                    break
            self._copy(gone)
        self._step("release")

    def _copy(self, gone: set[int]) -> None:
        """Copy what is marked in the condemned packs and was not copied yet; seal the new packs."""
        writer: BulkPack | None = None

        def emit(frame: bytes) -> None:
            nonlocal writer
            if writer is not None and writer.length + len(frame) > NEW_PACK_BYTES:
                writer.seal()
                writer = None
            if writer is None:
                writer = self._store.make_bulk()
                self._made.append(writer)
            writer.append_frame(frame)

        options = CopyOptions(thorough=self._options.thorough)
        for number in sorted(gone):
            marks = self._live.packs[number]
            now = bytes(marks.rows)
            earlier = self._copied.get(number)
            if now == earlier:
                continue
            if any(now):
                copy_pack(self._store.objects, number, _Marked(self, marks, earlier), emit, options)
            self._copied[number] = now
            self._progress.advance(0, os.fstat(self._store.objects.pack_descriptor(number)).st_size)
        if writer is not None:
            writer.seal()

    def _is_copied(self, gone: set[int]) -> bool:
        return all(self._copied.get(number) == bytes(self._live.packs[number].rows) for number in gone)

    def _new_numbers(self) -> list[int]:
        return [pack.number for pack in self._made if pack.number is not None]

    def _release(self) -> None:
        """Let go of the new packs: they belong to the store, or, when the round failed, to nobody and are removed."""
        registered = {row.number for row in self._store.db.packs()}
        for pack in self._made:
            if pack.number in registered:
                pack.release()
            else:
                pack.abandon()

    def _answer(self, plan: Plan, taken: int, made: int) -> Collected:
        return Collected(
            len(plan.condemned),
            made,
            sum(pack.garbage for pack in plan.condemned),
            self._live.marked,
            sum(pack.length for pack in plan.condemned) - taken,
            plan.reflog_lines,
            self._options.dry_run,
        )


class _Marked:
    """The marked objects of one condemned pack, apart from those that an earlier copy took."""

    def __init__(self, collection: _Collection, marks: PackMarks, earlier: bytes | None) -> None:
        self._collection = collection
        self._marks = marks
        self._earlier = earlier

    def object(self, row: FrameObject, frame: int) -> bool:
        """Whether the object is wanted."""
        number = self._marks.index.row_of(row.oid[:PREFIX_BYTES])
        if number < 0 or not self._marks.rows[number] or self._marks.index.place_at(number).frame != frame:
            return False
        return self._earlier is None or not self._earlier[number]

    def prefix(self, oid: ObjectId, prefix: bytes) -> bool:
        """Whether a prefix will be there."""
        return self._collection._serves(self._marks, oid, prefix)

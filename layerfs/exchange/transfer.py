"""Transfer: objects and names from one store on a path into another.

``fetch`` and ``push`` are the same with the sides exchanged, and ``clone`` is a fetch of everything into a new store.
What is missing is found by marking the source's packs from the wanted names (``liveness``), stopping at everything the
target has: a store never holds an object without all below it, so nothing behind such an object is looked at.

Frames are copied as they are stored where all of their objects are wanted, after every object in them was decoded and
hashed; nothing that does not verify arrives. Contents go first, in packs that are registered one by one, so that a
transfer which was cut off goes on where it was; then everything else in one pack and the names in one move, so that no
tree is ever there before what it names. Both stores are held by a lease, so no collection begins to drop anything of them
meanwhile; they may be written to all the time.

Branches and tags move by compare-and-set, and only forward unless forced. Main of the target is extended when its layers
are the source's first ones; otherwise the two have parted and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from layerfs.durable.metadb import LayerRow
from layerfs.errors import NotFound, Refused, quote
from layerfs.ids import CommitId, ObjectId
from layerfs.objects import packs
from layerfs.objects.bulk import BulkPack
from layerfs.objects.commits import read_commit
from layerfs.objects.frames import FrameObject
from layerfs.objects.kinds import Kind
from layerfs.objects.moves import LayerAdd, Op, PackAdd, RefSet
from layerfs.objects.packcopy import CopyOptions, copy_pack
from layerfs.objects.packindex import PREFIX_BYTES
from layerfs.progress import SILENT, Progress
from layerfs.store.liveness import Liveness, PackMarks
from layerfs.store.pointers import read_pointers
from layerfs.store.refs import HEADS, MAIN_REF, TAGS, short_ref
from layerfs.store.store import Store

PART_BYTES = 256 * 1024 * 1024
"""Contents are registered in packs of about this size: as much as a cut transfer loses at most."""


class RefMove(NamedTuple):
    """What becomes of one name: ``how`` is new, forward, forced, same, or refused with the reason in ``why``."""

    name: str
    old: CommitId | None
    new: CommitId | None
    how: str
    why: str = ""

    @property
    def short_name(self) -> str:
        """The name people use."""
        return short_ref(self.name)


class Transferred(NamedTuple):
    """The outcome of a transfer."""

    moves: tuple[RefMove, ...]
    layers: int
    objects: int
    stored_bytes: int

    @property
    def refused(self) -> tuple[RefMove, ...]:
        """The names that were not moved."""
        return tuple(move for move in self.moves if move.how == "refused")


class TransferOptions(NamedTuple):
    """``names``: full names to take, empty for all; ``force``: move branches and tags also where that is not forward."""

    names: tuple[str, ...] = ()
    force: bool = False
    why: str = "fetch"
    actor: str = ""


Step = Callable[[str], None]


def transfer(
    source: Store,
    target: Store,
    options: TransferOptions = TransferOptions(),  # noqa: B008
    progress: Progress = SILENT,
    step: Step = lambda name: None,
) -> Transferred:
    """Bring names and all they reach from ``source`` to ``target``; ``step`` is told before each step, for tests."""
    if source.format.store_id == target.format.store_id:
        raise Refused(f"{quote(source.path)} is the same store", "name another one")
    return _Transfer(source, target, options, progress, step).run()


class _Transfer:
    def __init__(
        self, source: Store, target: Store, options: TransferOptions, progress: Progress, step: Step
    ) -> None:
        self._source = source
        self._target = target
        self._options = options
        self._progress = progress
        self._step = step
        self._stored = 0

    def run(self) -> Transferred:
        with ExitStack() as held:
            held.enter_context(self._source.leased())
            condemned = held.enter_context(self._target.leased())
            # Sealed and read within one lane: whatever these pointers reach lies in the packs they list.
            with self._source.lane() as lane:
                if self._source.db.has_open():
                    lane.seal()
                pointers = read_pointers(self._source.db)
            refs, layers = self._chosen(dict(pointers.refs), pointers.layers)
            refused = self._refused(refs, layers)
            refs = {name: commit for name, commit in refs.items() if name not in refused}
            layers = () if MAIN_REF in refused else layers
            self._step("find")
            self._progress.phase("finding what is missing")
            self._source.objects.refresh()
            live = Liveness(
                self._source.objects,
                [row.number for row in pointers.packs],
                stop=lambda oid: self._target.objects.known(oid, condemned),
                progress=self._progress,
            )
            live.mark([*refs.values(), *(row.layer for row in layers), *(row.commit for row in layers)])
            self._progress.phase("copying", files=live.marked)
            self._copy(live, held)
            self._step("names")
            moves, added = self._move(refs, layers)
        return Transferred((*refused.values(), *moves), added, live.marked, self._stored)

    def _refused(self, refs: dict[str, CommitId], layers: Sequence[LayerRow]) -> dict[str, RefMove]:
        """Return the names that cannot move, so that nothing is copied for them (it may have been purged here)."""
        found = [self._judge(name, self._target.refs.get(name), commit) for name, commit in refs.items()]
        main, _ = self._judge_main(layers)
        return {move.name: move for move in (*found, *([main] if main else [])) if move.how == "refused"}

    def _chosen(
        self, refs: dict[str, CommitId], layers: Sequence[LayerRow]
    ) -> tuple[dict[str, CommitId], Sequence[LayerRow]]:
        names = self._options.names
        if not names:
            return refs, layers
        for name in names:
            if name != MAIN_REF and name not in refs:
                raise NotFound(
                    f"no such branch or tag in {quote(self._source.path)}: {quote(short_ref(name))}"
                )
        return {name: refs[name] for name in names if name != MAIN_REF}, layers if MAIN_REF in names else ()

    def _copy(self, live: Liveness, held: ExitStack) -> None:
        """Copy the marked objects: contents in parts of their own, then everything that names something."""
        for part, kinds in enumerate((frozenset({int(Kind.CHUNK)}), frozenset(Kind) - {Kind.CHUNK})):
            self._step("contents" if not part else "nodes")
            writer = _PartWriter(self, PART_BYTES if not part else None)
            held.callback(writer.close)
            for number, marks in live.packs.items():
                if any(marks.rows):
                    wanted = _Missing(marks, kinds)
                    copy_pack(self._source.objects, number, wanted, writer.emit, CopyOptions(verify=True))
            writer.register()

    def registered(self, pack: BulkPack) -> None:
        """Make a sealed pack part of the target."""
        assert pack.number is not None
        self._step("register")
        with self._target.lane() as lane:
            lane.apply(None, [PackAdd(packs.pack_name(pack.number))], self._options.actor)
        self._stored += pack.length

    def _move(self, refs: dict[str, CommitId], layers: Sequence[LayerRow]) -> tuple[tuple[RefMove, ...], int]:
        with self._target.lane() as lane:
            moves = [self._judge(name, lane.refs.get(name), commit) for name, commit in sorted(refs.items())]
            ops: list[Op] = [
                RefSet(move.name, move.old, move.new, f"{self._options.why} {short_ref(move.name)}")
                for move in moves
                if move.how in ("new", "forward", "forced")
            ]
            main, added = self._judge_main(layers)
            ops += added
            if main is not None:
                moves.append(main)
            if ops:
                lane.apply(None, ops, self._options.actor)
        return tuple(moves), len(added)

    def _judge(self, name: str, old: CommitId | None, new: CommitId) -> RefMove:
        if old is None:
            return RefMove(name, None, new, "new")
        if old == new:
            return RefMove(name, old, new, "same")
        if name.startswith(HEADS) and _reaches(self._source, new, old):
            return RefMove(name, old, new, "forward")
        if self._options.force:
            return RefMove(name, old, new, "forced")
        why = "the tag is at another commit" if name.startswith(TAGS) else "the branches have parted"
        if name.startswith(HEADS) and _reaches(self._target, old, new):
            return RefMove(name, old, old, "same")
        return RefMove(name, old, new, "refused", why)

    def _judge_main(self, layers: Sequence[LayerRow]) -> tuple[RefMove | None, list[LayerAdd]]:
        """Return what becomes of main: extended by the layers it lacks, if it has the source's first ones."""
        if not layers:
            return None, []
        mine = {layer.number: layer.layer for layer in self._target.refs.layers()}
        top = self._target.refs.main_layer()
        old = None if top is None else top.commit
        theirs = {row.number: row.layer for row in layers}
        if any(theirs[number] != layer for number, layer in mine.items() if number in theirs):
            return RefMove(MAIN_REF, old, layers[-1].commit, "refused", "the layers of main have parted"), []
        added = [LayerAdd(row.number, row.layer, row.commit) for row in layers if row.number not in mine]
        how = "same" if not added else "new" if old is None else "forward"
        return RefMove(MAIN_REF, old, added[-1].commit if added else old, how), added


def _reaches(store: Store, start: CommitId, wanted: CommitId) -> bool:
    """Whether ``wanted`` is ``start`` or in its history, which is all in ``store``."""
    seen = {start}
    waiting = [start]
    while waiting:
        oid = waiting.pop()
        if oid == wanted:
            return True
        for parent in read_commit(store.objects, oid).parents:
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return False


class _PartWriter:
    """Puts frames into bulk packs of the target, and registers each when it is big enough (None: only at the end)."""

    def __init__(self, transfer: _Transfer, limit: int | None) -> None:
        self._transfer = transfer
        self._limit = limit
        self._pack: BulkPack | None = None

    def emit(self, frame: bytes) -> None:
        if self._pack is None:
            self._pack = self._transfer._target.make_bulk()
        self._pack.append_frame(frame)
        self._transfer._progress.advance(1)
        if self._limit is not None and self._pack.length >= self._limit:
            self.register()

    def register(self) -> None:
        pack = self._pack
        if pack is None:
            return
        pack.seal()
        self._transfer.registered(pack)
        self._pack = None
        pack.release()

    def close(self) -> None:
        """Remove what a transfer that failed had not registered."""
        if self._pack is not None:
            self._pack.abandon()


class _Missing:
    """The marked objects of some kinds in one pack of the source."""

    def __init__(self, marks: PackMarks, kinds: Container[int]) -> None:
        self._marks = marks
        self._kinds = kinds

    def object(self, row: FrameObject, frame: int) -> bool:
        """Whether the object is to be copied."""
        return row.kind in self._kinds and self._marks.has(row.oid[:PREFIX_BYTES], frame)

    def prefix(self, oid: ObjectId, prefix: bytes) -> bool:
        """Whether the prefix is copied with it: only that makes sure that there is no circle in the target."""
        row = self._marks.index.row_of(prefix)
        return (
            row >= 0 and bool(self._marks.rows[row]) and self._marks.index.place_at(row).kind in self._kinds
        )

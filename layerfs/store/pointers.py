"""Pointers: everything of a store that names objects, as one value, and what of it is kept.

Owns the list of what keeps an object alive, which collection, purging and copying share; how long lines of the reflog are
kept; and the operations by which a restart of the log says the state anew (``log``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from layerfs.durable.metadb import LayerRow, MetaDb, PackRow, ReflogRow
from layerfs.ids import CommitId, ObjectId
from layerfs.objects import packs
from layerfs.objects.moves import Kept, LayerKept, PackKept, RefKept, ReflogKept, WorkspaceKept
from layerfs.store.workspacerecords import WorkspaceRecord, decode_record

DAY_NS = 86_400 * 1_000_000_000


class Pointers(NamedTuple):
    """The state of a store's database at one moment."""

    sequence: int
    packs: tuple[PackRow, ...]
    refs: tuple[tuple[str, CommitId], ...]
    layers: tuple[LayerRow, ...]
    reflog: tuple[ReflogRow, ...]
    workspaces: tuple[tuple[str, bytes, int], ...]


class Retention(NamedTuple):
    """How long lines of the reflog are kept: in general, and for names that are gone."""

    now_ns: int
    reflog_days: int
    dropped_days: int


def read_pointers(db: MetaDb) -> Pointers:
    """Return the pointers of one moment."""
    with db.snapshot():
        return Pointers(
            db.state().sequence,
            tuple(db.packs()),
            tuple(db.refs("refs/")),
            tuple(reversed(db.layers())),
            tuple(reversed(db.reflog(None))),
            tuple(db.workspace_rows()),
        )


def expire(pointers: Pointers, retention: Retention) -> tuple[tuple[ReflogRow, ...], tuple[ReflogRow, ...]]:
    """Return the lines of the reflog that are kept and those that go.

    A line counts from when it was written, a line of a name that is gone also from when the name went.
    """
    there = {name for name, _ in pointers.refs}
    gone_at: dict[str, int] = {}
    for row in pointers.reflog:
        if row.name not in there:
            gone_at[row.name] = max(row.time_ns, gone_at.get(row.name, row.time_ns))
    kept: list[ReflogRow] = []
    expired: list[ReflogRow] = []
    for row in pointers.reflog:
        age = retention.now_ns - row.time_ns
        old = age >= retention.reflog_days * DAY_NS
        if row.name in gone_at:
            since = retention.now_ns - gone_at[row.name]
            old = since >= retention.dropped_days * DAY_NS or (old and row.new is not None)
        (expired if old else kept).append(row)
    return tuple(kept), tuple(expired)


def starts_of(pointers: Pointers) -> Iterator[ObjectId]:
    """Yield every object that something names directly."""
    for _, commit in pointers.refs:
        yield commit
    for layer in pointers.layers:
        yield layer.layer
        yield layer.commit
    for row in pointers.reflog:
        for end in (row.old, row.new):
            if end is not None:
                yield end
    for _, payload, _ in pointers.workspaces:
        yield from commits_of(decode_record(payload))


def commits_of(record: WorkspaceRecord) -> list[ObjectId]:
    """Return the commits that a workspace stands on."""
    return [record.last, record.lower, *([record.merging] if record.merging is not None else [])]


def kept_ops(pointers: Pointers, gone: Collection[int], new: Iterable[int] = ()) -> list[Kept]:
    """Return the operations that say these pointers anew, without the packs that go and with new bulk packs."""
    ops: list[Kept] = [
        PackKept(packs.pack_name(row.number), row.role, row.sequence)
        for row in pointers.packs
        if row.number not in gone
    ]
    ops += [PackKept(packs.pack_name(number), packs.BULK, pointers.sequence + 1) for number in new]
    ops += [RefKept(name, commit) for name, commit in pointers.refs]
    ops += [LayerKept(*row) for row in pointers.layers]
    ops += [ReflogKept(*row) for row in pointers.reflog]
    ops += [WorkspaceKept(*row) for row in pointers.workspaces]
    return ops

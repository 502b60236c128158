"""Statistics: how big a state is, what the store takes for all of them, and how it grows.

Owns the numbers behind ``stats``. The state counted is one commit's (main's newest layer by default): that is a walk over
its tree. Everything else is counters that indexes and database keep, so it costs the same for ten commits and for a
million; what no name reaches counts until a collection drops it. Ratios compare one state with what the store takes for
the whole history, because that is what a user would otherwise have copies of.
"""

from __future__ import annotations

from typing import NamedTuple

from layerfs.history.history import CommitReader
from layerfs.ids import CommitId
from layerfs.objects.entry import EntryKind
from layerfs.objects.environment import walk
from layerfs.objects.kinds import Kind
from layerfs.objects.packs import BULK, LOG
from layerfs.store.packlist import Counts, count_objects, list_packs
from layerfs.store.store import Store


class StateSize(NamedTuple):
    """One state: its names by kind, and the bytes of its files, holes included."""

    commit: CommitId
    files: int
    directories: int
    others: int
    size: int


class Statistics(NamedTuple):
    """A store in numbers; ``log_bytes`` is what ``log_commits`` take that came one by one since the last repack.

    The first capture does not count there, also where it is small enough to lie in the log.
    """

    state: StateSize | None
    counts: Counts
    commits: int
    layers: int
    branches: int
    tags: int
    log_bytes: int
    log_commits: int

    @property
    def compression(self) -> tuple[int, int]:
        """Bytes of all objects, and what they take in packs."""
        return self.counts.size, self.counts.packed_bytes

    @property
    def dedup(self) -> tuple[int, int]:
        """About what all states would take as copies, taking each for as big as the one measured, and all objects."""
        return 0 if self.state is None else self.state.size * self.commits, self.counts.size


def measure_state(store: Store, commit: CommitId) -> StateSize:
    """Count what one commit holds."""
    files = directories = others = size = 0
    for _, entry in walk(store.objects, CommitReader(store.objects).root(commit)):
        if entry.kind is EntryKind.FILE:
            files += 1
            size += entry.size
        elif entry.kind is EntryKind.DIR:
            directories += 1
        else:
            others += 1
    return StateSize(commit, files, directories, others, size)


def gather(store: Store, commit: CommitId | None = None) -> Statistics:
    """Return the numbers of a store; ``commit`` is the state to measure, by default main's newest layer."""
    refs = store.refs
    top = refs.main_layer()
    if commit is None and top is not None:
        commit = top.commit
    counts = count_objects(store)
    commits = sum(count.objects for count in counts.kinds if count.kind is Kind.COMMIT)
    listed = list_packs(store)
    log_bytes = sum(row.length for row in listed if row.role == "log")
    sealed = store.db.packs()
    bulk = max((row.sequence for row in sealed if row.role == BULK), default=0)
    oldest = min((row.sequence for row in sealed if row.role == LOG), default=None)
    since = bulk if oldest is None or oldest > bulk else 0
    if not since:
        since, first_bytes = store.first_layer()
        log_bytes -= first_bytes
    return Statistics(
        None if commit is None else measure_state(store, commit),
        counts,
        commits,
        0 if top is None else top.number,
        len(refs.branches()),
        len(refs.tags()),
        log_bytes,
        store.db.count_new(since),
    )

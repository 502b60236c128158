"""Purge: a path or a commit leaves all of history, and its bytes leave the disk.

Every commit that holds the path, and every one that descends from such a commit, is written anew with a new id;
branches, tags, layers, the reflog and workspaces are moved to the new ones in one restart of the log; then everything old
is collected, leaving no byte of it in any pack. What was done is returned as pairs of old and new ids.

It is refused, before anything is changed, while a workspace stands on a commit that changes: its files still hold what is
to go, and would bring it back. So it is while one is mounted on a cached layer that holds it. The captured directory
itself only must not hold the path any more. Cached layers that hold it go, and what lies on them; damaged packs in
quarantine are told of, since nobody can say what is in them.

The same content under another path is another matter: how much of what was removed is still there is counted at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from layerfs.durable.metadb import LayerRow
from layerfs.errors import NotFound, Refused, quote
from layerfs.ids import CommitId, LayerId, ObjectId, RootId, short
from layerfs.objects.batch import Batch
from layerfs.objects.commits import Commit, put_commit, read_commit
from layerfs.objects.content import ContentRef, iter_pieces, put_content
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import edit_paths, lookup_path, put_root, read_root, walk
from layerfs.objects.layers import Layer, put_layer, read_layer
from layerfs.progress import SILENT, Progress
from layerfs.store.places import cache_file, upper_cache_file
from layerfs.store.pointers import Pointers, commits_of, kept_ops, read_pointers
from layerfs.store.store import Store
from layerfs.store.workspacerecords import Engine, decode_record, encode_record
from layerfs.upkeep.collect import Collected, CollectOptions, collect_held
from layerfs.upkeep.repair import QUARANTINE
from layerfs.workspace.cacheupkeep import forget_dead

TRIES = 5


class PurgeRequest(NamedTuple):
    """What goes: paths, with all below them, or commits (their children come to lie on their parents)."""

    paths: tuple[bytes, ...] = ()
    commits: tuple[CommitId, ...] = ()


class Purged(NamedTuple):
    """What was done: (old, new) of every commit and layer written anew, and what the collection gave back."""

    commits: tuple[tuple[CommitId, CommitId], ...]
    layers: tuple[tuple[LayerId, LayerId], ...]
    contents: int
    remaining: int
    """Of these contents, how many are still there because other paths hold them as well."""
    collected: Collected
    quarantined: tuple[bytes, ...] = ()
    """Damaged packs that a repair put aside, as they were: nobody can say what they hold."""


def purge(
    store: Store,
    request: PurgeRequest,
    options: CollectOptions,
    actor: str = "",
    progress: Progress = SILENT,
    step: Callable[[str], None] = lambda name: None,
) -> Purged:
    """Take paths or commits out of all history. Raises NotFound when nothing holds them, Refused when they are in use."""
    with store.upkeep():
        progress.phase("rewriting history")
        for attempt in range(TRIES):
            with store.batch() as batch:
                pointers = read_pointers(store.db)
                rewriting = _Rewriting(store, batch, request, progress)
                moved = rewriting.pointers(pointers)
                if not rewriting.changed:
                    raise NotFound("nothing in the history of any name holds what is to be purged")
                _refuse_in_use(pointers, rewriting, request)
                _refuse_mounted(store, pointers, rewriting)
                batch.prepare()
                with store.lane() as lane:
                    if read_pointers(store.db).sequence != pointers.sequence and attempt < TRIES - 1:
                        continue
                    step("objects")
                    lane.apply(batch, [], actor)
                    now = read_pointers(store.db)
                    step("restart")
                    lane.restart(kept_ops(moved._replace(sequence=now.sequence, packs=now.packs), ()), actor)
                break
        _forget_caches(store, rewriting)
        step("collect")
        collected = collect_held(store, options._replace(thorough=True, dry_run=False), actor, progress, step)
        forgotten = forget_dead(store, options.retention.now_ns, thorough=True)
        collected = collected._replace(freed_bytes=collected.freed_bytes + forgotten.freed_bytes)
    contents = rewriting.contents
    remaining = sum(store.objects.contains(oid) for oid in contents)
    return Purged(
        tuple(rewriting.changed.items()),
        tuple(rewriting.changed_layers.items()),
        len(contents),
        remaining,
        collected,
        tuple(sorted(_quarantined(store))),
    )


class _Rewriting:
    """History written anew; a commit of which nothing changes keeps its id."""

    def __init__(self, store: Store, batch: Batch, request: PurgeRequest, progress: Progress) -> None:
        self._store = store
        self._batch = batch
        self._request = request
        self._progress = progress
        self._gone = frozenset(request.commits)
        self._commits: dict[CommitId, CommitId] = {}
        self._roots: dict[RootId, RootId] = {}
        self._layers: dict[LayerId, LayerId] = {}
        self.contents: set[ObjectId] = set()

    @property
    def changed(self) -> dict[CommitId, CommitId]:
        """Old and new id of every commit that is not the same any more."""
        return {old: new for old, new in self._commits.items() if old != new}

    @property
    def changed_roots(self) -> set[RootId]:
        """Every root that holds what goes."""
        return {old for old, new in self._roots.items() if old != new}

    @property
    def changed_layers(self) -> dict[LayerId, LayerId]:
        """Old and new id of every layer that is not the same any more."""
        return {old: new for old, new in self._layers.items() if old != new}

    def pointers(self, pointers: Pointers) -> Pointers:
        """Return the pointers with everything they name rewritten."""
        refs = tuple((name, self.commit(commit)) for name, commit in pointers.refs)
        layers = tuple(self._layer_row(row) for row in pointers.layers)
        reflog = tuple(
            row._replace(old=row.old and self.commit(row.old), new=row.new and self.commit(row.new))
            for row in pointers.reflog
        )
        workspaces = tuple((name, self._record(record), at) for name, record, at in pointers.workspaces)
        return pointers._replace(refs=refs, layers=layers, reflog=reflog, workspaces=workspaces)

    def commit(self, start: CommitId) -> CommitId:
        """Return what a commit becomes; its ancestors are written first, without recursion."""
        waiting = [start]
        while waiting:
            oid = waiting[-1]
            if oid in self._commits:
                waiting.pop()
                continue
            commit = read_commit(self._store.objects, oid)
            missing = [parent for parent in commit.parents if parent not in self._commits]
            if missing:
                waiting.extend(missing)
                continue
            self._commits[oid] = self._rewrite(oid, commit)
            self._progress.advance(1)
            waiting.pop()
        return self._commits[start]

    def _rewrite(self, oid: CommitId, commit: Commit) -> CommitId:
        if oid in self._gone:
            if not commit.parents:
                raise Refused(
                    f"commit {short(oid)} has no parent that could take its place", "purge a path instead"
                )
            return self._commits[commit.parents[0]]
        parents = tuple(dict.fromkeys(self._commits[parent] for parent in commit.parents))
        root = self._root(commit.root)
        if root == commit.root and parents == commit.parents:
            return oid
        kept = commit._replace(
            root=root,
            parents=parents,
            reads=tuple(read for read in commit.reads if not self._covers(read.path)),
            renames=tuple(pair for pair in commit.renames if not any(map(self._covers, pair))),
            notes=tuple(note for note in commit.notes if not self._covers(note[0])),
        )
        return put_commit(self._batch, kept)

    def _covers(self, path: bytes) -> bool:
        return any(path == gone or path.startswith(gone + b"/") for gone in self._request.paths)

    def _root(self, oid: RootId) -> RootId:
        known = self._roots.get(oid)
        if known is not None:
            return known
        entry = read_root(self._store.objects, oid)
        found = [path for path in self._request.paths if self._note_contents(entry, path)]
        new = oid
        if found:
            new = put_root(self._batch, edit_paths(self._batch, entry, dict.fromkeys(found)))
        self._roots[oid] = new
        return new

    def _note_contents(self, root: Entry, path: bytes) -> bool:
        entry = lookup_path(self._store.objects, root, path)
        if entry is None:
            return False
        for _, below in walk(self._store.objects, entry, path):
            if below.kind is EntryKind.FILE and below.size:
                self.contents.add(ObjectId(below.ref))
        return True

    def _layer_row(self, row: LayerRow) -> LayerRow:
        if row.commit in self._gone:
            raise Refused(
                f"commit {short(row.commit)} is layer L{row.number} of main",
                "a path of it can be purged instead",
            )
        commit = self.commit(row.commit)
        layer = read_layer(self._store.objects, row.layer)
        previous = None if layer.previous is None else self._layers[layer.previous]
        covered = tuple(self._layers.get(other, other) for other in layer.covered)
        new = layer._replace(
            commit=commit, previous=previous, covered=covered, covered_paths=self._covered(layer)
        )
        self._layers[row.layer] = row.layer if new == layer else put_layer(self._batch, new)
        return row._replace(layer=self._layers[row.layer], commit=commit)

    def _covered(self, layer: Layer) -> ContentRef:
        """Return the list of covered paths without those that go."""
        ref = layer.covered_paths
        if not ref.size:
            return ref
        pieces = iter_pieces(self._store.objects, ref.ref, ref.size)
        paths = b"".join(data or bytes(length) for length, data in pieces).split(b"\0")
        kept = [path for path in paths if not self._covers(path)]
        return ref if kept == paths else put_content(self._batch, b"\0".join(kept))

    def _record(self, payload: bytes) -> bytes:
        record = decode_record(payload)
        return encode_record(
            record._replace(
                last=self.commit(record.last),
                lower=self.commit(record.lower),
                merging=None if record.merging is None else self.commit(record.merging),
            )
        )


def _refuse_in_use(pointers: Pointers, rewriting: _Rewriting, request: PurgeRequest) -> None:
    changed = rewriting.changed
    for _, payload, _ in pointers.workspaces:
        record = decode_record(payload)
        if not any(commit in changed for commit in commits_of(record)):
            continue
        if record.engine is not Engine.SOURCE:
            raise Refused(
                f"workspace {quote(record.name)} stands on what is to be purged",
                "commit what it holds and unmount it, then purge",
            )
        for path in request.paths:
            if os.path.lexists(os.path.join(record.path, path)):
                raise Refused(
                    f"{quote(os.path.join(record.path, path))} is still there, and the next commit would bring it back",
                    "delete it or move it out of the captured directory, then purge",
                )


def _refuse_mounted(store: Store, pointers: Pointers, rewriting: _Rewriting) -> None:
    """Refuse while a workspace is mounted on a cached layer that holds what goes, whatever it stands on itself."""
    going = {
        row.directory
        for row in store.db.cached_layers()
        if RootId(ObjectId(row.root)) in rewriting.changed_roots
    }
    for _, payload, _ in pointers.workspaces:
        record = decode_record(payload)
        if record.attached and going.intersection(record.layers):
            raise Refused(
                f"workspace {quote(record.name)} is mounted on a layer that holds what is to be purged",
                f"'layerfs unmount {record.name}' first, then purge",
            )


def _quarantined(store: Store) -> Iterator[bytes]:
    directory = os.path.join(store.path, QUARANTINE)
    with suppress(FileNotFoundError):
        for name in os.listdir(directory):
            yield os.path.join(directory, name)


def _forget_caches(store: Store, rewriting: _Rewriting) -> None:
    """Remove the stat caches, which may know ids that go; they are made again by use."""
    for name, _ in store.refs.workspaces():
        for path in (cache_file(store, name), upper_cache_file(store, name)):
            with suppress(FileNotFoundError):
                os.unlink(path)

"""Verification: is everything a name reaches there, whole, and what it says it is.

Owns ``fsck``: the check of packs (``objects/packcheck``), of the database's own structure, and the walk over everything
that refs, layers and reflog reach. It changes nothing. A problem names the object, the newest commit and the first path
that need it, so that a person knows what is lost. Each object is visited once, whatever the number of commits.

Without ``read_data`` trees, extents, commits and layers are read and verified and chunks must be present in whole frames;
with it every object of every pack is decoded and hashed as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from layerfs.errors import LayerfsError, MissingObject, StoreDamaged, quote
from layerfs.ids import CommitId, ExtentId, LayerId, ObjectId, RootId, TreeId
from layerfs.objects.commits import Commit, read_commit
from layerfs.objects.database import PackMissing
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import join, read_root
from layerfs.objects.extents import ExtentNode, read_extent_node
from layerfs.objects.kinds import Kind
from layerfs.objects.layers import read_layer
from layerfs.objects.packcheck import PackReport, check_pack
from layerfs.objects.packindex import Place
from layerfs.objects.packs import pack_name
from layerfs.objects.trees import Node, read_node
from layerfs.progress import SILENT, Progress
from layerfs.store.pointers import commits_of, read_pointers
from layerfs.store.store import Store
from layerfs.store.workspacerecords import decode_record

ATTEMPTS = 10


class Problem(NamedTuple):
    """Something wrong: what, and, as far as known, with which object, needed by which commit and path."""

    what: str
    oid: ObjectId | None = None
    kind: Kind | None = None
    commit: CommitId | None = None
    path: bytes | None = None
    pack: str | None = None


class Report(NamedTuple):
    """The outcome of a check."""

    problems: list[Problem]
    packs: int
    frames: int
    objects: int
    reached: int
    commits: int

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_store(store: Store, read_data: bool = False, progress: Progress = SILENT) -> Report:
    """Check a store from its packs up to its refs.

    A collection or a repack that swaps packs meanwhile may take away what was about to be looked at; then problems are
    only believed when they are found again.
    """
    for _ in range(ATTEMPTS):
        base = store.db.state().base
        report = _verify_once(store, read_data, progress)
        if report.clean or store.db.state().base == base:
            break
    return report


def _verify_once(store: Store, read_data: bool, progress: Progress) -> Report:
    problems = [Problem(f"database: {what}") for what in (*store.db.check(), *_check_pointers(store))]
    reports = list(_check_packs(store, read_data, progress))
    for report in reports:
        problems.extend(Problem(what, pack=pack_name(report.number)) for what in report.problems)
    walk = _Walk(store, {report.number: report for report in reports}, progress)
    walk.pointers()
    problems.extend(walk.problems)
    return Report(
        problems,
        len(reports),
        sum(len(report.frames) for report in reports),
        sum(report.objects for report in reports),
        len(walk.seen),
        walk.commits,
    )


def _check_pointers(store: Store) -> Iterator[str]:
    """Yield what the database says otherwise than the log that it is made from."""
    while True:
        state = store.db.state()
        known = read_pointers(store.db)
        if store.db.state() == state:
            break
    try:
        yield from store.differences(known, state)
    except FileNotFoundError as error:
        yield f"a log pack went while it was read: {error}"
    except StoreDamaged as error:
        yield f"the log cannot be replayed: {error.message}"


def _check_packs(store: Store, read_data: bool, progress: Progress) -> Iterable[PackReport]:
    database = store.objects
    database.refresh()
    rows = store.db.packs()
    progress.phase("checking packs", files=len(rows) + 1)
    for row in rows:
        try:
            index = database.index(row.number)
            if row.number in database.index_problems:
                raise StoreDamaged(database.index_problems[row.number])
            index.verify()
            listed = index.rows()
        except PackMissing as error:
            if row.number not in {now.number for now in store.db.packs()}:
                continue
            yield PackReport(row.number, frozenset(), 0, 0, [error.message])
        except LayerfsError as error:
            report = check_pack(database, row.number, store.format.store_id, None, None, read_data)
            yield report._replace(problems=[f"index: {error.message}", *report.problems])
        else:
            yield check_pack(database, row.number, store.format.store_id, listed, None, read_data)
        progress.advance(1)
    with store.db.snapshot():
        state = store.db.state()
        open_rows = store.db.open_rows()
    listed = iter([(row.prefix, Place(row.frame, row.start, row.length, row.kind)) for row in open_rows])
    yield check_pack(database, state.open_pack, store.format.store_id, listed, state.open_length, read_data)


class _Below(NamedTuple):
    """What a tree node says of a node below it: its level, its last name, and how many names it holds."""

    level: int
    last: bytes
    weight: int


def _fits(node: Node, expected: _Below) -> bool:
    last = node.children[-1].key if node.children else node.entries[-1][0] if node.entries else b""
    weight = sum(child.weight for child in node.children) if node.children else len(node.entries)
    return _Below(node.level, last, weight) == expected


class _Walk:
    """One pass over everything reachable."""

    def __init__(self, store: Store, checked: dict[int, PackReport], progress: Progress) -> None:
        self._store = store
        self._objects = store.objects
        self._checked = checked
        self._progress = progress
        self.problems: list[Problem] = []
        self.seen: set[bytes] = set()
        self.commits = 0
        self._commit: CommitId | None = None

    def pointers(self) -> None:
        """Start from every name the database holds."""
        refs = self._store.refs
        self._progress.phase("checking commits")
        starts: list[tuple[str, CommitId]] = refs.all()
        layers = refs.layers()
        starts += [(f"layer L{layer.number}", layer.commit) for layer in layers]
        for name, payload in refs.workspaces():
            try:
                record = decode_record(payload)
            except LayerfsError as error:
                self.problems.append(Problem(f"workspace {quote(name)}: {error.message}"))
                continue
            if record.name != name:
                self.problems.append(
                    Problem(f"workspace {quote(name)}: its record is of {quote(record.name)}")
                )
            starts += [(f"workspace {name}", CommitId(commit)) for commit in commits_of(record)]
        for row in refs.reflog():
            starts += [
                (f"reflog of {row.name}", commit) for commit in (row.old, row.new) if commit is not None
            ]
        for layer in layers:
            self._layer(layer.layer, layer.number, layer.commit)
        for name, commit in starts:
            self._commits_from(name, commit)

    def _problem(self, what: str, oid: ObjectId, kind: Kind, path: bytes | None = None) -> None:
        self.problems.append(Problem(what, oid, kind, self._commit, path))

    def _first(self, oid: ObjectId) -> bool:
        if oid in self.seen:
            return False
        self.seen.add(oid)
        return True

    def _layer(self, oid: LayerId, number: int, commit: CommitId) -> None:
        if not self._first(oid):
            return
        try:
            layer = read_layer(self._objects, oid)
        except LayerfsError as error:
            self._problem(f"layer L{number}: {error.message}", oid, Kind.LAYER)
            return
        if layer.number != number or layer.commit != commit:
            self._problem(f"layer L{number} is not what the database says", oid, Kind.LAYER)
        for other in (*layer.covered, *((layer.previous,) if layer.previous else ())):
            if self._objects.kind_of(other) != Kind.LAYER:
                self._problem(f"layer L{number} names a layer that is missing", other, Kind.LAYER)
        if layer.covered_paths.size:
            self._content(layer.covered_paths.ref, b"", layer.covered_paths.size)

    def _commits_from(self, name: str, start: CommitId) -> None:
        """Walk history from one name, newest first, so that a problem names the newest commit that has it."""
        waiting = [start]
        while waiting:
            oid = waiting.pop()
            if not self._first(oid):
                continue
            self._commit = oid
            try:
                commit = read_commit(self._objects, oid)
            except LayerfsError as error:
                self._problem(f"{name}: {error.message}", oid, Kind.COMMIT)
                continue
            self.commits += 1
            self._progress.advance(1)
            waiting.extend(reversed(commit.parents))
            self._commit_content(commit)
        self._commit = None

    def _commit_content(self, commit: Commit) -> None:
        for key in ("stdout", "stderr"):
            value = commit.about(key) or ""
            if len(value) == 64 and all(digit in "0123456789abcdef" for digit in value):
                self._content(bytes.fromhex(value), b"")
        self._root(commit.root)

    def _root(self, oid: RootId) -> None:
        if not self._first(oid):
            return
        try:
            entry = read_root(self._objects, oid)
        except LayerfsError as error:
            self._problem(error.message, oid, Kind.ROOT, b"")
            return
        self._entries([(b"", entry)])

    def _entries(self, entries: list[tuple[bytes, Entry]]) -> None:
        """Walk entries and all below, depth first without recursion."""
        waiting: list[tuple[bytes, Entry | _Below, ObjectId]] = [
            (path, entry, ObjectId(entry.ref)) for path, entry in reversed(entries)
        ]
        while waiting:
            path, entry, ref = waiting.pop()
            if isinstance(entry, Entry):
                if entry.kind == EntryKind.FILE and entry.size:
                    self._content(entry.ref, path, entry.size)
                if entry.kind != EntryKind.DIR:
                    continue
            if not self._first(ref):
                continue
            node = self._tree_node(ref, path)
            if node is None:
                continue
            if isinstance(entry, _Below) and not _fits(node, entry):
                self._problem("does not fit the node above it", ref, Kind.TREE, path)
            for child in reversed(node.children):
                waiting.append((path, _Below(node.level - 1, child.key, child.weight), child.oid))
            for name, below in reversed(node.entries):
                if below.kind in (EntryKind.FILE, EntryKind.DIR):
                    waiting.append((join(path, name), below, ObjectId(below.ref)))

    def _tree_node(self, oid: ObjectId, path: bytes) -> Node | None:
        try:
            return read_node(self._objects, TreeId(oid))
        except LayerfsError as error:
            self._problem(error.message, oid, Kind.TREE, path)
            return None

    def _content(self, ref: bytes, path: bytes, size: int | None = None) -> None:
        """Check a file's content id: one chunk, or the root of an extent tree, of ``size`` bytes if that is known."""
        waiting: list[tuple[ObjectId, int | None]] = [(ObjectId(ref), size)]
        while waiting:
            oid, length = waiting.pop()
            if not self._first(oid):
                continue
            try:
                located = self._objects.locate(oid)
            except MissingObject:
                self._problem("content is missing", oid, Kind.CHUNK, path)
                continue
            except LayerfsError as error:
                self._problem(error.message, oid, Kind.CHUNK, path)
                continue
            report = self._checked.get(located.pack)
            # Packs and frames that came after the check, from a writer or a collection beside it, are none of ours.
            if (
                report is not None
                and located.place.frame not in report.frames
                and (not report.length or located.place.frame < report.length)
            ):
                kind = Kind(located.place.kind)
                self._problem(f"lies in a damaged frame of pack {pack_name(located.pack)}", oid, kind, path)
            elif located.place.kind == Kind.EXTENT:
                node = self._extent_node(oid, path)
                if node is not None:
                    if length is not None and node.length != length:
                        self._problem(f"has {node.length} bytes instead of {length}", oid, Kind.EXTENT, path)
                    waiting.extend((child.oid, child.weight) for child in reversed(node.children))
                    waiting.extend(
                        (piece.chunk, piece.length)
                        for piece in reversed(node.extents)
                        if piece.chunk is not None
                    )
            elif located.place.kind != Kind.CHUNK:
                self._problem("is no file content", oid, Kind(located.place.kind), path)
            elif length is not None and located.place.length != length:
                self._problem(f"has {located.place.length} bytes instead of {length}", oid, Kind.CHUNK, path)

    def _extent_node(self, oid: ObjectId, path: bytes) -> ExtentNode | None:
        try:
            return read_extent_node(self._objects, ExtentId(oid))
        except LayerfsError as error:
            self._problem(error.message, oid, Kind.EXTENT, path)
            return None

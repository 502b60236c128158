"""Synthetic states: stores whose newest commit holds so many files, and histories of so many commits.

Made from objects, not captured from a disk, so a tree of 100,000 files takes seconds. A hundred files to a directory, a
hundred bytes to a file, all contents different.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from layerfs.history.authorship import Author
from layerfs.history.history import CommitReader
from layerfs.ids import CommitId
from layerfs.objects.commits import Commit, put_commit
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import edit_paths, put_root
from layerfs.objects.kinds import Kind
from layerfs.objects.layers import Layer, put_layer
from layerfs.objects.moves import LayerAdd, RefSet
from layerfs.objects.source import ObjectSink
from layerfs.objects.trees import build_tree
from layerfs.store.refs import branch_ref
from layerfs.store.store import Store
from layerfs.store.workspacerecords import WorkspaceRecord
from layerfs.workspace.attach import MountRequest, attach
from layerfs.workspace.detach import DetachRequest, detach

BRANCH = "bench"
PER_DIRECTORY = 100
MTIME_NS = 1_700_000_000_000_000_000


def author() -> Author:
    """Return who makes the commits, now."""
    return Author("bench <bench@example.com>", time.time_ns(), 0)


def path_of(number: int) -> bytes:
    """Return the path of the file with this number."""
    return b"directory-%04d/file-%02d.txt" % divmod(number, PER_DIRECTORY)


def content_of(number: int, version: int = 0) -> bytes:
    """Return ten lines; a version changes one of them."""
    lines = [b"%d: line %d\n" % (number, line) for line in range(10)]
    if version:
        lines[5] = b"%d: version %d\n" % (number, version)
    return b"".join(lines)


def file_entry(sink: ObjectSink, content: bytes, mtime_ns: int = MTIME_NS) -> Entry:
    """Put a small file's content and return its entry."""
    return Entry(EntryKind.FILE, 0o644, 0, 0, mtime_ns, len(content), sink.put(Kind.CHUNK, content))


class Made(NamedTuple):
    """A store with a branch ``bench`` at ``head``, also layer L1 of main."""

    store: Store
    head: CommitId
    files: int


def make_store(place: Path, files: int, *, durable: bool = True) -> Made:
    """Make a store with one commit of ``files`` files."""
    store = Store.create(bytes(place), clock=time.time_ns, durability="durable" if durable else "disposable")
    with store.batch() as batch:
        directories = []
        for first in range(0, files, PER_DIRECTORY):
            numbers = range(first, min(first + PER_DIRECTORY, files))
            names = [
                (path_of(number).rpartition(b"/")[2], file_entry(batch, content_of(number)))
                for number in numbers
            ]
            tree = build_tree(batch, names)
            name = path_of(first).partition(b"/")[0]
            directories.append((name, Entry(EntryKind.DIR, 0o755, 0, 0, MTIME_NS, 0, tree)))
        root = Entry(EntryKind.DIR, 0o755, 0, 0, MTIME_NS, 0, build_tree(batch, directories))
        who = author()
        head = put_commit(batch, Commit(put_root(batch, root), (), who.time_ns, 0, who.name, "all files"))
        layer = put_layer(batch, Layer(1, head, None, "init", who.time_ns, who.name, "all files"))
        with store.lane() as lane:
            lane.apply(batch, (LayerAdd(1, layer, head), RefSet(branch_ref(BRANCH), None, head, "init")))
    return Made(store, head, files)


def edit(
    store: Store,
    parent: CommitId,
    numbers: range,
    version: int,
    branch: str | None = BRANCH,
    old: bool = True,
) -> CommitId:
    """Commit a change of one line in each of these files on top of ``parent``; move ``branch`` there."""
    with store.batch() as batch:
        root = CommitReader(batch).root(parent)
        stamp = MTIME_NS + version
        changes: dict[bytes, Entry | None] = {
            path_of(number): file_entry(batch, content_of(number, version), stamp) for number in numbers
        }
        who = author()
        edited = put_root(batch, edit_paths(batch, root, changes))
        commit = put_commit(batch, Commit(edited, (parent,), who.time_ns, 0, who.name, f"version {version}"))
        with store.lane() as lane:
            before = parent if old else None
            ops = [RefSet(branch_ref(branch), before, commit, "edit")] if branch is not None else []
            lane.apply(batch, ops)
    return commit


def extend(store: Store, head: CommitId, commits: int) -> CommitId:
    """Append one-line commits to the branch."""
    for version in range(1, commits + 1):
        head = edit(store, head, range(version % 100, version % 100 + 1), version)
    return head


def mount(store: Store, path: Path, text: str = BRANCH, *, volatile: bool = False) -> WorkspaceRecord:
    """Attach an overlay workspace, as ``layerfs mount`` does."""
    from layerfs.history.revision import resolve

    request = MountRequest(resolve(store, text), author(), bytes(path), "overlay", volatile)
    return attach(store, request).record


def unmount(store: Store, record: WorkspaceRecord, *, discard: bool = False) -> None:
    """Detach a workspace, as ``layerfs unmount`` does."""
    kept = detach(store, record, DetachRequest(author(), discard))
    if kept.kept:
        raise SystemExit(f"workspace {record.name} still held work")

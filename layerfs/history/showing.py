"""Showing: what one revision is, or what lies at a path in it.

Owns what ``show`` gathers for a commit – the layers that show it, and its changes against its first parent – and for
``REV:PATH``. A first commit is the capture of everything: its changes are gathered only when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from layerfs.errors import UsageError, quote
from layerfs.history.diffing import FileDiff, list_changes, read_diff
from layerfs.history.history import CommitReader
from layerfs.history.layerstack import StackedLayer, layers_of
from layerfs.history.revision import resolve, resolve_place
from layerfs.history.states import file_content
from layerfs.ids import CommitId, ObjectId, TreeId
from layerfs.objects.commits import Commit
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import Change
from layerfs.objects.trees import read_tree
from layerfs.store.store import Store


class State(NamedTuple):
    """A commit, its layers, and its changes; take either ``changes`` or ``diffs``, both read the same stream.

    ``is_first`` says that the commit has no parent and its changes were left out.
    """

    oid: CommitId
    commit: Commit
    layers: tuple[StackedLayer, ...]
    changes: Iterator[Change]
    diffs: Iterator[FileDiff]
    is_first: bool


class ShownPlace(NamedTuple):
    """What lies at ``REV:PATH``: its entry, the pieces of its content, or the names it holds."""

    path: bytes
    entry: Entry
    content: Iterator[bytes]
    names: tuple[tuple[bytes, Entry], ...] = ()


def is_place(word: str) -> bool:
    """Whether a word is ``REV:PATH``."""
    return ":" in word


def read_state(store: Store, word: str, at: CommitId | None, with_first: bool, times: bool) -> State:
    """Return the state that ``word`` names."""
    oid = resolve(store, word, at).commit
    reader = CommitReader(store.objects)
    commit = reader.commit(oid)
    is_first = not commit.parents and not with_first
    changes: Iterator[Change] = iter(())
    if not is_first:
        old = reader.root(commit.parents[0]) if commit.parents else None
        changes = list_changes(store.objects, old, reader.root(oid), (), times)
    diffs = (read_diff(store.objects, change) for change in changes)
    return State(oid, commit, tuple(layers_of(store, oid)), changes, diffs, is_first)


def open_place(store: Store, word: str, at: CommitId | None) -> ShownPlace:
    """Return what lies at ``REV:PATH``; UsageError for what has no content to show."""
    place = resolve_place(store, word, at)
    entry = place.entry
    if entry.kind is EntryKind.DIR:
        names = tuple(read_tree(store.objects, TreeId(ObjectId(entry.ref))))
        return ShownPlace(place.path, entry, iter(()), names)
    if entry.kind not in (EntryKind.FILE, EntryKind.SYMLINK):
        raise UsageError(f"{quote(place.path)} is a {entry.kind.name.lower()} and has no content")
    return ShownPlace(place.path, entry, file_content(store.objects, entry))

"""Sets of revisions: what ``REV... ^REV A..B -- PATH...`` selects from history.

Owns the words around single revisions and the composition of a walk: exclusion, first parents, paths, folded joins, a
bound. Single revisions are ``revision``'s, the walks themselves ``history``'s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from layerfs.history.history import CommitReader, LoggedCommit, touching, walk_commits, without_joins
from layerfs.history.revision import resolve
from layerfs.ids import CommitId
from layerfs.merge.mergebase import is_ancestor, merge_bases
from layerfs.store.store import Store


class RevisionSet(NamedTuple):
    """Commits to start from, and commits that are left out with everything below them."""

    starts: tuple[CommitId, ...]
    excluded: tuple[CommitId, ...]


class Selection(NamedTuple):
    """Which of the reachable commits are wanted."""

    paths: tuple[bytes, ...] = ()
    first_parent: bool = False
    joins: bool = True
    limit: int | None = None
    topological: bool = False


def parse_set(
    store: Store, words: Iterable[str], at: CommitId | None, default: str | None = None
) -> RevisionSet:
    """Resolve the words of a set; ``default`` stands for no words that select anything."""
    starts: list[CommitId] = []
    excluded: list[CommitId] = []
    for word in words:
        if ".." in word:
            low, _, high = word.partition("..")
            excluded.append(resolve(store, low or "@", at).commit)
            starts.append(resolve(store, high or "@", at).commit)
        elif word.startswith("^"):
            excluded.append(resolve(store, word[1:] or "@", at).commit)
        else:
            starts.append(resolve(store, word, at).commit)
    if not starts and default is not None:
        starts.append(resolve(store, default, at).commit)
    return RevisionSet(tuple(dict.fromkeys(starts)), tuple(dict.fromkeys(excluded)))


def select(reader: CommitReader, wanted: RevisionSet, selection: Selection) -> Iterator[LoggedCommit]:
    """Yield the commits of a set, newest first."""
    walk = walk_commits(
        reader,
        wanted.starts,
        excluded=wanted.excluded,
        first_parent=selection.first_parent,
        topological=selection.topological,
    )
    if selection.paths:
        walk = touching(reader, walk, selection.paths)
    if not selection.joins:
        walk = without_joins(walk)
    return walk if selection.limit is None else islice(walk, min(selection.limit, sys.maxsize))


def find_merge_bases(store: Store, one: CommitId, other: CommitId) -> list[CommitId]:
    """Return all merge bases of two commits, newest first."""
    reader = CommitReader(store.objects)
    return merge_bases(one, other, reader.parents, reader.time)


def reaches(store: Store, descendants: Sequence[CommitId], ancestor: CommitId) -> bool:
    """Whether ``ancestor`` is one of the commits or reachable from one of them."""
    if ancestor in descendants:
        return True
    reader = CommitReader(store.objects)
    return any(is_ancestor(ancestor, commit, reader.parents, reader.time) for commit in descendants)

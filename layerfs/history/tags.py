"""Tags: names for commits that stay where they are put."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from layerfs.errors import AlreadyExists, NotFound, quote
from layerfs.history.history import CommitReader
from layerfs.history.revision import resolve
from layerfs.ids import CommitId, short
from layerfs.objects.commits import Commit
from layerfs.objects.moves import RefSet
from layerfs.store.refs import MAIN, tag_ref
from layerfs.store.store import Store


class Tag(NamedTuple):
    """A tag and the commit it names."""

    name: str
    target: CommitId
    commit: Commit


class TagMove(NamedTuple):
    """What happened to a tag: ``old`` None if it was made, ``new`` None if it was deleted."""

    name: str
    old: CommitId | None
    new: CommitId | None


def list_tags(store: Store) -> list[Tag]:
    """Return all tags by name."""
    reader = CommitReader(store.objects)
    return [Tag(name, target, reader.commit(target)) for name, target in store.refs.tags()]


def make_tag(
    store: Store, name: str, word: str | None, force: bool, at: CommitId | None, actor: str
) -> TagMove:
    """Make a tag at a state (default ``@`` in a workspace, else main); move an existing one only if forced."""
    ref = tag_ref(name)
    word = word if word is not None else MAIN if at is None else "@"
    with store.lane() as lane:
        target = resolve(store, word, at).commit
        old = lane.refs.tag(name)
        if old is not None and old != target and not force:
            raise AlreadyExists(f"there is a tag {quote(name)} already, at {short(old)}", "--force moves it")
        if old != target:
            lane.apply(None, (RefSet(ref, old, target, f"tag {word}"),), actor)
    return TagMove(name, old, target)


def delete_tags(store: Store, names: Sequence[str], actor: str) -> list[TagMove]:
    """Delete tags, all or none."""
    moves = []
    with store.lane() as lane:
        for name in dict.fromkeys(names):
            old = lane.refs.tag(name)
            if old is None:
                raise NotFound(f"no such tag: {quote(name)}", "'layerfs tag' lists them")
            moves.append(TagMove(name, old, None))
        lane.apply(None, [RefSet(tag_ref(move.name), move.old, None, "delete") for move in moves], actor)
    return moves

"""Ref updates: plumbing that moves branches and tags by compare-and-set, one or many in one move.

Owns the small language of ``update-ref`` and its check: every change states what it believes is there, and if one belief
does not hold (exit 12) none of the changes is made. Main is no ref; only publishing moves it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from layerfs.errors import ExpectationFailed, UsageError, quote
from layerfs.history.revision import resolve
from layerfs.ids import CommitId, short
from layerfs.objects.moves import RefSet
from layerfs.store.refs import HEADS, MAIN_REF, TAGS, check_name
from layerfs.store.store import Lane, Store

ZERO = "0" * 64
_FIELDS = {"update": (2, 3), "create": (2, 2), "delete": (1, 2), "verify": (1, 2)}


class RefUpdate(NamedTuple):
    """One change as given: the verb, the full ref, and revisions; ``old`` None means "whatever is there"."""

    verb: str
    ref: str
    new: str | None = None
    old: str | None = None


class RefMoved(NamedTuple):
    """One ref and its value before and after."""

    ref: str
    old: CommitId | None
    new: CommitId | None


def parse_update(line: bytes) -> RefUpdate:
    """Parse ``update REF NEW [OLD]``, ``create REF NEW``, ``delete REF [OLD]`` or ``verify REF [OLD]``."""
    words = line.decode("utf-8", "surrogateescape").split(" ")
    low, high = _FIELDS.get(words[0], (0, -1))
    if not low <= len(words) - 1 <= high or not all(words):
        raise UsageError(
            f"not an update of a ref: {quote(line)}", "'layerfs help update-ref' lists the forms"
        )
    verb, ref, *rest = words
    if verb == "update":
        return RefUpdate(verb, ref, rest[0], rest[1] if len(rest) > 1 else None)
    if verb == "create":
        return RefUpdate(verb, ref, rest[0], ZERO)
    default = ZERO if verb == "verify" else None
    return RefUpdate(verb, ref, None, rest[0] if rest else default)


def check_full_ref(ref: str) -> str:
    """Return a full ref of a branch or tag; raise UsageError for anything else."""
    if ref == MAIN_REF:
        raise UsageError("main is a stack of layers, not a ref", "'layerfs publish' adds a layer")
    for prefix in (HEADS, TAGS):
        if ref.startswith(prefix):
            check_name(ref.removeprefix(prefix))
            return ref
    raise UsageError(f"not a full ref: {quote(ref)}", f"write {HEADS}NAME or {TAGS}NAME")


def update_refs(
    store: Store, updates: Iterable[RefUpdate], at: CommitId | None, why: str, actor: str
) -> list[RefMoved]:
    """Make all changes in one move, or none; return those that changed something."""
    wanted = list(updates)
    refs = [check_full_ref(update.ref) for update in wanted]
    twice = next((ref for number, ref in enumerate(refs) if ref in refs[:number]), None)
    if twice is not None:
        raise UsageError(f"ref {quote(twice)} is given twice")
    with store.lane() as lane:
        moves = [_checked(store, lane, update, at) for update in wanted]
        changed = [move for move in moves if move.old != move.new]
        if changed:
            lane.apply(None, [RefSet(move.ref, move.old, move.new, why) for move in changed], actor)
    return changed


def _checked(store: Store, lane: Lane, update: RefUpdate, at: CommitId | None) -> RefMoved:
    found = lane.refs.get(update.ref)
    if update.old is not None:
        expected = None if update.old == ZERO else resolve(store, update.old, at).commit
        if found != expected:
            raise ExpectationFailed(
                f"{quote(update.ref)} is at {_shown(found)}, not at {_shown(expected)}", "nothing was done"
            )
    if update.verb == "verify":
        return RefMoved(update.ref, found, found)
    if update.verb == "delete" or update.new == ZERO:
        if found is None:
            raise ExpectationFailed(f"there is no {quote(update.ref)}", "nothing was done")
        return RefMoved(update.ref, found, None)
    assert update.new is not None
    return RefMoved(update.ref, found, resolve(store, update.new, at).commit)


def _shown(commit: CommitId | None) -> str:
    return "nothing" if commit is None else short(commit)

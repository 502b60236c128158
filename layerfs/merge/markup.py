"""Marked merges: a conflicted merge written out so that a person or an agent can decide it in the files.

The result is a whole tree. What merges cleanly is merged. A text that conflicts has markers; where a file was changed on
one side and deleted on the other the changed one is kept; anything else keeps our side in place and puts theirs beside it
under ``NAME~theirs`` (made unique and short enough). So no byte of either side is missing from the tree or from the list
of conflicts. Pure: what is done with the tree and the list is the caller's (``workspace/openmerge``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from layerfs.merge import textmerge
from layerfs.merge.conflicts import Conflict, ConflictKind
from layerfs.merge.textmerge import Labels
from layerfs.merge.treemerge import MergeResult, merge_trees
from layerfs.objects.content import put_content, read_content
from layerfs.objects.entry import NAME_MAX, Entry, EntryKind
from layerfs.objects.environment import edit_paths, join, lookup_path, split
from layerfs.objects.source import ObjectStore

SUFFIX = b"~theirs"
_TEXTS = (ConflictKind.BOTH_MODIFIED, ConflictKind.BOTH_ADDED)
MAX_ROUNDS = 8
_MARKER = re.compile(rb"^(?:<{7,}|\|{7,}|>{7,}) ", re.MULTILINE)


class Marked(NamedTuple):
    """The tree to put into the workspace, and for each conflict its path and, if any, the path of their side."""

    root: Entry
    beside: dict[bytes, bytes]


def mark_conflicts(
    store: ObjectStore,
    base: Entry | None,
    ours: Entry,
    theirs: Entry,
    conflicts: Iterable[Conflict],
    labels: Labels,
    merge_time_ns: int,
) -> Marked | None:
    """Return the merge of two environments with its conflicts written out; None if that cannot be done by paths.

    The conflicts are taken out of the question first, by giving base and theirs our entry at each conflicted path: what
    is left merges cleanly, and the conflicted paths are then put in as described above.
    """
    wanted = tuple(conflicts)
    rest = _merge_rest(store, base, ours, theirs, wanted, merge_time_ns)
    if rest is None or rest.root is None:
        return None
    edits: dict[bytes, Entry | None] = {}
    beside: dict[bytes, bytes] = {}
    for conflict in wanted:
        marked = _marked_text(store, conflict, labels, merge_time_ns)
        if marked is not None:
            edits[conflict.path] = marked
        elif conflict.ours is None and conflict.theirs is not None:
            edits[conflict.path] = conflict.theirs
        elif conflict.theirs is not None and conflict.ours is not None:
            other = _free_path(store, rest.root, conflict.path, edits)
            edits[other] = conflict.theirs
            beside[conflict.path] = other
    try:
        return Marked(edit_paths(store, rest.root, edits), beside)
    except KeyError:
        return None


def _merge_rest(
    store: ObjectStore,
    base: Entry | None,
    ours: Entry,
    theirs: Entry,
    conflicts: tuple[Conflict, ...],
    merge_time_ns: int,
) -> MergeResult | None:
    """Merge everything but the conflicts; deciding one may bring up another below it, hence the rounds."""
    paths = {conflict.path for conflict in conflicts}
    for _ in range(MAX_ROUNDS):
        edits = {path: lookup_path(store, ours, path) for path in paths if path}
        try:
            their_rest = edit_paths(store, theirs, edits)
            base_rest = None if base is None else edit_paths(store, base, edits)
        except KeyError:
            return None
        result = merge_trees(store, store, base_rest, ours, their_rest, merge_time_ns=merge_time_ns)
        fresh = {conflict.path for conflict in result.conflicts} - paths
        if result.is_clean or not fresh:
            return result
        paths |= fresh
    return None


def _marked_text(store: ObjectStore, conflict: Conflict, labels: Labels, merge_time_ns: int) -> Entry | None:
    ours, theirs = conflict.ours, conflict.theirs
    if conflict.kind not in _TEXTS or ours is None or theirs is None:
        return None
    if ours.kind is not EntryKind.FILE or theirs.kind is not EntryKind.FILE:
        return None
    has_base = conflict.base is not None and conflict.base.kind is EntryKind.FILE
    base = read_content(store, conflict.base) if has_base and conflict.base is not None else b""
    mine, other = read_content(store, ours), read_content(store, theirs)
    if not all(map(textmerge.is_text, (base, mine, other))):
        return None
    content = put_content(store, textmerge.render(textmerge.merge(base, mine, other), labels), ours)
    return ours._replace(ref=content.ref, size=content.size, mtime_ns=merge_time_ns, link_group=0)


def _free_path(store: ObjectStore, root: Entry, path: bytes, edits: dict[bytes, Entry | None]) -> bytes:
    parent, name = split(path)
    for number in range(1000):
        suffix = SUFFIX if not number else SUFFIX + b"_%d" % (number - 1)
        candidate = join(parent, name[: NAME_MAX - len(suffix)] + suffix)
        if candidate not in edits and lookup_path(store, root, candidate) is None:
            return candidate
    raise ValueError("no free name beside a conflicted path")


def has_markers(text: bytes) -> bool:
    """Whether a text still holds a conflict marker: a line of seven or more ``<``, ``|`` or ``>``, then a space.

    Any one of them counts, since a half-deleted block is not decided. The middle line does not: it is also an underline.
    """
    return _MARKER.search(text) is not None

"""Revisions: what a person types to name a state, and which commit that is.

The grammar, as in Git where the meaning matches: ``main`` (its newest layer), ``L7`` (a layer), a branch, a tag, a full
ref name, a commit id or a prefix of at least six hex digits, ``@`` (the workspace's last own commit); followed by any
number of ``~N`` (N-th first ancestor), ``^N`` (N-th parent) and ``@{N}`` (N moves ago, for a name at the front); and
``REV:PATH`` for something inside a state. Names that could be mistaken for another form cannot be given (``refs``).
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from layerfs.errors import AmbiguousName, NotFound, UsageError, quote
from layerfs.history.history import CommitReader
from layerfs.ids import MIN_PREFIX_HEX, CommitId, ObjectId, short
from layerfs.objects.entry import Entry
from layerfs.objects.environment import lookup_path
from layerfs.objects.kinds import Kind
from layerfs.store.refs import HEADS, MAIN, MAIN_REF, TAGS
from layerfs.store.store import Store

_STEP = re.compile(r"~(\d*)|\^(\d*)|@\{(\d+)\}")
_LAYER = re.compile(r"[Ll](\d+)")
_HEX = re.compile(r"[0-9a-fA-F]+")
MAX_NUMBER = 1 << 60
"""More than any store has of anything, and still a number the database takes."""


class Revision(NamedTuple):
    """A resolved revision: its commit, and the ref or layer that the text named directly, if it did."""

    text: str
    commit: CommitId
    ref: str | None = None
    layer: int | None = None

    @property
    def branch(self) -> str | None:
        """The branch that the text named, when it named one and nothing else."""
        return self.ref.removeprefix(HEADS) if self.ref is not None and self.ref.startswith(HEADS) else None


def resolve(store: Store, text: str, at: CommitId | None = None) -> Revision:
    """Return the commit that ``text`` names; ``at`` is what ``@`` stands for, None outside of a workspace.

    Raises NotFound, AmbiguousName or UsageError, each naming the part that does not work.
    """
    if not text:
        raise UsageError("a revision cannot be empty", "'layerfs help revisions' lists the forms")
    match = (
        _STEP.search(text, 1) if text.startswith("@") and not text.startswith("@{") else _STEP.search(text)
    )
    name = text[: match.start()] if match else text
    revision = _resolve_name(store, name or "@", at)._replace(text=text)
    position = len(name)
    reader = CommitReader(store.objects)
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None:
            raise UsageError(f"not a revision: {quote(text)}", "'layerfs help revisions' lists the forms")
        revision = _take_step(store, reader, revision, step, text)
        position = step.end()
    return revision


def _resolve_name(store: Store, name: str, at: CommitId | None) -> Revision:
    if name in ("@", "HEAD"):
        if at is None:
            raise NotFound(
                f"{quote(name)} means the workspace's last commit, and this is no workspace",
                "run the command inside a workspace, or name a branch, a layer or a commit",
            )
        return Revision(name, at)
    refs = store.refs
    layer = _LAYER.fullmatch(name)
    if name in (MAIN, MAIN_REF) or layer:
        row = refs.layer(_number(layer.group(1))) if layer else refs.main_layer()
        if row is None:
            if layer:
                raise NotFound(f"no such layer: {quote(name)}", "'layerfs layers' lists them")
            raise NotFound("main has no layer yet", "'layerfs fetch STORE' brings those of another store")
        return Revision(name, row.commit, None if layer else MAIN_REF, row.number)
    for ref in (name,) if name.startswith("refs/") else (HEADS + name, TAGS + name):
        commit = refs.get(ref)
        if commit is not None:
            return Revision(name, commit, ref)
    if _HEX.fullmatch(name) and len(name) >= MIN_PREFIX_HEX:
        return Revision(name, _by_prefix(store, name))
    raise NotFound(
        f"no such revision: {quote(name)}", "'layerfs branch' and 'layerfs layers' list what there is"
    )


def _number(digits: str) -> int:
    """Return a number that a person typed; one that no store can reach stands for all of those."""
    return min(int(digits[:20]), MAX_NUMBER)


def _by_prefix(store: Store, digits: str) -> CommitId:
    found = store.objects.resolve_prefix(digits.lower(), Kind.COMMIT)
    if len(found) == 1:
        return CommitId(found[0])
    if found:
        some = ", ".join(short(oid) for oid in found[:5])
        raise AmbiguousName(f"{quote(digits)} fits {len(found)} commits", f"give more digits: {some}")
    raise NotFound(f"no such commit: {quote(digits)}")


def _take_step(
    store: Store, reader: CommitReader, revision: Revision, step: re.Match[str], text: str
) -> Revision:
    ancestors, parent, ago = step.groups()
    commit = revision.commit
    if ago is not None:
        return Revision(text, _moves_ago(store, revision, _number(ago), text))
    if ancestors is not None:
        for _ in range(_number(ancestors or "1")):
            parents = reader.parents(commit)
            if not parents:
                raise NotFound(f"no such revision: {quote(text)}: history ends before that")
            commit = parents[0]
        return Revision(text, commit)
    number = _number(parent or "1")
    if number:
        parents = reader.parents(commit)
        if number > len(parents):
            raise NotFound(f"no such revision: {quote(text)}: {short(commit)} has {len(parents)} parents")
        commit = parents[number - 1]
    return Revision(text, commit)


def _moves_ago(store: Store, revision: Revision, ago: int, text: str) -> CommitId:
    if revision.ref is None:
        raise UsageError(f"{quote(text)} needs a branch, a tag or main before '@{{'")
    if revision.ref == MAIN_REF:
        assert revision.layer is not None
        row = store.refs.layer(revision.layer - ago)
        if row is None:
            raise NotFound(f"main has only {revision.layer} layers")
        return row.commit
    log = store.refs.reflog(revision.ref, ago + 1)
    if ago < len(log):
        found = log[ago].new
    elif ago == len(log) and log:
        found = log[-1].old
    else:
        found = None
    if found is None:
        raise NotFound(f"{quote(revision.ref)} has only {len(log)} moves on record")
    return found


class Place(NamedTuple):
    """``REV:PATH`` resolved: the revision, the path, and the entry there."""

    revision: Revision
    path: bytes
    entry: Entry


def resolve_place(store: Store, text: str, at: CommitId | None = None) -> Place:
    """Resolve ``REV:PATH``; a text without a colon is the root of REV. Raises NotFound when nothing is there."""
    name, colon, path_text = text.partition(":")
    revision = resolve(store, "@" if colon and not name else name, at)
    path = os.fsencode(path_text).strip(b"/")
    root = CommitReader(store.objects).root(revision.commit)
    entry = lookup_path(store.objects, root, path)
    if entry is None:
        raise NotFound(f"no path {quote(path)} in {quote(name or '@')}")
    return Place(revision, path, entry)


def resolve_object(store: Store, text: str, at: CommitId | None = None) -> tuple[ObjectId, Kind]:
    """Return the object that ``text`` names: any id or prefix of one, ``REV:PATH``, or a revision (its commit)."""
    if ":" in text:
        place = resolve_place(store, text, at)
        if place.entry.ref and len(place.entry.ref) == 32:
            oid = ObjectId(place.entry.ref)
            kind = store.objects.kind_of(oid)
            if kind is not None:
                return oid, kind
        raise NotFound(
            f"{quote(text)} has no object of its own", "empty files, links and devices live in their tree"
        )
    if _HEX.fullmatch(text) and len(text) >= MIN_PREFIX_HEX:
        found = store.objects.resolve_prefix(text.lower())
        if len(found) > 1:
            some = ", ".join(short(oid) for oid in found[:5])
            raise AmbiguousName(f"{quote(text)} fits {len(found)} objects", f"give more digits: {some}")
        if found:
            kind = store.objects.kind_of(found[0])
            if kind is not None:
                return found[0], kind
        if len(text) == 64:
            raise NotFound(f"no such object: {quote(text)}")
    return resolve(store, text, at).commit, Kind.COMMIT

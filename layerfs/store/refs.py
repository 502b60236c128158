"""Refs: names for commits, the stack of main, and the history of both.

Owns the rules for names, the read view that every operation uses, and the compare-and-set by which a move changes
pointers: an operation states the value it believes in, and if that is not the value found nothing at all is done.
Branches are ``refs/heads/NAME``, tags ``refs/tags/NAME``; main is no ref but the stack of layers and is shown as
``refs/main``. Resolving what a person typed (``REV~2``, prefixes, ``@``) is in ``revision``.

A name is valid when ``git check-ref-format --branch`` would take it, is at most 200 bytes of UTF-8, and cannot be
mistaken for another form of revision: it is not ``main``, ``HEAD`` or ``refs``, does not begin with ``-`` or ``@``, is
not ``L`` and digits, and is not 6 to 64 hex digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from layerfs.durable.metadb import LayerRow, MetaDb, PackRow, ReflogRow
from layerfs.errors import ExpectationFailed, NotFound, StoreDamaged, UsageError, quote
from layerfs.ids import CommitId, LayerId, short
from layerfs.objects.moves import (
    LayerAdd,
    LayerKept,
    Move,
    Op,
    PackAdd,
    PackDrop,
    PackKept,
    RefKept,
    ReflogKept,
    RefSet,
    Restart,
    WorkspaceDrop,
    WorkspaceKept,
    WorkspacePut,
)
from layerfs.objects.packs import BULK, pack_number

HEADS = "refs/heads/"
TAGS = "refs/tags/"
MAIN = "main"
MAIN_REF = "refs/main"
RESERVED = frozenset({MAIN, "HEAD", "refs"})
MAX_NAME_BYTES = 200
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^/|/$|\.$")
_REVISION_LIKE = re.compile(r"[Ll][0-9]+|[0-9a-fA-F]{6,64}")


class MainLayer(NamedTuple):
    """The newest layer of main."""

    number: int
    layer: LayerId
    commit: CommitId


def name_problem(name: str) -> str | None:
    """Return why ``name`` cannot be a branch or tag; None when it can."""
    try:
        length = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        return "it is not UTF-8"
    if not name:
        return "it is empty"
    if length > MAX_NAME_BYTES:
        return f"it is longer than {MAX_NAME_BYTES} bytes"
    if name in RESERVED or name.startswith("refs/"):
        return "it is reserved"
    if name[0] in "-@":
        return f"it begins with {name[0]}"
    if _REVISION_LIKE.fullmatch(name):
        return "it looks like a layer or a commit id"
    if _FORBIDDEN.search(name):
        return "it holds a character or sequence that git forbids in names"
    for part in name.split("/"):
        if part.startswith(".") or part.endswith(".lock"):
            return "a part of it begins with a dot or ends with .lock"
    return None


def check_name(name: str) -> str:
    """Return ``name``; raise UsageError when it cannot be a branch or tag."""
    problem = name_problem(name)
    if problem is not None:
        raise UsageError(f"not a valid name: {quote(name)}: {problem}")
    return name


def branch_ref(name: str) -> str:
    """Return the full ref of a branch."""
    return HEADS + check_name(name)


def tag_ref(name: str) -> str:
    """Return the full ref of a tag."""
    return TAGS + check_name(name)


def short_ref(ref: str) -> str:
    """Return the name people use for a full ref."""
    return ref.removeprefix(HEADS).removeprefix(TAGS) if ref != MAIN_REF else MAIN


class Refs:
    """The current pointers. Every call reads the database, so inside the lane it is the truth."""

    def __init__(self, db: MetaDb) -> None:
        self._db = db

    def get(self, ref: str) -> CommitId | None:
        """Return what a full ref name points at (``refs/main`` included)."""
        if ref == MAIN_REF:
            top = self._db.top_layer()
            return None if top is None else top.commit
        return self._db.ref(ref)

    def head(self, branch: str) -> CommitId | None:
        """Return the head of a branch; None when there is no such branch."""
        return self._db.ref(HEADS + branch)

    def need_head(self, branch: str) -> CommitId:
        """Return the head of a branch; raise NotFound when there is no such branch."""
        head = self.head(branch)
        if head is None:
            hint = (
                "main is the stack of layers: 'layerfs publish' adds to it"
                if branch == MAIN
                else "'layerfs branch' lists them, 'layerfs fork' makes one"
            )
            raise NotFound(f"no such branch: {quote(branch)}", hint)
        return head

    def tag(self, name: str) -> CommitId | None:
        """Return what a tag points at."""
        return self._db.ref(TAGS + name)

    def branches(self) -> list[tuple[str, CommitId]]:
        """Return branches by name, without the ``refs/heads/``."""
        return [(name.removeprefix(HEADS), commit) for name, commit in self._db.refs(HEADS)]

    def tags(self) -> list[tuple[str, CommitId]]:
        """Return tags by name, without the ``refs/tags/``."""
        return [(name.removeprefix(TAGS), commit) for name, commit in self._db.refs(TAGS)]

    def all(self) -> list[tuple[str, CommitId]]:
        """Return every full ref name with its commit, by name; ``refs/main`` included."""
        found = self._db.refs("refs/")
        top = self._db.top_layer()
        if top is not None:
            found.append((MAIN_REF, top.commit))
        return sorted(found)

    def main_layer(self) -> MainLayer | None:
        """Return the newest layer of main; None in a store without one."""
        top = self._db.top_layer()
        return None if top is None else MainLayer(top.number, top.layer, top.commit)

    def layer(self, number: int) -> MainLayer | None:
        """Return a layer by number."""
        row = self._db.layer(number)
        return None if row is None else MainLayer(row.number, row.layer, row.commit)

    def layers(self) -> list[MainLayer]:
        """Return all layers of main, newest first."""
        return [MainLayer(row.number, row.layer, row.commit) for row in self._db.layers()]

    def reflog(self, ref: str | None = None, limit: int = -1) -> list[ReflogRow]:
        """Return the changes of a full ref name (None: of every ref), newest first."""
        return self._db.reflog(ref, limit)

    def workspace(self, name: str) -> bytes | None:
        """Return a workspace's record."""
        return self._db.workspace(name)

    def workspaces(self) -> list[tuple[str, bytes]]:
        """Return every workspace's name and record."""
        return self._db.workspaces()


def check_ops(refs: Refs, ops: Iterable[Op]) -> None:
    """Raise ExpectationFailed unless every operation starts from the value that is there."""
    seen: dict[str, CommitId | None] = {}
    number: int | None = None
    for op in ops:
        match op:
            case RefSet(name, old, new):
                found = seen[name] if name in seen else refs.get(name)
                if found != old:
                    raise ExpectationFailed(
                        f"{quote(short_ref(name))} is at {_shown(found)}, not at {_shown(old)}",
                        "nothing was done",
                    )
                seen[name] = new
            case LayerAdd():
                if number is None:
                    top = refs.main_layer()
                    number = 0 if top is None else top.number
                number += 1
                if op.number != number:
                    raise ExpectationFailed(
                        f"main is at layer L{number - 1}, not at L{op.number - 1}", "nothing was done"
                    )


def check_ref_names(ops: Iterable[Op]) -> None:
    """Refuse an operation on a ref whose name is against the rules (deleting one is always possible)."""
    for op in ops:
        if isinstance(op, RefSet) and op.new is not None:
            if op.name.startswith(HEADS):
                check_name(op.name.removeprefix(HEADS))
            elif op.name.startswith(TAGS):
                check_name(op.name.removeprefix(TAGS))
            else:
                raise UsageError(f"not a branch or tag: {quote(op.name)}")


def apply_move(db: MetaDb, move: Move, pack: int, checked: bool = False) -> None:
    """Make the operations of a move in log pack ``pack`` true in the database, inside the caller's transaction.

    Live commits and replay run this same function. A live move was ``checked`` before it was written, in the lane; a
    replayed one is checked here, so that a log that does not fit together is found instead of believed.
    """
    try:
        if not checked:
            check_ops(Refs(db), move.ops)
    except ExpectationFailed as error:
        raise StoreDamaged(
            f"move {move.sequence} does not follow from the one before: {error.message}"
        ) from error
    for position, op in enumerate(move.ops):
        if isinstance(op, Restart):
            db.restart(pack)
        else:
            _apply_op(db, move, position, op)


def _apply_op(db: MetaDb, move: Move, position: int, op: Op) -> None:
    match op:
        case RefSet(name, old, new, why):
            db.set_ref(ReflogRow(name, move.sequence, position, old, new, move.actor, move.time_ns, why))
        case LayerAdd(number, layer, commit):
            db.add_layer(LayerRow(number, layer, commit, move.sequence))
        case PackAdd(name):
            db.add_pack(PackRow(pack_number(name), BULK, move.sequence))
        case PackDrop(name):
            db.drop_pack(pack_number(name))
        case WorkspacePut(name, record):
            db.put_workspace(name, record, move.sequence)
        case WorkspaceDrop(name):
            db.drop_workspace(name)
        case PackKept(name, role, at):
            db.add_pack(PackRow(pack_number(name), role, at))
        case RefKept(name, target):
            db.keep_ref(name, target)
        case LayerKept(number, layer, commit, at):
            db.add_layer(LayerRow(number, layer, commit, at))
        case ReflogKept():
            db.keep_reflog(ReflogRow(*op))
        case WorkspaceKept(name, record, at):
            db.put_workspace(name, record, at)


def salvage_moves(db: MetaDb, moves: Iterable[Move], pack: int) -> None:
    """Make what moves say true although some between them are lost: each sets what it names, whatever was there."""
    with db.transaction():
        for move in moves:
            for position, op in enumerate(move.ops):
                match op:
                    case LayerAdd(number, layer, commit):
                        db.add_layer(LayerRow(number, layer, commit, move.sequence), replace=True)
                    case Restart():
                        db.restart(pack)
                    case _:
                        _apply_op(db, move, position, op)


def _shown(commit: CommitId | None) -> str:
    return "nothing" if commit is None else short(commit)

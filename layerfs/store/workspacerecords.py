"""Workspace records: what a store knows of each workspace, and the states a workspace can be in.

A record is written with every move that concerns its workspace, so it is in the packs as well (``objects/moves``) and
survives the loss of the database. It says what the workspace stands on, never what is in it: uncommitted work is in the
upper or in the directory itself, which nothing here touches.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import count
from typing import NamedTuple

from layerfs.errors import MalformedObject, NotFound, quote
from layerfs.ids import ID_BYTES, CommitId, ObjectId
from layerfs.objects.codec import Reader, Writer
from layerfs.store.refs import Refs

VERSION = 1
STAMPED_VERSION = 2
"""The version of a record that has stamps; one without is written as it always was."""
SOURCE = "source"


class Engine(Enum):
    """How a workspace is attached: ``source`` is the captured directory itself, a copy made by nobody."""

    OVERLAY = "overlay"
    COPY = "copy"
    SOURCE = "source"


class OpenConflict(NamedTuple):
    """A path of an open merge that is not decided yet: its kind, and where their side lies if it was put beside."""

    path: bytes
    kind: str
    beside: bytes = b""


class WorkspaceRecord(NamedTuple):
    """One workspace.

    ``path`` is where it is attached, empty when that is inside private namespaces of ``run`` only. ``last`` is its last
    own commit (``@``); ``lower`` the commit that the engine shows below the upper, which stays while the workspace is
    attached. ``branch`` is empty when detached. ``ephemeral`` marks a workspace made by ``run``. ``boot_id`` and ``pid``
    say when and by whom it was attached.
    """

    name: str
    branch: str
    engine: Engine
    path: bytes
    last: CommitId
    lower: CommitId
    created_ns: int
    ephemeral: bool = False
    attached: bool = True
    boot_id: str = ""
    pid: int = 0
    layers: tuple[str, ...] = ()
    """Names of the cached layers that are its lowers, newest first."""
    userxattr: bool = False
    """Whether it was made without root: an overlay in a user namespace, whose marks are ``user.overlay`` attributes, or a
    copy whose files all belong to the user."""
    merging: CommitId | None = None
    """The commit of an open merge (``update --mark``): the second parent of the commit that concludes it."""
    conflicts: tuple[OpenConflict, ...] = ()
    """What the open merge has left to decide."""
    stamps: tuple[int, ...] = ()
    """The times that updates gave to files they brought in beside uncommitted work: such a time alone is nobody's change.
    Empty again after a commit, which has the files with these times."""


def encode_record(record: WorkspaceRecord) -> bytes:
    """Return the canonical bytes of a record."""
    out = (
        Writer()
        .uint(STAMPED_VERSION if record.stamps else VERSION)
        .text(record.name)
        .text(record.branch)
        .text(record.engine.value)
        .data(record.path)
    )
    out.raw(record.last).raw(record.lower).sint(record.created_ns)
    out.uint(record.ephemeral).uint(record.attached).text(record.boot_id).uint(record.pid)
    out.uint(len(record.layers))
    for layer in record.layers:
        out.text(layer)
    out.uint(record.userxattr).data(record.merging or b"").uint(len(record.conflicts))
    for conflict in record.conflicts:
        out.data(conflict.path).text(conflict.kind).data(conflict.beside)
    if record.stamps:
        out.uint(len(record.stamps))
        for stamp in record.stamps:
            out.sint(stamp)
    return out.done()


def decode_record(payload: bytes) -> WorkspaceRecord:
    """Decode a record; raise MalformedObject for anything :func:`encode_record` would not have written."""
    reader = Reader(payload, "workspace record")
    version = reader.uint()
    if version not in (VERSION, STAMPED_VERSION):
        raise reader.fail(f"version {version} is not known")
    name, branch = reader.text(), reader.text()
    try:
        engine = Engine(reader.text())
    except ValueError:
        raise MalformedObject("malformed workspace record: unknown engine") from None
    path = reader.data()
    last = CommitId(ObjectId(reader.raw(ID_BYTES)))
    lower = CommitId(ObjectId(reader.raw(ID_BYTES)))
    created_ns, ephemeral, attached = reader.sint(), reader.uint(), reader.uint()
    boot_id, pid = reader.text(), reader.uint()
    layers = tuple(reader.text() for _ in range(reader.count()))
    userxattr = reader.uint()
    merging = reader.data()
    if len(merging) not in (0, ID_BYTES):
        raise reader.fail("merge")
    conflicts = tuple(
        OpenConflict(reader.data(), reader.text(), reader.data()) for _ in range(reader.count(3))
    )
    stamps = tuple(reader.sint() for _ in range(reader.count())) if version == STAMPED_VERSION else ()
    if version == STAMPED_VERSION and not stamps:
        raise reader.fail("no stamps")
    reader.end()
    return WorkspaceRecord(
        name,
        branch,
        engine,
        path,
        last,
        lower,
        created_ns,
        bool(ephemeral),
        bool(attached),
        boot_id,
        pid,
        layers,
        bool(userxattr),
        CommitId(ObjectId(merging)) if merging else None,
        conflicts,
        stamps,
    )


def find_workspace(refs: Refs, name: str) -> WorkspaceRecord | None:
    """Return the record called ``name``, or None."""
    payload = refs.workspace(name)
    return None if payload is None else decode_record(payload)


def read_workspace(refs: Refs, name: str) -> WorkspaceRecord:
    """Return the record called ``name``; raise NotFound."""
    record = find_workspace(refs, name)
    if record is None:
        raise NotFound(f"no such workspace: {quote(name)}", "'layerfs workspace list' shows what there is")
    return record


def all_workspaces(refs: Refs) -> list[WorkspaceRecord]:
    """Return every record, by name."""
    return [decode_record(payload) for _, payload in refs.workspaces()]


def workspace_at(refs: Refs, path: bytes) -> WorkspaceRecord | None:
    """Return the attached workspace that ``path`` (absolute, resolved) lies in, the innermost if several."""
    found: WorkspaceRecord | None = None
    for record in all_workspaces(refs):
        inside = path == record.path or path.startswith(record.path.rstrip(b"/") + b"/")
        deeper = found is None or len(record.path) > len(found.path)
        if record.attached and record.path and inside and deeper:
            found = record
    return found


def attached_path(store_source: bytes | None, record: WorkspaceRecord) -> bytes:
    """Return where the workspace's files are seen by its own processes: its path, or inside ``run`` the captured path."""
    path = record.path or store_source
    if path is None:
        raise NotFound(f"workspace {quote(record.name)} is not attached anywhere")
    return path


def names_like(wanted: str) -> Iterator[str]:
    """Yield the names a workspace may get, best first: ``wanted``, ``wanted.2``, ``wanted.3``, …"""
    yield wanted
    for number in count(2):
        yield f"{wanted}.{number}"

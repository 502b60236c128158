"""Attach: a workspace comes to be at a path.

The order is the promise: the layers first (shared, harmless), then the workspace's own directories, then its record, then
the mount; if the mount fails the record goes again. Whatever a crash leaves in between, ``mount`` of the same name puts
together again (:func:`heal`), with the same upper. Taking a workspace away is in ``detach``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from layerfs.capture.captured import Problem
from layerfs.capture.initialise import write_pointer
from layerfs.checkout.target import refuse_unless_empty
from layerfs.checkout.writer import Writer
from layerfs.errors import AlreadyExists, Refused, Unable, quote
from layerfs.history.authorship import Author
from layerfs.history.history import CommitReader
from layerfs.history.revision import Revision
from layerfs.objects.moves import WorkspaceDrop, WorkspacePut
from layerfs.progress import SILENT, Progress
from layerfs.store.layout import is_inside
from layerfs.store.places import (
    UPPER,
    WORK,
    default_mount_point,
    going_directory,
    make_workspace_directory,
    remove_empty,
    remove_tree,
    upper_directory,
    work_directory,
    workspace_directory,
)
from layerfs.store.store import Store
from layerfs.store.workspacerecords import (
    Engine,
    WorkspaceRecord,
    all_workspaces,
    encode_record,
    find_workspace,
)
from layerfs.workspace import overlay
from layerfs.workspace.cacheupkeep import keep_bound
from layerfs.workspace.claims import claim_name, hold, runs
from layerfs.workspace.copies import copy_out, foreign_notes
from layerfs.workspace.gitadvice import git_notes
from layerfs.workspace.layercache import Stack, boot_id, ensure_stack
from layerfs.workspace.overlayprobe import why_not
from layerfs.workspace.references import find_references


class MountRequest(NamedTuple):
    """What to attach and where; ``engine`` is auto, overlay or copy; no ``path`` means below the store's ``mnt``."""

    revision: Revision
    author: Author
    path: bytes | None = None
    engine: str = "auto"
    volatile: bool = False


class Attached(NamedTuple):
    """An attached workspace; ``healed`` when it existed and was put together again; ``notes`` say what to know."""

    record: WorkspaceRecord
    healed: bool = False
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def mount_name(store: Store, record: WorkspaceRecord) -> bytes:
    """Return the name by which the workspace's own mount is recognised."""
    return overlay.source_name(store.format.store_id.hex(), record.name)


def is_alive(store: Store, record: WorkspaceRecord) -> bool:
    """Whether an attached workspace is really there: mounted, or for a plain directory present."""
    if record.engine is Engine.OVERLAY:
        return bool(record.path) and overlay.is_mounted(record.path, mount_name(store, record))
    return os.path.isdir(record.path)


def attach(store: Store, request: MountRequest, progress: Progress = SILENT) -> Attached:
    """Attach a workspace of a revision; one of that name that is not attached, or whose mount is gone, is healed."""
    existing = _to_heal(store, request.revision)
    if existing is not None:
        with hold(store, existing.name):
            existing = _to_heal(store, request.revision)
            if existing is not None:
                return heal(store, existing, request, progress)
    with claim_name(store, workspace_name(request.revision)) as name:
        return _attach_new(store, name, request, progress)


def _attach_new(store: Store, name: str, request: MountRequest, progress: Progress) -> Attached:
    path = request.path or default_mount_point(store, name)
    _check_path(store, path, chosen=request.path is not None)
    notes: list[str] = []
    engine, stack = choose_engine(store, request, progress, notes)
    make_workspace_directory(store, name, UPPER, WORK)
    record = WorkspaceRecord(
        name,
        request.revision.branch or "",
        engine,
        path,
        request.revision.commit,
        request.revision.commit,
        request.author.time_ns,
        boot_id=boot_id(),
        layers=stack.names if stack is not None else (),
        userxattr=os.geteuid() != 0,
    )
    made = make_mount_point(path)
    # A copy counts once it is complete: what a crash leaves of one must not look like a workspace with files deleted.
    put_record(store, record if stack is not None else record._replace(attached=False), request.author)
    problems: tuple[Problem, ...] = ()
    try:
        if stack is not None:
            mount_stack(store, record, stack, request.volatile)
        else:
            problems = _copy_out(store, record, progress, notes)
            put_record(store, record, request.author)
    except BaseException:
        if made and stack is not None:
            remove_empty(path)
        drop_record(store, record, request.author)
        raise
    keep_bound(store, request.author.time_ns)
    return Attached(
        record, False, (*notes, *reference_notes(store, record), *git_notes(store, record)), problems
    )


def workspace_name(revision: Revision) -> str:
    """Return what a new workspace of a revision is called: its branch, or the text that named the state."""
    return revision.branch or revision.text.replace("@", "at").replace(":", "-")


def _to_heal(store: Store, revision: Revision) -> WorkspaceRecord | None:
    record = find_workspace(store.refs, revision.branch or revision.text)
    if record is None or record.engine is not Engine.OVERLAY or record.userxattr:
        return None
    return None if (record.attached and is_alive(store, record)) or runs(store, record) else record


def heal(
    store: Store, record: WorkspaceRecord, request: MountRequest, progress: Progress = SILENT
) -> Attached:
    """Attach an existing workspace again: same upper, same lowers (materialised anew if the cache was cleared)."""
    path = request.path or record.path or default_mount_point(store, record.name)
    notes = [f"layerfs: workspace {quote(record.name)} was not attached; its work is kept"]
    if record.boot_id != boot_id() and overlay.was_volatile(work_directory(store, record.name)):
        notes.append(
            "layerfs: it was mounted volatile when the machine stopped; its last changes may be missing"
        )
    _check_path(store, path, chosen=request.path is not None)
    record = on_its_lower(store, record)
    stack = ensure_stack(store, record.lower, request.author.time_ns, progress)
    make_workspace_directory(store, record.name, UPPER, WORK)
    overlay.reset_work(work_directory(store, record.name))
    make_mount_point(path)
    before = record
    record = record._replace(path=path, attached=True, boot_id=boot_id(), layers=stack.names, ephemeral=False)
    put_record(store, record, request.author)
    try:
        mount_stack(store, record, stack, request.volatile)
    except BaseException:
        put_record(store, before, request.author)
        raise
    return Attached(record, True, (*notes, *reference_notes(store, record)))


def on_its_lower(store: Store, record: WorkspaceRecord) -> WorkspaceRecord:
    """Return the record of an overlay about to be mounted again, with the lower that its upper belongs on.

    A detach that was killed may have made the upper a cached layer already: all of it was committed, and the workspace
    begins anew on its last commit. On the old lower an empty upper would take that commit's work back.
    """
    if os.path.isdir(upper_directory(store, record.name)):
        return record
    return record._replace(lower=record.last)


def choose_engine(
    store: Store, request: MountRequest, progress: Progress, notes: list[str]
) -> tuple[Engine, Stack | None]:
    """Return the engine to use, with the layers for an overlay; ``auto`` falls back to a copy and says why."""
    if request.engine == "copy":
        return Engine.COPY, None
    try:
        overlay_or_unable(store)
        return Engine.OVERLAY, ensure_stack(store, request.revision.commit, request.author.time_ns, progress)
    except Unable as error:
        if request.engine == "overlay":
            raise
        notes.append(f"layerfs: using engine copy: {error.message}")
        return Engine.COPY, None


def overlay_or_unable(store: Store) -> None:
    """Raise Unable, with the reason, where this process cannot mount an overlay on this store."""
    reason = why_not(store.path)
    if reason is not None:
        raise Unable(f"overlay is not available: {reason}", "use --engine copy")


def put_record(store: Store, record: WorkspaceRecord, author: Author) -> None:
    """Record a workspace, durably."""
    with store.lane() as lane:
        lane.apply(None, [WorkspacePut(record.name, encode_record(record))], author.name, author.time_ns)


def drop_record(store: Store, record: WorkspaceRecord, author: Author) -> None:
    """Forget a workspace and remove its directories in the store.

    They get another name before the record goes: a later workspace of the name must not find an upper that a killed
    removal left. Both happens inside the lane, so nobody who waits for the workspace comes in between.
    """
    directory = workspace_directory(store, record.name)
    going = going_directory(store)
    with store.lane() as lane:
        with suppress(FileNotFoundError):
            os.rename(directory, going)
        try:
            lane.apply(None, [WorkspaceDrop(record.name)], author.name, author.time_ns)
        except BaseException:
            with suppress(FileNotFoundError):
                os.rename(going, directory)
            raise
    try:
        remove_tree(going)
    except PermissionError:
        raise Refused(
            f"workspace {quote(record.name)} is forgotten, but other users' files are left in {quote(going)}",
            "remove that directory as root",
        ) from None


def mount_stack(store: Store, record: WorkspaceRecord, stack: Stack, volatile: bool) -> None:
    """Mount the layers with the workspace's upper at its path; the upper's top gets the attributes of the lower's."""
    layers = overlay.Layers(
        stack.paths, upper_directory(store, record.name), work_directory(store, record.name)
    )
    prepare_upper(store, record)
    try:
        overlay.mount_overlay(layers, record.path, source=mount_name(store, record), volatile=volatile)
    except OSError as error:
        raise Unable(f"cannot mount the overlay: {(error.strerror or str(error)).lower()}") from error


def prepare_upper(store: Store, record: WorkspaceRecord) -> None:
    """Give an empty upper the root directory's own attributes, which the mount will show; a used one is left alone."""
    upper = upper_directory(store, record.name)
    with os.scandir(upper) as entries:
        if next(entries, None) is not None:
            return
    root = CommitReader(store.objects).root(record.lower)
    fd = os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        Writer(store.objects, fd, owners=os.geteuid() == 0, inherits=True).attributes.set(fd, root, b"")
    finally:
        os.close(fd)


def make_mount_point(path: bytes) -> bool:
    """Make the directory to attach at; return whether it was made."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return False
    except FileNotFoundError:
        os.makedirs(path, 0o700)
    return True


def _check_path(store: Store, path: bytes, *, chosen: bool) -> None:
    """Refuse a place that would hide or catch somebody's files: not empty, a symlink, taken, or inside the store."""
    if chosen and is_inside(path, os.path.realpath(store.path)):
        raise Refused(f"{quote(path)} lies inside the store", "name a directory outside of it")
    for other in all_workspaces(store.refs):
        if other.attached and other.path == path and is_alive(store, other):
            raise AlreadyExists(f"workspace {quote(other.name)} is attached at {quote(path)} already")
    if os.path.lexists(path):
        refuse_unless_empty(path, "move away what is there, or name a new or an empty directory")


def _copy_out(
    store: Store, record: WorkspaceRecord, progress: Progress, notes: list[str]
) -> tuple[Problem, ...]:
    restored = copy_out(store, record.lower, record.path, progress)
    notes += foreign_notes(restored)
    root = CommitReader(store.objects).root(record.lower)
    directory = os.open(record.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        write_pointer(record.path, store.path)
        os.utime(directory, ns=(root.mtime_ns, root.mtime_ns))
    finally:
        os.close(directory)
    return tuple(restored.problems)


def reference_notes(store: Store, record: WorkspaceRecord) -> list[str]:
    """Say if files of a workspace that is not at the captured path would lead to the original, and how to avoid it."""
    source = store.format.source
    if source is None or record.path == source:
        return []
    into = find_references(store, record.last).into
    if not into:
        return []
    more = f" and {len(into) - 1} more" if len(into) > 1 else ""
    return [
        f"layerfs: absolute paths in {quote(into[0].path)}{more} lead to the original, {quote(source)}; "
        "'layerfs run' mounts there"
    ]

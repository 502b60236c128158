"""Snapshots: the state a workspace has right now, as a root entry.

One function for every engine: for ``overlay`` the lower commit's tree plus the edits that the upper holds (cost: the
upper), for ``copy`` and ``source`` a capture helped by the stat cache (cost: a scan). Objects go into the caller's batch,
so a snapshot that nobody commits leaves nothing behind. The caches that make the next one cheap are saved by ``keep``,
only once the objects they name are in the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from layerfs.capture.capture import capture_directory
from layerfs.capture.captured import Problem, Rules
from layerfs.capture.capturerules import exclusion, exclusion_stamp
from layerfs.capture.companions import held_still, journals_in, state_at, torn
from layerfs.capture.filecontent import read_steady, tries
from layerfs.capture.moved import Moved
from layerfs.capture.statcache import StatCache, kernel_now_ns, load_cache, save_cache, write_cache
from layerfs.checkout.target import OpenDirectory
from layerfs.errors import NotFound, TornRead, quote
from layerfs.history.history import CommitReader
from layerfs.ids import CommitId
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import Change, diff_trees, edit_paths, split
from layerfs.objects.source import ObjectSource, ObjectStore
from layerfs.progress import SILENT, Progress
from layerfs.store.layout import POINTER, is_inside
from layerfs.store.places import cache_file, upper_cache_file, upper_directory
from layerfs.store.settings import Settings
from layerfs.store.store import Store
from layerfs.store.workspacerecords import Engine, WorkspaceRecord, all_workspaces
from layerfs.workspace.applying import clear_remains
from layerfs.workspace.unrepresented import keep_unrepresented
from layerfs.workspace.upper import Content, UpperEntry, UpperScan, scan_upper
from layerfs.workspace.uppercache import decode_cache

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Snapshot(NamedTuple):
    """A workspace's state: its root entry, what could not be read, and how to keep the caches."""

    root: Entry
    problems: list[Problem]
    mounts: list[bytes]
    read_files: int
    keep: Callable[[], None]


def take_snapshot(
    store: Store,
    objects: ObjectStore,
    record: WorkspaceRecord,
    *,
    allow_torn: bool = False,
    progress: Progress = SILENT,
) -> Snapshot:
    """Return the state of a workspace; objects that are new go into ``objects``.

    Raises NotFound when the workspace's directory is gone and TornRead when a file will not hold still.
    """
    clear_remains(store, record)
    if record.engine is Engine.OVERLAY:
        return _overlay(store, objects, record, allow_torn)
    try:
        fd = os.open(record.path, _DIRECTORY | (os.O_NOFOLLOW if record.engine is Engine.COPY else 0))
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(
            f"the directory of workspace {quote(record.name)} is gone: {quote(record.path)}"
        ) from None
    cache = load_cache(cache_file(store, record.name))
    keep_owners = record.engine is Engine.COPY and record.userxattr
    try:
        return _captured(
            store,
            objects,
            _Place(record.path, fd, keep_owners),
            record.last,
            allow_torn,
            progress,
            cache,
            record.name,
        )
    finally:
        os.close(fd)


def snapshot_directory(
    store: Store,
    objects: ObjectStore,
    path: bytes,
    last: CommitId,
    *,
    allow_torn: bool = False,
    progress: Progress = SILENT,
) -> Snapshot:
    """Return the state of a directory that is no workspace; ``last`` is the commit it is compared with.

    Raises NotFound when there is no such directory.
    """
    try:
        fd = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        raise NotFound(f"no such directory: {quote(path)}") from None
    except NotADirectoryError:
        raise NotFound(f"not a directory: {quote(path)}") from None
    try:
        return _captured(store, objects, _Place(path, fd), last, allow_torn, progress)
    finally:
        os.close(fd)


class _Place(NamedTuple):
    """An open directory to capture; ``keep_owners`` where what is written in it belongs to others than it seems."""

    path: bytes
    fd: int
    keep_owners: bool = False


def _captured(
    store: Store,
    objects: ObjectStore,
    place: _Place,
    last: CommitId,
    allow_torn: bool,
    progress: Progress,
    cache: StatCache | None = None,
    workspace: str = "",
) -> Snapshot:
    settings = Settings(store.path)
    inside = [path[len(place.path.rstrip(b"/")) + 1 :] for path in _own_places(store, place.path)]
    patterns = settings.patterns("capture.exclude")
    rules = Rules(
        exclusion(patterns, inside),
        settings.flag("capture.cross-filesystems"),
        allow_torn,
        keep_owners=place.keep_owners,
        stamp=exclusion_stamp(patterns, inside),
    )
    base = CommitReader(store.objects).root(last)
    captured = capture_directory(place.fd, objects, base=base, cache=cache, rules=rules, progress=progress)
    root = captured.root
    if os.geteuid() != 0 or rules.keep_owners:
        root = keep_unrepresented(objects, base, root, written=rules.keep_owners)

    def keep() -> None:
        if workspace and captured.cache != cache:
            save_cache(cache_file(store, workspace), captured.cache, store.files.owner)

    return Snapshot(root, captured.problems, captured.mounts, captured.totals.read_files, keep)


def _own_places(store: Store, path: bytes) -> list[bytes]:
    """Return what lies below a directory and is layerfs's own: the store, and other workspaces."""
    places = [store.path, *(other.path for other in all_workspaces(store.refs) if other.attached)]
    return [place for place in places if place != path and is_inside(place, path)]


def _overlay(store: Store, objects: ObjectStore, record: WorkspaceRecord, allow_torn: bool) -> Snapshot:
    base = CommitReader(store.objects).root(record.lower)
    cache_path = upper_cache_file(store, record.name)
    try:
        with open(cache_path, "rb") as file:
            cache = decode_cache(file.read(), base.ref)
    except FileNotFoundError:
        cache = None
    try:
        upper = os.open(upper_directory(store, record.name), _DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise NotFound(f"the upper of workspace {quote(record.name)} is gone") from None
    read = 0
    try:
        for last in tries():
            started_ns = kernel_now_ns()
            scan = scan_upper(
                upper,
                store.objects,
                base,
                started_ns=started_ns,
                userxattr=record.userxattr,
                keep_owners=record.userxattr,
                skip=frozenset((POINTER,)),
                cache=cache,
            )
            pending = scan.pending()
            moved = Moved(objects)
            for entry in scan.found:
                if entry.old is not None and entry.new is None:
                    moved.gone(entry.path, entry.old)
            settled = scan.settle(
                {entry.path: _read_pending(upper, entry, objects, allow_torn, moved) for entry in pending}
            )
            moved.settle()
            read += len(pending)
            database = _moved_database(upper, settled, {entry.path for entry in pending}, started_ns)
            if database is None or allow_torn:
                break
            if last:
                raise torn(database)
            cache = settled.cache()
    finally:
        os.close(upper)
    root = edit_paths(objects, base, settled.edits())

    def keep() -> None:
        write_cache(cache_path, (settled.cache().encode(),), store.files.owner)

    return Snapshot(root, [], [], read, keep)


def _moved_database(upper: int, settled: UpperScan, read: set[bytes], started_ns: int) -> bytes | None:
    """Return a database that is perhaps not of one instant with its journal, of those of which anything was read."""
    found = {entry.path: entry for entry in settled.found}
    for database, journal in journals_in(found):
        if database not in read and journal not in read:
            continue
        for path in (database, journal):
            row = found[path].row if path in found else None
            then = None if row is None else (row.size, row.mtime_ns)
            if not held_still(then, state_at(upper, path), started_ns):
                return database
    return None


def _read_pending(
    upper: int, entry: UpperEntry, objects: ObjectStore, allow_torn: bool, moved: Moved
) -> Content:
    parent, _ = split(entry.path)
    try:
        with OpenDirectory(upper, parent) as directory:
            content = read_steady(
                directory,
                entry.path,
                objects,
                earlier=entry.old,
                allow_torn=allow_torn,
                put=lambda _, data, earlier: moved.put(entry.path, data, earlier),
            )
    except NotFound:
        raise TornRead(f"{quote(entry.path)} vanished while the workspace was read", "try again") from None
    info = content.info
    return Content(content.ref, content.size, info.st_mtime_ns, info.st_ctime_ns)


Live = Callable[[bytes], bytes]
"""Reads a path of a workspace from its files, where the snapshot's objects were not kept (``ScratchObjects``)."""


def live_content(store: Store, record: WorkspaceRecord) -> Live:
    """Return a reader of what a workspace's changed files hold now."""
    top = upper_directory(store, record.name) if record.engine is Engine.OVERLAY else record.path

    def read(path: bytes) -> bytes:
        parent, name = split(path)
        fd = os.open(top, _DIRECTORY)
        try:
            with OpenDirectory(fd, parent) as directory:
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
                with open(file, "rb") as opened:
                    return opened.read()
        finally:
            os.close(fd)

    return read


def changes_between(
    source: ObjectSource, old: Entry, new: Entry, stamps: tuple[int, ...] = (), live: Live | None = None
) -> list[Change]:
    """Return what differs between two states and is somebody's work (see ``is_work``)."""
    return [change for change in diff_trees(source, old, new) if is_work(source, change, stamps, live)]


def has_changes(
    source: ObjectSource, old: Entry, new: Entry, stamps: tuple[int, ...] = (), live: Live | None = None
) -> bool:
    """Whether two states differ in anything worth a commit."""
    return old != new and any(
        is_work(source, change, stamps, live) for change in diff_trees(source, old, new)
    )


def is_work(
    source: ObjectSource, change: Change, stamps: tuple[int, ...] = (), live: Live | None = None
) -> bool:
    """Whether a change is worth a commit.

    Not a directory's mtime, nor a file's that an update has set (``stamps``), nor what git's index remembers of files it
    has looked at: nobody did any of these.
    """
    if change.is_only_time() or _is_refreshed_index(source, change, live):
        return False
    old, new = change.old, change.new
    if old is None or new is None or new.kind is not EntryKind.FILE or new.mtime_ns not in stamps:
        return True
    return old._replace(mtime_ns=new.mtime_ns) != new


def _is_refreshed_index(source: ObjectSource, change: Change, live: Live | None) -> bool:
    if not change.path.endswith(b"/index") or b".git/" not in change.path:
        return False
    from layerfs.merge.gitstate import is_refreshed_index

    return is_refreshed_index(source, change, live)

"""Init: make a store for a directory and capture it as the first layer.

Owns what happens around the first capture: where the store lies, the pointer file and its line in Git's exclude file
(before the capture, so that they change nothing afterwards), and that a capture that fails leaves no half-made store
behind. The captured directory becomes the workspace ``source`` on branch ``work``, so work goes on right there.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from layerfs.capture.capture import capture_directory
from layerfs.capture.captured import Captured, Rules
from layerfs.capture.capturerules import exclusion, exclusion_stamp
from layerfs.capture.statcache import save_cache
from layerfs.errors import AlreadyExists, Busy, LayerfsError, NotFound, Refused, UsageError, quote
from layerfs.history.authorship import Author
from layerfs.ids import CommitId, LayerId
from layerfs.objects.batch import BatchStats
from layerfs.objects.commits import Commit, put_commit
from layerfs.objects.environment import put_root
from layerfs.objects.layers import Layer, put_layer
from layerfs.objects.moves import LayerAdd, Op, RefSet, WorkspacePut
from layerfs.progress import SILENT, Progress
from layerfs.store.layout import FORMAT, POINTER, is_inside, read_pointer
from layerfs.store.places import cache_file, make_workspace_directory, remove_tree
from layerfs.store.refs import branch_ref
from layerfs.store.settings import Settings
from layerfs.store.store import Store
from layerfs.store.workspacerecords import SOURCE, Engine, WorkspaceRecord, encode_record

WORK = "work"
GIT_EXCLUDE = b".git/info/exclude"


class InitOptions(NamedTuple):
    """What ``init`` was asked for."""

    exclude: tuple[str, ...] = ()
    cross_filesystems: bool = False
    allow_torn: bool = False
    allow_remote: bool = False
    durability: str = "durable"
    empty: bool = False


class Initialised(NamedTuple):
    """A new store and, unless it is empty, its first capture."""

    store: bytes
    source: bytes
    commit: CommitId | None
    layer: LayerId | None
    captured: Captured | None
    stats: BatchStats | None
    stored_bytes: int
    notes: tuple[str, ...] = ()


def check_directory(source: bytes) -> None:
    """Refuse what is no directory."""
    if not os.path.isdir(source):
        why = "not a directory" if os.path.lexists(source) else "no such directory"
        raise NotFound(f"cannot capture {quote(source)}: {why}")


def check_places(source: bytes, store: bytes, stores: Iterable[bytes]) -> None:
    """Refuse a source that is captured already, and a store and source that lie within each other."""
    pointed = read_pointer(source)
    for known in (pointed, *stores):
        if known is not None and os.path.isfile(os.path.join(known, FORMAT)) and not is_unfinished(known):
            raise AlreadyExists(
                f"{quote(source)} is captured already, in store {quote(known)}",
                "use 'layerfs commit' to record its state; delete the store first to start over",
            )
    if is_inside(store, source):
        raise Refused(
            f"the store {quote(store)} would lie inside the captured directory",
            "name a place outside of it with --store",
        )
    if is_inside(source, store):
        raise Refused(f"the captured directory {quote(source)} lies inside the store")


def is_unfinished(store: bytes) -> bool:
    """Whether a store is one whose ``init`` was killed: it opens, and nothing was ever recorded in it."""
    try:
        with Store.open(store, clock=lambda: 0) as opened:
            return opened.db.state().sequence == 0
    except LayerfsError:
        return False


@contextmanager
def only_init(source: bytes) -> Iterator[None]:
    """Hold off every other ``init`` of the directory; what a killed one left is then nobody's and may be cleared away."""
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(
                f"{quote(source)} is being captured by another process", "wait until it is done"
            ) from None
        yield
    finally:
        os.close(fd)


def initialise(
    source: bytes,
    store_path: bytes,
    author: Author,
    options: InitOptions = InitOptions(),  # noqa: B008
    *,
    clock: Callable[[], int],
    progress: Progress = SILENT,
) -> Initialised:
    """Create a store for ``source`` (absolute, resolved) and capture it as L1. On any failure nothing is left.

    The caller holds :func:`only_init` and has asked :func:`check_places`. An unfinished store in the place is replaced.
    """
    if os.path.isfile(os.path.join(store_path, FORMAT)) and is_unfinished(store_path):
        remove_tree(store_path)
    fresh = not os.path.lexists(store_path)
    made_pointer = False
    store = Store.create(
        store_path,
        source=source,
        durability=options.durability,
        allow_remote=options.allow_remote,
        clock=clock,
    )
    try:
        with store:
            settings = Settings(store_path)
            if options.exclude:
                settings.change(store.files, "capture.exclude", options.exclude)
            if options.cross_filesystems:
                settings.change(store.files, "capture.cross-filesystems", True)
            made_pointer = write_pointer(source, store_path)
            if not made_pointer:
                where = "--store names the store where it is not found"
                store.notes.append(f"no pointer file could be written into {quote(source)}: {where}")
            if options.empty:
                with store.lane() as lane:
                    lane.apply(None, (), author.name, author.time_ns)
                return Initialised(store_path, source, None, None, None, None, 0, tuple(store.notes))
            return _capture_first(store, source, author, options, settings, progress)
    except BaseException:
        if made_pointer:
            os.unlink(os.path.join(source, POINTER))
        if fresh and os.path.isdir(store_path):
            remove_tree(store_path)
        raise


def _capture_first(
    store: Store,
    source: bytes,
    author: Author,
    options: InitOptions,
    settings: Settings,
    progress: Progress,
) -> Initialised:
    patterns = settings.patterns("capture.exclude")
    rules = Rules(
        exclusion(patterns),
        options.cross_filesystems,
        options.allow_torn,
        stamp=exclusion_stamp(patterns),
    )
    directory = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with store.batch() as batch:
            progress.phase("capturing")
            captured = capture_directory(directory, batch, rules=rules, progress=progress)
            name = os.fsdecode(os.path.basename(source) or b"/")
            commit = put_commit(
                batch,
                Commit(
                    put_root(batch, captured.root),
                    (),
                    author.time_ns,
                    author.tz_minutes,
                    author.name,
                    f"capture of {name}",
                ),
            )
            layer = put_layer(
                batch, Layer(1, commit, None, "init", author.time_ns, author.name, f"capture of {name}")
            )
            make_workspace_directory(store, SOURCE)
            ops = first_ops(source, commit, layer, author)
            with store.lane() as lane:
                lane.apply(batch, ops, author.name, author.time_ns)
            save_cache(cache_file(store, SOURCE), captured.cache, store.files.owner)
            stats = batch.stats
    finally:
        os.close(directory)
    return Initialised(
        store.path, source, commit, layer, captured, stats, stats.stored_bytes, tuple(store.notes)
    )


def first_ops(source: bytes, commit: CommitId, layer: LayerId, author: Author) -> tuple[Op, ...]:
    """Return the moves that make a first capture the state of a store."""
    record = WorkspaceRecord(SOURCE, WORK, Engine.SOURCE, source, commit, commit, author.time_ns)
    return (
        LayerAdd(1, layer, commit),
        RefSet(branch_ref(WORK), None, commit, "init"),
        WorkspacePut(SOURCE, encode_record(record)),
    )


def write_pointer(directory: bytes, store: bytes) -> bool:
    """Put the pointer file into ``directory`` and tell Git to ignore it; return False if the directory is read-only."""
    if b"\n" in store:
        raise UsageError(f"a store's path cannot hold a newline: {quote(store)}")
    path = os.path.join(directory, POINTER)
    before = os.stat(directory)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except (PermissionError, OSError) as error:
        if isinstance(error, FileExistsError | IsADirectoryError):
            raise Refused(
                f"{quote(path)} is in the way of the pointer file", "move it away and try again"
            ) from None
        return False
    try:
        os.write(fd, store + b"\n")
    finally:
        os.close(fd)
    # The pointer is no part of the environment: the directory's time is what it was before we came.
    with suppress(PermissionError):
        os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
    _exclude_from_git(directory)
    return True


def _exclude_from_git(directory: bytes) -> None:
    """Add the pointer file to ``.git/info/exclude`` of a repository that lies at the root."""
    path = os.path.join(directory, GIT_EXCLUDE)
    parent = os.path.dirname(path)
    for part in (os.path.dirname(parent), parent):
        try:
            if not stat.S_ISDIR(os.lstat(part).st_mode):
                return
        except OSError:
            return
    line = b"/" + POINTER
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError:
        return
    with os.fdopen(fd, "r+b") as file:
        file.seek(0)
        present = file.read()
        if line not in present.split(b"\n"):
            file.write((b"" if not present or present.endswith(b"\n") else b"\n") + line + b"\n")

"""Writing single objects: plumbing that adds objects to a store without moving a pointer.

Owns ``hash-object -w``, ``write-tree`` and ``commit-tree``: a batch, one move without operations, and the id. What is
written this way is reachable by nothing until a ref is moved to it (``update-ref``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from layerfs.capture.capture import capture_directory
from layerfs.capture.captured import Problem, Rules
from layerfs.capture.capturerules import exclusion
from layerfs.errors import NotFound, UsageError, quote
from layerfs.history.authorship import Author
from layerfs.ids import CommitId, RootId
from layerfs.objects.commits import MAX_PARENTS, Commit, put_commit, sorted_provenance
from layerfs.objects.content import put_stream
from layerfs.objects.environment import put_root
from layerfs.objects.kinds import Kind
from layerfs.objects.source import ObjectSink
from layerfs.plumbing.hashing import NoSink, hash_object, iter_file
from layerfs.progress import SILENT, Progress
from layerfs.store.layout import is_inside
from layerfs.store.store import Store


class Hashed(NamedTuple):
    """The id of some bytes (empty for no bytes), and where they came from (None: standard input)."""

    path: bytes | None
    oid: bytes
    size: int


class WrittenTree(NamedTuple):
    """A directory captured as a root object, and what is missing from it."""

    root: RootId
    files: int
    size: int
    problems: tuple[Problem, ...]
    mounts: tuple[bytes, ...]


def hash_files(
    store: Store | None,
    sources: Iterable[tuple[bytes | None, Iterable[bytes]]],
    kind: Kind | None,
    actor: str,
) -> list[Hashed]:
    """Hash each source; with a store the objects are written to it. ``kind`` None means file content."""
    if store is None:
        return list(_hash_all(NoSink(), sources, kind))
    with store.batch() as batch:
        found = list(_hash_all(batch, sources, kind))
        with store.lane() as lane:
            lane.apply(batch, (), actor)
    return found


def _hash_all(
    sink: ObjectSink, sources: Iterable[tuple[bytes | None, Iterable[bytes]]], kind: Kind | None
) -> Iterator[Hashed]:
    for path, blocks in sources:
        if kind is None:
            ref, size = put_stream(sink, blocks)
            yield Hashed(path, ref, size)
        else:
            yield Hashed(path, hash_object(sink, kind, blocks), 0)


def file_sources(paths: Iterable[bytes]) -> Iterator[tuple[bytes | None, Iterable[bytes]]]:
    """Yield (path, blocks) of files, each opened when its turn comes."""
    return ((path, iter_file(path)) for path in paths)


def write_tree(
    store: Store, directory: bytes, exclude: Sequence[str], actor: str, progress: Progress = SILENT
) -> WrittenTree:
    """Capture a directory into the store and return its root; no pointer moves."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"cannot capture {quote(directory)}: no such directory") from None
    except NotADirectoryError:
        hint = "'layerfs hash-object -w' takes files"
        raise UsageError(f"cannot capture {quote(directory)}: not a directory", hint) from None
    top = os.path.realpath(directory)
    own = [os.path.relpath(store.path, top)] if is_inside(store.path, top) else []
    rules = Rules(exclusion([os.fsencode(pattern) for pattern in exclude], own))
    try:
        with store.batch() as batch:
            progress.phase("capturing")
            captured = capture_directory(descriptor, batch, rules=rules, progress=progress)
            root = put_root(batch, captured.root)
            with store.lane() as lane:
                lane.apply(batch, (), actor)
    finally:
        os.close(descriptor)
    totals = captured.totals
    return WrittenTree(root, totals.files, totals.size, tuple(captured.problems), tuple(captured.mounts))


def write_commit(
    store: Store,
    root: RootId,
    parents: Sequence[CommitId],
    author: Author,
    message: str,
    provenance: dict[str, str],
) -> CommitId:
    """Make a commit of a root; no pointer moves."""
    if len(parents) > MAX_PARENTS:
        raise UsageError(f"a commit has at most {MAX_PARENTS} parents")
    if len(set(parents)) != len(parents):
        raise UsageError("a parent is given twice")
    commit = Commit(
        root,
        tuple(parents),
        author.time_ns,
        author.tz_minutes,
        author.name,
        message,
        sorted_provenance(provenance),
    )
    with store.batch() as batch:
        oid = put_commit(batch, commit)
        with store.lane() as lane:
            lane.apply(batch, (), author.name, author.time_ns)
    return oid


def parse_provenance(words: Iterable[str]) -> dict[str, str]:
    """Return ``KEY=VALUE`` words as provenance; raise UsageError for anything else."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or any(character.isspace() for character in key):
            raise UsageError(f"not KEY=VALUE: {quote(word)}")
        found[key] = value
    return found

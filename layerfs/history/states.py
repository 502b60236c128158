"""States: what a word of plumbing names, as a root entry or as an object.

``revision`` turns text into commits; plumbing also takes roots, trees and directories inside a state. Owns only that
widening: every function returns a value read from the store, or raises with the word that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from layerfs.errors import LayerfsError, NotFound, UsageError, quote
from layerfs.history.history import CommitReader
from layerfs.history.revision import resolve, resolve_object, resolve_place
from layerfs.ids import CommitId, LayerId, ObjectId, RootId, TreeId
from layerfs.objects.content import iter_pieces
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import Change, diff_trees, lookup_path, path_key, read_root, walk
from layerfs.objects.extents import iter_extents
from layerfs.objects.kinds import Kind
from layerfs.objects.layers import read_layer
from layerfs.objects.source import ObjectSource
from layerfs.objects.trees import iter_tree
from layerfs.store.store import Store


class Found(NamedTuple):
    """An object that a word names, and its payload."""

    word: str
    oid: ObjectId
    kind: Kind
    payload: bytes


class PlacedExtent(NamedTuple):
    """One piece of a file: where it begins, how long it is, and its chunk, None for a hole."""

    offset: int
    length: int
    chunk: ObjectId | None


def resolve_directory(store: Store, word: str, at: CommitId | None) -> Entry:
    """Return the directory that ``REV``, ``REV:PATH`` or the id of a root, tree, commit or layer names.

    A tree has no entry of its own, so attributes of the directory itself are zero for one.
    """
    if ":" in word:
        entry = resolve_place(store, word, at).entry
        if entry.kind is not EntryKind.DIR:
            raise UsageError(f"{quote(word)} is not a directory")
        return entry
    oid, kind = resolve_object(store, word, at)
    match kind:
        case Kind.COMMIT:
            return CommitReader(store.objects).root(CommitId(oid))
        case Kind.ROOT:
            return read_root(store.objects, RootId(oid))
        case Kind.LAYER:
            return CommitReader(store.objects).root(read_layer(store.objects, LayerId(oid)).commit)
        case Kind.TREE:
            return Entry(EntryKind.DIR, 0, 0, 0, 0, 0, TreeId(oid))
        case _:
            raise UsageError(f"{quote(word)} is a {kind.label}, not a directory")


def resolve_root(store: Store, word: str, at: CommitId | None) -> RootId:
    """Return the root object that an id, or the commit a revision names, stands for."""
    oid, kind = resolve_object(store, word, at)
    if kind is Kind.COMMIT:
        return CommitReader(store.objects).commit(CommitId(oid)).root
    if kind is not Kind.ROOT:
        raise UsageError(f"{quote(word)} is a {kind.label}, not a root", "'layerfs write-tree DIR' makes one")
    return RootId(oid)


def list_tree(source: ObjectSource, directory: Entry, recursive: bool) -> Iterator[tuple[bytes, Entry]]:
    """Yield the names below a directory with their entries; all levels, directories included, if ``recursive``."""
    if not recursive:
        return iter_tree(source, TreeId(ObjectId(directory.ref)))
    walked = walk(source, directory)
    next(walked)
    return walked


def diff_paths(
    source: ObjectSource, old: Entry | None, new: Entry | None, paths: Iterable[bytes] = ()
) -> Iterator[Change]:
    """Yield the changes between two states, only at and below ``paths`` if there are any.

    A path that neither state has raises NotFound: a misspelt path must not look like "no difference".
    """
    wanted = outermost(paths)
    if not wanted:
        yield from diff_trees(source, old, new)
        return
    sides = []
    for path in wanted:
        before = None if old is None else lookup_path(source, old, path)
        after = None if new is None else lookup_path(source, new, path)
        if before is None and after is None:
            raise NotFound(f"no path {quote(path)} in either state")
        sides.append((path, before, after))
    for path, before, after in sides:
        yield from diff_trees(source, before, after, path)


def outermost(paths: Iterable[bytes]) -> list[bytes]:
    """Return the paths in path order, without those that lie below another one."""
    kept: list[bytes] = []
    for path in sorted(set(paths), key=path_key):
        if not kept or not (kept[-1] == b"" or path.startswith(kept[-1] + b"/")):
            kept.append(path)
    return kept


def read_object(store: Store, word: str, at: CommitId | None) -> Found:
    """Return the object that ``word`` names."""
    oid, kind = resolve_object(store, word, at)
    return Found(word, oid, kind, store.objects.read(oid, kind))


def read_objects(store: Store, words: Iterable[str], at: CommitId | None) -> Iterator[Found | str]:
    """Yield the object that each word names, or the word itself where there is none. Damage is still an error."""
    for word in words:
        try:
            yield read_object(store, word, at)
        except LayerfsError as error:
            if not isinstance(error, NotFound | UsageError) and error.slug != "ambiguous":
                raise
            yield word


def place_extents(store: Store, word: str, at: CommitId | None) -> Iterator[PlacedExtent]:
    """Return the pieces of the file ``REV:PATH``, or of the content whose id is given."""
    source = store.objects
    if ":" in word:
        entry = resolve_place(store, word, at).entry
        if entry.kind is not EntryKind.FILE:
            raise UsageError(f"{quote(word)} is not a file")
        if not entry.size:
            return iter(())
        oid = ObjectId(entry.ref)
        kind = source.kind_of(oid)
    else:
        oid, kind = resolve_object(store, word, at)
    if kind is Kind.CHUNK:
        return iter((PlacedExtent(0, len(source.read(oid, kind)), oid),))
    if kind is not Kind.EXTENT:
        raise UsageError(f"{quote(word)} is a {kind.label if kind else 'missing object'}, not file content")
    return (
        PlacedExtent(offset, extent.length, extent.chunk)
        for offset, extent in iter_extents(source, oid)  # type: ignore[arg-type]
    )


def resolve_many(store: Store, words: Iterable[str], at: CommitId | None) -> list[tuple[str, ObjectId]]:
    """Return what each word of ``rev-parse`` names: a commit, or the object of ``REV:PATH`` or of an id."""
    return [(word, resolve_object(store, word, at)[0]) for word in words]


def resolve_each(
    store: Store, words: Iterable[str], at: CommitId | None
) -> Iterator[tuple[str, ObjectId | None]]:
    """Yield what each word names as they come in, None for a word that names nothing."""
    for word in words:
        try:
            yield word, resolve_object(store, word, at)[0]
        except LayerfsError as error:
            if not isinstance(error, NotFound | UsageError) and error.slug != "ambiguous":
                raise
            yield word, None


def file_content(source: ObjectSource, entry: Entry) -> Iterator[bytes]:
    """Yield the bytes of a file or of a symlink's target, in pieces; holes as zeros."""
    if entry.kind is EntryKind.SYMLINK:
        yield entry.ref
        return
    for length, data in iter_pieces(source, entry.ref, entry.size):
        yield from zeros(length) if data is None else (data,)


def zeros(length: int) -> Iterator[bytes]:
    """Yield so many zero bytes in blocks."""
    block = 1 << 20
    while length > 0:
        yield bytes(min(block, length))
        length -= block


def resolve_commits(store: Store, words: Iterable[str], at: CommitId | None) -> list[CommitId]:
    """Return the commit that each word names."""
    return [resolve(store, word, at).commit for word in words]

"""Splicing stored files: what ``read-extent``, ``splice-extent`` and ``hash-object --base`` do with a store.

Owns which words name file content, the bounds of a range, and the batch that new objects go into. How a local edit costs
no more than itself is ``objects.splice``; which ranges of a file on disk to read is ``dirtyranges``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from layerfs.capture.dirtyranges import Range, capture_ranges
from layerfs.errors import NotFound, TornRead, UsageError, quote
from layerfs.history.history import CommitReader
from layerfs.history.revision import resolve_object, resolve_place
from layerfs.ids import CommitId, ExtentId, RootId
from layerfs.objects.chunking import ONE_PIECE_LIMIT, Block
from layerfs.objects.content import ContentRef, iter_range
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import edit_paths, put_root
from layerfs.objects.extents import MAX_FILE_BYTES, read_extent_node
from layerfs.objects.kinds import Kind
from layerfs.objects.splice import splice
from layerfs.plumbing.hashing import NoSink
from layerfs.store.store import Store


class StoredRange(NamedTuple):
    """A range of a stored file, cut at its end: where it begins, the file's size, and the bytes (an int: a hole)."""

    offset: int
    file_size: int
    parts: Iterator[bytes | int]


class Spliced(NamedTuple):
    """Edited content: its reference, and the root of the state with it, if that was asked for."""

    content: ContentRef
    root: RootId | None


def stored_file(store: Store, word: str, at: CommitId | None) -> Entry:
    """Return the entry of the file ``REV:PATH``, or one with the content of that id and no attributes."""
    if ":" in word:
        entry = resolve_place(store, word, at).entry
        if entry.kind is not EntryKind.FILE:
            raise UsageError(f"{quote(word)} is not a file")
        return entry
    oid, kind = resolve_object(store, word, at)
    if kind is Kind.CHUNK:
        size = len(store.objects.read(oid, kind))
        if size < ONE_PIECE_LIMIT:
            return Entry(EntryKind.FILE, 0, 0, 0, 0, size, oid)
    elif kind is Kind.EXTENT:
        size = read_extent_node(store.objects, ExtentId(oid)).length
        if size >= ONE_PIECE_LIMIT:
            return Entry(EntryKind.FILE, 0, 0, 0, 0, size, oid)
    raise UsageError(f"{quote(word)} is {_article(kind.label)}, not the content of a file")


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def read_stored(store: Store, word: str, offset: int, length: int | None, at: CommitId | None) -> StoredRange:
    """Return a range of a stored file; it ends where the file ends, and from there on there is nothing."""
    _check_not_negative(offset, length or 0)
    entry = stored_file(store, word, at)
    length = max(entry.size - offset, 0) if length is None else length
    return StoredRange(offset, entry.size, iter_range(store.objects, entry, offset, length))


def splice_stored(
    store: Store,
    word: str,
    cut: Range,
    data: Iterable[Block],
    actor: str,
    at: CommitId | None,
    mtime_ns: int | None,
) -> Spliced:
    """Store a file's content with the bytes of ``cut`` replaced; with ``mtime_ns`` also the state that has it so."""
    _check_not_negative(*cut)
    place = resolve_place(store, word, at) if ":" in word else None
    if place is None and mtime_ns is not None:
        raise UsageError(f"{quote(word)} is no path in a state", "--root takes REV:PATH")
    entry = stored_file(store, word, at)
    if cut.offset + cut.length > entry.size:
        asked = f"{cut.length} bytes at {cut.offset}"
        raise UsageError(f"cannot take {asked} out of {quote(word)}", f"it has {entry.size} bytes")
    room = MAX_FILE_BYTES - (entry.size - cut.length)
    with store.batch() as batch:
        edited = splice(store.objects, batch, entry, cut.offset, cut.length, _within(room, data))
        root = None
        if place is not None and mtime_ns is not None:
            edited = edited._replace(mtime_ns=mtime_ns)
            before = CommitReader(store.objects).root(place.revision.commit)
            root = put_root(batch, edit_paths(batch, before, {place.path: edited}))
        with store.lane() as lane:
            lane.apply(batch, (), actor)
    return Spliced(ContentRef(edited.ref, edited.size), root)


def _within(room: int, data: Iterable[Block]) -> Iterator[Block]:
    for block in data:
        room -= block if isinstance(block, int) else len(block)
        if room < 0:
            raise UsageError(f"no file has more than {MAX_FILE_BYTES} bytes")
        yield block


def hash_ranges(
    store: Store,
    path: bytes,
    base: str,
    ranges: Sequence[Range],
    write: bool,
    actor: str,
    at: CommitId | None,
) -> ContentRef:
    """Return the content of a file that differs from ``base`` in these ranges only; TornRead if it moves meanwhile."""
    for each in ranges:
        _check_not_negative(*each)
    before = stored_file(store, base, at)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"cannot read {quote(path)}: no such file") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError(f"{quote(path)} is not a file")
        if not write:
            found = capture_ranges(store.objects, NoSink(), before, descriptor, ranges)
        else:
            with store.batch() as batch:
                found = capture_ranges(store.objects, batch, before, descriptor, ranges)
                if found.stable:
                    with store.lane() as lane:
                        lane.apply(batch, (), actor)
    finally:
        os.close(descriptor)
    if not found.stable:
        raise TornRead(f"{quote(path)} changed while it was read", "stop what writes to it, then try again")
    return found.content


def parse_ranges(words: Iterable[str]) -> list[Range]:
    """Return the ranges that words ``OFFSET:LENGTH`` name."""
    found = []
    for word in words:
        offset, colon, length = word.partition(":")
        if not (colon and offset.isdecimal() and length.isdecimal() and word.isascii()):
            raise UsageError(f"not OFFSET:LENGTH: {quote(word)}", "both are numbers of bytes")
        found.append(Range(int(offset), int(length)))
    return found


def _check_not_negative(offset: int, length: int) -> None:
    if offset < 0 or length < 0:
        raise UsageError("an offset and a length are not negative")
    if offset + length > MAX_FILE_BYTES:
        raise UsageError(f"no file has more than {MAX_FILE_BYTES} bytes")

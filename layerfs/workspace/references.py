"""References: where the files of a state name absolute paths, into the captured directory or out of it.

A copied virtualenv run at another path silently executes the *original* code: its scripts begin with ``#!`` and the
captured path, its editable installs name it, and so do CMake's and cargo's caches. What leads *into* the captured path
decides whether a workspace may be anywhere else; what leads *out* of it (an interpreter in somebody's home) is told by
``layerfs doctor``.

Looked at are symlinks, the first lines of executables, and the text files known to hold such paths. The answer for a
state is kept in the cache directory; the answer for another one comes from that and the difference of the two, so
mounting never waits for a scan of everything once there was one. It is advice: nothing is ever rewritten.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from layerfs.errors import LayerfsError
from layerfs.history.history import CommitReader
from layerfs.ids import ID_BYTES, CommitId, ObjectId, RootId
from layerfs.objects.chunking import ONE_PIECE_LIMIT
from layerfs.objects.codec import Reader, Writer
from layerfs.objects.content import read_range
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import diff_trees, read_root, split, walk
from layerfs.store.layout import is_inside
from layerfs.store.store import Store
from layerfs.workspace.derived import Derived

LIST = Derived(b"references", b"layerfs references 1")
MAX_CHANGES = 50_000
MAX_TEXT = 1 << 20
HEAD = 4096

_NAMES = frozenset(
    (
        b".git",
        b"Activate.ps1",
        b"CMakeCache.txt",
        b"activate",
        b"activate.csh",
        b"activate.fish",
        b"build.ninja",
        b"compile_commands.json",
        b"config.status",
        b"direct_url.json",
        b"gitdir",
        b"pyvenv.cfg",
    )
)
_SUFFIXES = (b".pth", b".egg-link", b".pc", b".la", b".d", b"_finder.py")
_SYSTEM = tuple(
    b"/" + name for name in (b"bin", b"sbin", b"usr", b"lib", b"lib64", b"etc", b"dev", b"proc", b"sys")
)


class Reference(NamedTuple):
    """One place: ``kind`` is symlink, interpreter or text; ``into`` the captured path, or out of it."""

    path: bytes
    kind: str
    target: bytes
    into: bool


class References(NamedTuple):
    """All places of a state, by path."""

    found: tuple[Reference, ...]

    @property
    def into(self) -> tuple[Reference, ...]:
        """Those that lead to the original wherever else the state is shown."""
        return tuple(reference for reference in self.found if reference.into)

    @property
    def out(self) -> tuple[Reference, ...]:
        """Those that leave the tree."""
        return tuple(reference for reference in self.found if not reference.into)


def is_of_the_system(target: bytes) -> bool:
    """Whether a path belongs to the operating system, as ``/bin/sh`` does, and not to some user or project."""
    return any(is_inside(target, top) for top in _SYSTEM)


def find_references(store: Store, commit: CommitId) -> References:
    """Return the references of a commit's state; none for a store that has no captured directory."""
    source = store.format.source
    if source is None:
        return References(())
    reader = CommitReader(store.objects)
    root_id = reader.commit(commit).root
    kept = _load(store, source)
    if kept is not None and kept[0] == root_id:
        return kept[1]
    root = reader.root(commit)
    found = None if kept is None else _moved(store, source, kept, root)
    if found is None:
        found = list(_scan(store, source, walk(store.objects, root)))
    result = References(tuple(sorted(found)))
    _save(store, source, root_id, result)
    return result


def _moved(
    store: Store, source: bytes, kept: tuple[bytes, References], root: Entry
) -> list[Reference] | None:
    """Return the references of a state from those of another; None if they are too far apart or that one is gone."""
    gone: set[bytes] = set()
    fresh: list[tuple[bytes, Entry]] = []
    try:
        before = read_root(store.objects, RootId(ObjectId(kept[0])))
        for change in diff_trees(store.objects, before, root):
            gone.add(change.path)
            if change.new is not None:
                fresh.append((change.path, change.new))
            if len(gone) > MAX_CHANGES:
                return None
    except LayerfsError:
        return None
    same = [reference for reference in kept[1].found if reference.path not in gone]
    return [*same, *_scan(store, source, fresh)]


def _scan(store: Store, source: bytes, entries: Iterable[tuple[bytes, Entry]]) -> Iterator[Reference]:
    small: dict[bytes, list[tuple[bytes, Entry]]] = {}
    for path, entry in entries:
        if entry.kind is EntryKind.SYMLINK:
            yield from _of_symlink(source, path, entry.ref)
        elif entry.kind is EntryKind.FILE and entry.size and (entry.mode & 0o111 or _is_likely(path)):
            if entry.size < ONE_PIECE_LIMIT:
                small.setdefault(entry.ref, []).append((path, entry))
            else:
                length = MAX_TEXT if _is_likely(path) else HEAD
                yield from _of_file(source, path, entry, read_range(store.objects, entry, 0, length))
    for oid, _, data in store.objects.read_many([ObjectId(ref) for ref in small]):
        for path, entry in small[oid]:
            yield from _of_file(source, path, entry, data)


def _is_likely(path: bytes) -> bool:
    name = split(path)[1]
    return name in _NAMES or name.endswith(_SUFFIXES)


def _of_symlink(source: bytes, path: bytes, target: bytes) -> Iterator[Reference]:
    if target.startswith(b"/"):
        yield Reference(path, "symlink", target, is_inside(os.path.normpath(target), source))
        return
    place = os.path.join(source, path)
    if not is_inside(os.path.normpath(os.path.join(os.path.dirname(place), target)), source):
        yield Reference(path, "symlink", target, False)


def _of_file(source: bytes, path: bytes, entry: Entry, data: bytes) -> Iterator[Reference]:
    if entry.mode & 0o111 and data.startswith(b"#!"):
        first, _, rest = data[:HEAD].partition(b"\n")
        words = first[2:].split()
        interpreter = words[0] if words else b""
        into = is_inside(interpreter, source)
        if not into and rest.startswith(b"'''exec' ") and _names_source(source, rest.partition(b"\n")[0]):
            interpreter, into = (
                rest.partition(b"\n")[0].split()[1].strip(b"\"'"),
                True,
            )  # pip's way around long paths
        if interpreter.startswith(b"/"):
            yield Reference(path, "interpreter", interpreter, into)
            if into:
                return
    if not _is_likely(path) or source == b"/":
        return
    if _names_source(source, data[:MAX_TEXT]):
        yield Reference(path, "text", source, True)
    elif split(path)[1] == b"pyvenv.cfg":
        for line in data.splitlines():
            key, separator, value = line.partition(b"=")
            if separator and key.strip() == b"home" and value.strip().startswith(b"/"):
                yield Reference(path, "text", value.strip(), False)


def _names_source(source: bytes, text: bytes) -> bool:
    """Whether a text has the captured path as a whole path, not as the beginning or end of a longer name."""
    return re.search(rb"(?<![a-z0-9_.-])" + re.escape(source) + rb"(?![\w.-])", text) is not None


def _load(store: Store, source: bytes) -> tuple[bytes, References] | None:
    found = LIST.load(store, _read)
    return None if found is None or found[1] != source else (found[0], found[2])


def _read(reader: Reader) -> tuple[bytes, bytes, References]:
    root, source = reader.raw(ID_BYTES), reader.data()
    found = tuple(
        Reference(reader.data(), reader.text(), reader.data(), bool(reader.uint()))
        for _ in range(reader.count(4))
    )
    return root, source, References(found)


def _save(store: Store, source: bytes, root: bytes, references: References) -> None:
    out = Writer().raw(root).data(source).uint(len(references.found))
    for reference in references.found:
        out.data(reference.path).text(reference.kind).data(reference.target).uint(reference.into)
    LIST.save(store, out)

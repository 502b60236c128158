"""Environments written as Python values: nested dictionaries in, root entries out, and back."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Union

from layerfs.objects.content import put_content, read_content
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import walk
from layerfs.objects.source import ObjectSource, ObjectStore
from layerfs.objects.trees import build_tree

Spec = Union[bytes, Entry, None, Mapping[str, "Spec"]]  # noqa: UP007  (a recursive alias)

OLD_NS = 1_000_000_000_000
MERGE_NS = 5_000_000_000_000


def file(store: ObjectStore, content: bytes, mode: int = 0o644, mtime_ns: int = OLD_NS) -> Entry:
    """Return a file's entry."""
    stored = put_content(store, content)
    return Entry(EntryKind.FILE, mode, 0, 0, mtime_ns, stored.size, stored.ref)


def link(target: bytes) -> Entry:
    """Return a symlink's entry."""
    return Entry(EntryKind.SYMLINK, 0o777, 0, 0, OLD_NS, 0, target)


def tree(store: ObjectStore, spec: Mapping[str, Spec], mode: int = 0o755, mtime_ns: int = OLD_NS) -> Entry:
    """Return a directory's entry: bytes are files, dictionaries directories, None leaves the name out."""
    items: list[tuple[bytes, Entry]] = []
    for name, value in spec.items():
        if value is None:
            continue
        if isinstance(value, bytes):
            value = file(store, value)
        elif not isinstance(value, Entry):
            value = tree(store, value)
        items.append((name.encode("utf-8", "surrogateescape"), value))
    return Entry(EntryKind.DIR, mode, 0, 0, mtime_ns, 0, build_tree(store, sorted(items)))


def listing(source: ObjectSource, root: Entry | None) -> dict[str, object]:
    """Return path → content (bytes of a file, ``"-> target"`` of a symlink, kind and mode of anything else)."""
    assert root is not None
    found: dict[str, object] = {}
    for path, entry in walk(source, root):
        name = path.decode("utf-8", "surrogateescape")
        if entry.kind is EntryKind.FILE:
            content = read_content(source, entry)
            found[name] = (content, entry.mode) if entry.mode != 0o644 else content
        elif entry.kind is EntryKind.SYMLINK:
            found[name] = "-> " + entry.ref.decode()
        elif entry.kind is not EntryKind.DIR:
            found[name] = (entry.kind.name, entry.mode)
        elif name:
            found[name + "/"] = entry.mode
    return found


def git_index(entries: Mapping[bytes, bytes], stat: int = 0, extension: bytes = b"") -> bytes:
    """Return a git index (version 2) of regular files: path → object id."""
    body = struct.pack(">4sII", b"DIRC", 2, len(entries))
    for path, oid in sorted(entries.items()):
        entry = (
            struct.pack(">10I", *[stat] * 6, 0o100644, *[stat] * 3)
            + oid
            + struct.pack(">H", min(len(path), 0xFFF))
            + path
        )
        body += entry + bytes(8 - len(entry) % 8)
    if extension:
        body += extension[:4] + struct.pack(">I", len(extension) - 4) + extension[4:]
    return body + hashlib.sha1(body).digest()

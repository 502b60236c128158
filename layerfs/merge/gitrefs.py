"""Refs of a captured git directory as values: a ref that one side merely packed has not moved.

Git keeps a ref as a loose file or as a line of ``packed-refs``, and moves all of them over whenever it collects garbage.
Compared file by file that looks like a deletion; here the values are compared, loose before packed, as git reads them.
Invariant: a ref that both sides moved to different values is a conflict, never a choice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from layerfs.merge.threeway import CLASH, merge_value
from layerfs.objects.content import read_content
from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import join, lookup_path, walk
from layerfs.objects.source import ObjectSource

_HEADER = b"# pack-refs with: peeled fully-peeled sorted \n"
_LINE = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) (\S.*)")
_PEELED = re.compile(rb"\^([0-9a-f]{40}|[0-9a-f]{64})")


class PackedRef(NamedTuple):
    """A line of ``packed-refs``; ``peeled`` is what a tag object points to, if git wrote it down."""

    value: bytes
    peeled: bytes | None


def read_packed_refs(data: bytes) -> dict[bytes, PackedRef] | None:
    """Return name → ref, or None if any line is not understood."""
    refs: dict[bytes, PackedRef] = {}
    last = b""
    for line in data.split(b"\n"):
        if not line or line.startswith(b"#"):
            continue
        if peeled := _PEELED.fullmatch(line):
            if not last or refs[last].peeled is not None:
                return None
            refs[last] = refs[last]._replace(peeled=peeled[1])
        elif found := _LINE.fullmatch(line):
            last = found[2]
            refs[last] = PackedRef(found[1], None)
        else:
            return None
    return refs


def write_packed_refs(refs: Mapping[bytes, PackedRef]) -> bytes:
    """Return the file git would have written for these refs."""
    lines = [_HEADER]
    for name in sorted(refs):
        value, peeled = refs[name]
        lines.append(value + b" " + name + b"\n")
        if peeled is not None:
            lines.append(b"^" + peeled + b"\n")
    return b"".join(lines)


def split_ref(path: bytes) -> tuple[bytes, bytes] | None:
    """Split the path of a loose ref into (git directory, ref name); None for HEAD and packed-refs."""
    directory, slash, name = path.partition(b"/refs/")
    return (directory, b"refs/" + name) if slash else None


class GitRefs:
    """The refs of one captured state."""

    def __init__(self, source: ObjectSource, root: Entry | None) -> None:
        self._source = source
        self._root = root

    def packed(self, git_directory: bytes) -> dict[bytes, PackedRef] | None:
        """Return the packed refs; None if the file cannot be understood, nothing if there is none."""
        content = self._content(join(git_directory, b"packed-refs"))
        return {} if content is None else read_packed_refs(content)

    def values(self, git_directory: bytes) -> dict[bytes, bytes] | None:
        """Return name → value of every ref, loose before packed."""
        packed = self.packed(git_directory)
        if packed is None or self._root is None:
            return None if packed is None else {}
        values = {name: ref.value for name, ref in packed.items()}
        top = join(git_directory, b"refs")
        directory = lookup_path(self._source, self._root, top)
        if directory is not None:
            for path, entry in walk(self._source, directory, top):
                if entry.kind is EntryKind.FILE:
                    values[path[len(git_directory) + 1 :]] = read_content(self._source, entry).strip()
        return values

    def _content(self, path: bytes) -> bytes | None:
        entry = None if self._root is None else lookup_path(self._source, self._root, path)
        if entry is None or entry.kind is not EntryKind.FILE:
            return None
        return read_content(self._source, entry)


def merge_packed_refs(
    base: Mapping[bytes, bytes], ours: Mapping[bytes, PackedRef], theirs: Mapping[bytes, PackedRef]
) -> bytes | None:
    """Merge two packed-refs files over the values all refs had in the base; None if both moved one apart.

    A ref that only one side has packed stays packed: the other side has it loose, which git reads first, or had deleted
    it loose, in which case it comes back rather than getting lost.
    """
    merged: dict[bytes, PackedRef] = {}
    for name in ours.keys() | theirs.keys():
        mine, other = ours.get(name), theirs.get(name)
        if mine is None or other is None:
            kept = mine or other
            assert kept is not None
            merged[name] = kept
            continue
        value = merge_value(base.get(name), mine.value, other.value)
        if value is CLASH:
            return None
        merged[name] = mine if value == mine.value else other
    return write_packed_refs(merged)

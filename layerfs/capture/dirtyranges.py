"""Dirty ranges: a file captured anew from its older version and the ranges that changed, reading nothing else.

Owns what a caller that knows the ranges may rely on: the content is that of a whole capture as long as every byte outside
the ranges is as it was; growth and truncation need not be named, they show in the size. Who can know: whatever saw the
writes – a FUSE server, a tracer, a program that keeps such a file. The overlay engine does not, since a file is copied up
whole, and an extent map tells only where blocks lie, not which bytes they differ in; these read the file again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from layerfs.objects.chunking import Block
from layerfs.objects.content import ContentRef
from layerfs.objects.entry import Entry
from layerfs.objects.source import ObjectSink, ObjectSource
from layerfs.objects.splice import Edit, put_edits

READ_BLOCK = 4 * 1024 * 1024


class Range(NamedTuple):
    """``length`` bytes from ``offset`` on."""

    offset: int
    length: int


class RangedContent(NamedTuple):
    """A file's content as it was read, and whether the file held still meanwhile."""

    content: ContentRef
    stable: bool


def capture_ranges(
    source: ObjectSource, sink: ObjectSink, before: Entry, descriptor: int, ranges: Iterable[Range]
) -> RangedContent:
    """Put the content of an open regular file that differs from ``before`` in ``ranges`` only.

    Ranges may overlap, touch, come in any order and reach past the end. Raises OSError as reading does, with EINVAL for
    what is no regular file.
    """
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    edits = [
        Edit(start, max(min(end, before.size) - start, 0), _blocks(descriptor, start, end))
        for start, end in _merged(ranges, before.size, info.st_size)
    ]
    if info.st_size < before.size:
        edits.append(Edit(info.st_size, before.size - info.st_size, ()))
    content = put_edits(source, sink, before, edits)
    after = os.fstat(descriptor)
    return RangedContent(content, _stamp(info) == _stamp(after))


def _stamp(info: os.stat_result) -> tuple[int, int, int]:
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _merged(ranges: Iterable[Range], old_size: int, size: int) -> list[tuple[int, int]]:
    """Return (start, end) of what to read, in order and apart; what the file has grown by is one of them."""
    wanted = [
        (offset, min(offset + length, size)) for offset, length in ranges if offset < size and length > 0
    ]
    if size > old_size:
        wanted.append((old_size, size))
    merged: list[tuple[int, int]] = []
    for start, end in sorted(wanted):
        if merged and start <= merged[-1][1]:
            start, last = merged.pop()
            end = max(end, last)
        merged.append((start, end))
    return merged


def _blocks(descriptor: int, at: int, end: int) -> Iterator[Block]:
    """Yield what lies from ``at`` to ``end``: data in blocks, holes as their length; zeros for what is gone by now."""
    while at < end:
        start = _next_data(descriptor, at, end)
        if start > at:
            yield start - at
            at = start
            continue
        data = os.pread(descriptor, min(READ_BLOCK, end - at), at)
        if not data:
            yield end - at
            return
        yield data
        at += len(data)


def _next_data(descriptor: int, at: int, end: int) -> int:
    try:
        return min(os.lseek(descriptor, at, os.SEEK_DATA), end)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end
        raise

"""Which paths a capture leaves out: the pointer file, what the user excluded, and layerfs's own places.

Patterns are relative to the captured root. A pattern with a ``/`` matches whole paths, one without matches any name on
the way; ``*`` and ``?`` match within one name, ``**`` across names. What is excluded is never opened, and an excluded
directory leaves out all it holds. The patterns belong to the store and are used by every later capture.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import xxhash

from layerfs.capture.statcache import NO_STAMP
from layerfs.store.layout import POINTER


def compile_pattern(pattern: bytes) -> re.Pattern[bytes]:
    """Return a pattern that matches the relative paths to leave out."""
    body = pattern.strip(b"/")
    anchored = b"/" in pattern.rstrip(b"/")
    out = [b"" if anchored else b"(?:.*/)?"]
    at = 0
    while at < len(body):
        if body[at : at + 3] == b"**/":
            out.append(b"(?:.*/)?")
            at += 3
        elif body[at : at + 2] == b"**":
            out.append(b".*")
            at += 2
        else:
            byte = body[at : at + 1]
            out.append(b"[^/]*" if byte == b"*" else b"[^/]" if byte == b"?" else re.escape(byte))
            at += 1
    return re.compile(b"".join(out), re.DOTALL)


def exclusion(patterns: Iterable[bytes], paths: Iterable[bytes] = ()) -> Callable[[bytes], bool]:
    """Return the test for paths to leave out: the pointer file, ``patterns``, and exact ``paths``."""
    compiled = [compile_pattern(pattern) for pattern in patterns]
    exact = {POINTER, *paths}
    if not compiled:
        return exact.__contains__
    return lambda path: path in exact or any(pattern.fullmatch(path) for pattern in compiled)


def exclusion_stamp(patterns: Iterable[bytes], paths: Iterable[bytes] = ()) -> bytes:
    """Return eight bytes that are others for other patterns or paths: what one exclusion left out another may take."""
    parts = [b"\0".join(sorted(set(each))) for each in (patterns, paths)]
    return xxhash.xxh3_64(b"\0\0".join(parts)).digest() if any(parts) else NO_STAMP

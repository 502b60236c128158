"""Standard input: the bytes and the records that batch forms of plumbing read.

Owns the reading of stdin and the one rule for records: lines, or under ``-z`` pieces that end in a NUL byte. However much
comes in, one record is held at a time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

BLOCK = 1 << 20


def iter_blocks() -> Iterator[bytes]:
    """Yield everything on standard input in blocks."""
    while block := sys.stdin.buffer.read(BLOCK):
        yield block


def iter_records(nul: bool) -> Iterator[bytes]:
    """Yield the records on standard input without their end mark; the last one may lack it."""
    if not nul:
        for line in sys.stdin.buffer:
            yield line.removesuffix(b"\n")
        return
    rest = b""
    while block := os.read(0, BLOCK):
        *whole, rest = (rest + block).split(b"\0")
        yield from whole
    if rest:
        yield rest

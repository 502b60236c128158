"""Which packs may hold an object, where there are many of them.

A store that is never repacked may have a thousand packs, and to ask the index of each takes a thousand times as long as
to ask one. A finder is a table from the first two bytes of an id to the packs that have such ids, made from the indexes
when enough is asked, and kept until the list of packs changes. It never overlooks a pack. What an index says of an id
is in ``packindex``; packs with very many objects would be in nearly every row, and are always candidates.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence

from layerfs.objects.packindex import PackIndex

FEW_PACKS = 12
LOOKUPS_BEFORE_TABLE = 64
LARGE_PACK_OBJECTS = 16_384
SPARE_DESCRIPTORS = 512


class PackFinder:
    """The candidates for an id among these packs; in the order given, but that large packs come last."""

    def __init__(self, numbers: Sequence[int], index: Callable[[int], PackIndex]) -> None:
        self.numbers = numbers
        self._index = index
        self._asked = 0
        self._rows: list[list[int]] | None = None
        self._large: list[int] = []

    def candidates(self, prefix: bytes) -> Sequence[int]:
        """Return the packs whose index must be asked for an id that begins so."""
        rows = self._rows
        if rows is None:
            self._asked += 1
            if len(self.numbers) <= FEW_PACKS or self._asked < LOOKUPS_BEFORE_TABLE:
                return self.numbers
            rows = self._rows = self._table()
        row = rows[prefix[0] << 8 | prefix[1]]
        return [*row, *self._large] if self._large else row

    def _table(self) -> list[list[int]]:
        rows: list[list[int]] = [[] for _ in range(1 << 16)]
        large: list[int] = []
        for number in self.numbers:
            index = self._index(number)
            if index.count > LARGE_PACK_OBJECTS:
                large.append(number)
                continue
            for first in range(256):
                for second in index.second_bytes(first):
                    rows[first << 8 | second].append(number)
        self._large = large
        return rows


def allow_descriptors(packs: int) -> None:
    """Let the process have this many packs open, as far as the system permits; many begin with a limit of 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = packs + SPARE_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))

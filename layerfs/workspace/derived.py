"""Derived lists: what going through a whole state once found out about it, kept for the states that come after it.

Each list is one file in the cache directory of a store, headed by a line that says what it is. It may be lost, damaged or
taken away at any time: then it is made again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from layerfs.capture.statcache import write_cache
from layerfs.errors import MalformedObject
from layerfs.objects.codec import Reader, Writer
from layerfs.store.store import Store

_Value = TypeVar("_Value")


class Derived(NamedTuple):
    """Where a list lies: the file's name in the cache directory and its first line, without the line feed."""

    name: bytes
    head: bytes

    def load(self, store: Store, read: Callable[[Reader], _Value]) -> _Value | None:
        """Return what ``read`` makes of the list; None if there is none that can be read."""
        head = self.head + b"\n"
        try:
            with open(self._path(store), "rb") as file:
                payload = file.read()
        except OSError:
            return None
        if not payload.startswith(head):
            return None
        reader = Reader(payload[len(head) :], os.fsdecode(self.head))
        try:
            value = read(reader)
            reader.end()
        except MalformedObject:
            return None
        return value

    def save(self, store: Store, out: Writer) -> None:
        """Keep a list instead of the one before, where the store has a cache directory."""
        path = self._path(store)
        if os.path.isdir(os.path.dirname(path)):
            write_cache(path, (self.head + b"\n", out.done()), store.files.owner)

    def _path(self, store: Store) -> bytes:
        return os.path.join(store.path, b"cache", self.name)

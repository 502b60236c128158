"""Packed maps: numbers by object id, for batches of millions of objects.

A dictionary takes 200 bytes for each; here it holds the latest only, and what is older lies packed in runs by the first
two bytes of the id. Ids are hashes, so the runs are of one length or nearly, and to search one is to search some hundred
bytes. What was put last is found at the price of a dictionary, and so is everything of a small map.
"""

from __future__ import annotations

from collections.abc import Iterator

_BUCKET_BYTES = 2
_LATEST = 1 << 15


class PackedMap:
    """Numbers of ``number_bytes`` by keys of ``key_bytes``, each put once. Threads may look while one puts."""

    __slots__ = ("_key_bytes", "_latest", "_number_bytes", "_packed", "_packed_count", "_width")

    def __init__(self, key_bytes: int, number_bytes: int) -> None:
        self._key_bytes = key_bytes - _BUCKET_BYTES
        self._number_bytes = number_bytes
        self._width = self._key_bytes + number_bytes
        self._latest: dict[bytes, int] = {}
        self._packed: dict[bytes, bytes] = {}
        self._packed_count = 0

    def __len__(self) -> int:
        return self._packed_count + len(self._latest)

    def __contains__(self, key: bytes) -> bool:
        return key in self._latest or (bool(self._packed) and self._place(key) >= 0)

    def get(self, key: bytes) -> int | None:
        """Return the number of a key."""
        number = self._latest.get(key)
        if number is not None or not self._packed:
            return number
        place = self._place(key)
        if place < 0:
            return None
        at = place + self._key_bytes
        return int.from_bytes(self._packed[key[:_BUCKET_BYTES]][at : at + self._number_bytes], "little")

    def put(self, key: bytes, number: int) -> None:
        """Add a key that is not there."""
        self._latest[key] = number
        if len(self._latest) >= _LATEST:
            self._pack()

    def change(self, key: bytes, number: int) -> None:
        """Give a key that is there another number."""
        if key in self._latest:
            self._latest[key] = number
            return
        bucket, at = key[:_BUCKET_BYTES], self._place(key) + self._key_bytes
        run = self._packed[bucket]
        encoded = number.to_bytes(self._number_bytes, "little")
        self._packed[bucket] = run[:at] + encoded + run[at + self._number_bytes :]

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Yield keys and numbers in the order of the keys; nothing may be put meanwhile."""
        if not self._packed:
            for key in sorted(self._latest):
                yield key, self._latest[key]
            return
        self._pack()
        for bucket in sorted(self._packed):
            run = self._packed[bucket]
            for row in sorted(run[at : at + self._width] for at in range(0, len(run), self._width)):
                number = int.from_bytes(row[self._key_bytes :], "little")
                yield bucket + row[: self._key_bytes], number

    def _place(self, key: bytes) -> int:
        """Where a key's row begins in its run; negative if it has none."""
        run = self._packed.get(key[:_BUCKET_BYTES], b"")
        rest = key[_BUCKET_BYTES:]
        at = run.find(rest)
        while at > 0 and at % self._width:  # the bytes of two rows that happen to look like one
            at = run.find(rest, at + 1)
        return at

    def _pack(self) -> None:
        packed, width = self._packed, self._number_bytes
        for key, number in self._latest.items():
            bucket = key[:_BUCKET_BYTES]
            packed[bucket] = packed.get(bucket, b"") + key[_BUCKET_BYTES:] + number.to_bytes(width, "little")
        self._packed_count += len(self._latest)
        self._latest.clear()

"""The canonical byte codec under commits, layers and moves.

Values are written field after field with no tags: unsigned integers as little-endian fixed width or LEB128, byte strings
with a LEB128 length in front. There is exactly one encoding of each value; a reader refuses every other (overlong
integers, trailing bytes, unsorted maps), so that equal values always have equal ids. Entries of trees have a fixed
layout of their own (``entry``) because they are decoded by the million.
"""

from __future__ import annotations

from layerfs.errors import MalformedObject

MAX_VARINT_BYTES = 10
_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


class Writer:
    """Appends canonical fields to a buffer."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def raw(self, value: bytes) -> Writer:
        """Append bytes whose length the reader knows."""
        self._parts.append(value)
        return self

    def uint(self, value: int) -> Writer:
        """Append an unsigned integer below 2**64 as minimal LEB128."""
        if 0 <= value < 0x80:
            self._parts.append(_ONE_BYTE[value])
            return self
        if not 0 <= value < 1 << 64:
            raise MalformedObject(f"integer out of range: {value}")
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
        self._parts.append(bytes(out))
        return self

    def sint(self, value: int) -> Writer:
        """Append a signed integer (zigzag over LEB128), -2**63 ≤ value < 2**63."""
        return self.uint(value << 1 if value >= 0 else (-value << 1) - 1)

    def data(self, value: bytes) -> Writer:
        """Append a length-prefixed byte string."""
        self.uint(len(value))
        self._parts.append(value)
        return self

    def text(self, value: str) -> Writer:
        """Append a length-prefixed UTF-8 string; lone surrogates stand for undecodable bytes."""
        return self.data(value.encode("utf-8", "surrogateescape"))

    def done(self) -> bytes:
        """Return everything written."""
        return b"".join(self._parts)


class Reader:
    """Reads canonical fields back; anything not written by :class:`Writer` raises MalformedObject."""

    __slots__ = ("_at", "_bytes", "_what")

    def __init__(self, payload: bytes, what: str) -> None:
        self._bytes = payload
        self._at = 0
        self._what = what

    def fail(self, why: str) -> MalformedObject:
        """Return the error for this object; the caller raises it."""
        return MalformedObject(f"malformed {self._what}: {why}")

    def raw(self, length: int) -> bytes:
        """Read exactly ``length`` bytes."""
        end = self._at + length
        if end > len(self._bytes):
            raise self.fail("too short")
        value = self._bytes[self._at : end]
        self._at = end
        return value

    def uint(self) -> int:
        """Read an unsigned LEB128 integer below 2**64."""
        value = shift = 0
        while True:
            if self._at >= len(self._bytes):
                raise self.fail("too short")
            byte = self._bytes[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                if (byte == 0 and shift) or value >= 1 << 64:
                    raise self.fail("integer is not minimal")
                return value
            shift += 7
            if shift >= 7 * MAX_VARINT_BYTES:
                raise self.fail("integer is too long")

    def sint(self) -> int:
        """Read a signed integer."""
        value = self.uint()
        return -((value + 1) >> 1) if value & 1 else value >> 1

    def data(self) -> bytes:
        """Read a length-prefixed byte string."""
        return self.raw(self.uint())

    def text(self) -> str:
        """Read a length-prefixed string."""
        return self.data().decode("utf-8", "surrogateescape")

    def count(self, smallest: int = 1) -> int:
        """Read a count of items of at least ``smallest`` bytes each; bounded by what is left, before any allocation."""
        value = self.uint()
        if value * smallest > len(self._bytes) - self._at:
            raise self.fail("count exceeds the object")
        return value

    def end(self) -> None:
        """Refuse trailing bytes."""
        if self._at != len(self._bytes):
            raise self.fail("trailing bytes")

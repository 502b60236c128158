"""A packed map is a dictionary, however much of it is packed, and for ids that look alike as well."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerfs.objects import packedmap
from layerfs.objects.packedmap import PackedMap

KEYS = st.binary(min_size=4, max_size=4).map(lambda key: bytes(byte & 1 for byte in key))
"""Few values in every byte: rows then often hold the bytes of a key across their borders."""


@given(
    puts=st.lists(st.tuples(KEYS, st.integers(0, 0x0101)), max_size=60),
    changes=st.lists(st.tuples(KEYS, st.integers(0, 0x0101)), max_size=8),
    latest=st.integers(1, 20),
)
def test_a_packed_map_is_a_dictionary(
    puts: list[tuple[bytes, int]], changes: list[tuple[bytes, int]], latest: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packedmap, "_LATEST", latest)
        found, expected = PackedMap(4, 2), dict[bytes, int]()
        for key, number in puts:
            assert (key in found) == (key in expected)
            if key not in expected:
                expected[key] = number
                found.put(key, number)
        for key, number in changes:
            if key in expected:
                expected[key] = number
                found.change(key, number)
        assert len(found) == len(expected)
        for number in range(16):
            key = bytes(number >> bit & 1 for bit in range(4))
            assert found.get(key) == expected.get(key)
            assert (key in found) == (key in expected)
        assert list(found.items()) == sorted(expected.items())
        assert dict(found.items()) == expected

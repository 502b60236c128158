"""Places in a pack index: what one look-up finds, many at once find, and nothing outside of the data is read."""

from __future__ import annotations

import random

import pytest
from kernels import load, on_both

from layerfs.errors import StoreDamaged
from layerfs.ids import ObjectId
from layerfs.kernels.native import IndexLayout
from layerfs.objects.kinds import Kind
from layerfs.objects.packindex import FANOUT_START, IndexBuilder, PackIndex

LENGTH = 1 << 30


def an_index(count: int, seed: int = 1) -> tuple[bytes, dict[bytes, tuple[int, int, int, int]]]:
    """Return the bytes of an index of random objects, and where each lies."""
    chance = random.Random(seed)
    builder, places = IndexBuilder(), {}
    for number in range(count):
        oid = chance.randbytes(32)
        if number % 3 == 0:
            oid = b"\x07" * (number % 15) + oid[number % 15 :]
        place = (64 + 1000 * (number // 40), chance.randrange(1 << 22), chance.randrange(1 << 20), 1 + number % 6)
        builder.add(oid[:16], place)
        places.setdefault(oid[:16], place)
    return bytes(builder.encode(LENGTH)), places


def layout_of(data: bytes) -> IndexLayout:
    return PackIndex(data, LENGTH)._layout


@on_both
@pytest.mark.parametrize("count", [0, 1, 2, 300, 5000])
def test_every_object_is_found_and_no_other(which: str, count: int) -> None:
    data, places = an_index(count)
    index, layout = PackIndex(data, LENGTH), layout_of(data)
    others = [bytes([number]) * 40 for number in range(256)]
    found = load(which).index_places(data, layout, [*places, *others])
    assert found[: len(places)] == list(places.values())
    assert found[len(places) :] == [None] * 256
    assert [index.find(key) for key in places] == found[: len(places)]
    assert index.find_many([ObjectId(key) for key in places]) == found[: len(places)]


@on_both
def test_a_layout_that_does_not_fit_is_refused(which: str) -> None:
    data, places = an_index(300)
    good = layout_of(data)
    find, keys = load(which).index_places, list(places)
    for name in good._fields:
        if not name.endswith("bits"):
            with pytest.raises(ValueError, match=r"larger|impossible"):
                find(data, good._replace(**{name: len(data) + 1}), keys)
        with pytest.raises(ValueError, match=r"larger|impossible"):
            find(data, good._replace(**{name: 1 << 20}), keys)
    with pytest.raises(ValueError, match="short"):
        find(data, good, [b"\x07" * 15])
    with pytest.raises(ValueError, match="larger"):
        find(data[: len(data) // 2], good, keys)


@on_both
def test_a_frame_that_is_not_listed_is_refused(which: str) -> None:
    data, places = an_index(300)
    with pytest.raises(ValueError, match="impossible"):
        load(which).index_places(data, layout_of(data)._replace(frames=1), list(places))


def test_any_changed_byte_gives_our_error_or_an_answer() -> None:
    """Both kernels answer alike whatever the bytes are, and what they answer is checked once more."""
    data, places = an_index(200)
    keys = [ObjectId(key) for key in places]
    chance = random.Random(2)
    for _ in range(100):
        bad = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            bad[chance.randrange(FANOUT_START, len(bad))] ^= 1 << chance.randrange(8)
        answers: list[object] = []
        for which in ("kernel", "twin"):
            try:
                answers.append(load(which).index_places(bytes(bad), layout_of(bytes(bad)), keys))
            except (ValueError, StoreDamaged) as error:
                answers.append(type(error))
        assert answers[0] == answers[1]
        try:
            found = PackIndex(bytes(bad), LENGTH).find_many(keys)
        except StoreDamaged:
            continue
        assert all(place is None or Kind.CHUNK <= place.kind <= Kind.LAYER for place in found)

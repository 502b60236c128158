"""Logical format 1 is frozen: the ids of fixed values, by kernel and by twin, and what decoding gives back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from golden import format1_vectors as format1
from kernels import load

from layerfs.kernels import native
from layerfs.objects.commits import decode_commit
from layerfs.objects.entry import decode_entry
from layerfs.objects.layers import decode_layer
from layerfs.objects.moves import decode_move

FROZEN: dict[str, Any] = json.loads(format1.FILE.read_text(encoding="utf-8"))


@pytest.fixture(params=["kernel", "twin"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run with the compiled kernels and with their Python twins."""
    chosen = native.available()
    load(request.param)
    native.select(kernel=request.param == "kernel")
    yield request.param
    native.select(kernel=chosen)


def test_every_id_is_the_frozen_one(implementation: str) -> None:
    computed = format1.vectors()
    assert computed.keys() == FROZEN.keys()
    for section, values in computed.items():
        assert values == FROZEN[section], section


def test_frozen_bytes_decode_to_the_values() -> None:
    for name, (path, entry) in format1.entries().items():
        payload = bytes.fromhex(FROZEN["entries"][name])
        assert decode_entry(payload, 0) == (path, entry, len(payload))
    for name, commit in format1.commits().items():
        assert decode_commit(bytes.fromhex(FROZEN["commits"][name]["bytes"])) == commit
    for name, layer in format1.layers().items():
        assert decode_layer(bytes.fromhex(FROZEN["layers"][name]["bytes"])) == layer
    for name, move in format1.moves().items():
        assert decode_move(bytes.fromhex(FROZEN["moves"][name]["bytes"])) == move


def test_equal_bytes_of_two_kinds_have_two_ids() -> None:
    assert len(set(FROZEN["same-bytes"].values())) == len(FROZEN["same-bytes"]) == len(set(FROZEN["keys"].values()))

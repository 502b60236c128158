"""Frozen cut points: with other cuts every stored file would be stored again, and nothing would be shared."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from kernels import load, on_both

from layerfs.objects.chunking import CHUNK_AVG, CHUNK_MAX, CHUNK_MIN

VECTORS = json.loads((Path(__file__).parent / "cutpoints.json").read_text(encoding="utf-8"))


def content(name: str) -> bytes:
    """Build the content a vector names."""
    if name == "random":
        return hashlib.shake_128(b"layerfs cut points").digest(1 << 20)
    if name == "text":
        return b"".join(b"%08d the quick brown fox jumps over the lazy dog\n" % number for number in range(10_000))
    if name == "zeros":
        return bytes(200_000)
    if name == "ones":
        return b"\xff" * 200_000
    if name == "edited":
        whole = content("random")
        return whole[:300_000] + b"an insertion" + whole[300_000:600_000]
    raise AssertionError(name)


def test_parameters_are_those_of_format_1() -> None:
    assert (CHUNK_MIN, CHUNK_AVG, CHUNK_MAX) == (8192, 16384, 32768)


@on_both
@pytest.mark.parametrize("name", sorted(VECTORS))
def test_cut_points_stay_where_they_are(which: str, name: str) -> None:
    data = content(name)
    assert hashlib.sha256(data).hexdigest() == VECTORS[name]["sha256"]
    assert load(which).cut_points(data, CHUNK_MIN, CHUNK_AVG, CHUNK_MAX, True) == VECTORS[name]["ends"]

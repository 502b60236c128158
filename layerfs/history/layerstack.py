"""The stack of main: its layers read whole, and what each one covered.

Owns the read side only; adding a layer is ``publish``'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from layerfs.ids import CommitId, LayerId
from layerfs.objects.content import iter_pieces
from layerfs.objects.layers import Layer, read_layer
from layerfs.objects.source import ObjectSource
from layerfs.store.store import Store


class StackedLayer(NamedTuple):
    """A layer of main, the numbers of the layers it covers, and the paths whose published work it covers."""

    oid: LayerId
    layer: Layer
    covers: tuple[int, ...] = ()
    paths: tuple[bytes, ...] = ()


def iter_layers(store: Store, with_paths: bool = False) -> Iterator[StackedLayer]:
    """Yield the layers of main, newest first; reading the covered paths costs a read each."""
    rows = store.refs.layers()
    numbers = {row.layer: row.number for row in rows}
    for row in rows:
        yield _stacked(store.objects, row.layer, numbers, with_paths)


def _stacked(
    source: ObjectSource, oid: LayerId, numbers: dict[LayerId, int], with_paths: bool
) -> StackedLayer:
    layer = read_layer(source, oid)
    covers = tuple(sorted(numbers[covered] for covered in layer.covered if covered in numbers))
    return StackedLayer(oid, layer, covers, covered_paths(source, layer) if with_paths else ())


def covered_paths(source: ObjectSource, layer: Layer) -> tuple[bytes, ...]:
    """Return the paths a layer covers."""
    ref, size = layer.covered_paths
    joined = b"".join(data or bytes(length) for length, data in iter_pieces(source, ref, size))
    return tuple(path for path in joined.split(b"\0") if path)


def layers_of(store: Store, commit: CommitId) -> list[StackedLayer]:
    """Return the layers that show this commit, newest first."""
    rows = store.refs.layers()
    numbers = {row.layer: row.number for row in rows}
    return [_stacked(store.objects, row.layer, numbers, True) for row in rows if row.commit == commit]

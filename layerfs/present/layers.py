"""How the layers of main are shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from layerfs.cli.output import Reply, encode_text
from layerfs.cli.quantities import counted, readable_time
from layerfs.history.layerstack import StackedLayer
from layerfs.ids import short, to_hex
from layerfs.present.names import path_data, show_line, show_path
from layerfs.present.objects import layer_data

SHOWN_PATHS = 50


def _data(row: StackedLayer) -> dict[str, Any]:
    return {
        "id": to_hex(row.oid),
        **layer_data(row.layer),
        "covered_layers": list(row.covers),
        "covered_paths": path_data(row.paths),
    }


def present_layer_lines(rows: Iterable[StackedLayer]) -> Reply:
    """Answer ``ls-layers``: number, layer id, commit id, how, time, a tab, the branch."""
    found = iter(rows)

    def line(row: StackedLayer) -> bytes:
        layer = row.layer
        head = f"{layer.number} {to_hex(row.oid)} {to_hex(layer.commit)} {layer.how} {layer.time_ns}\t"
        return head.encode() + encode_text(layer.branch)

    return Reply(
        data={"layers": (_data(row) for row in found)},
        text=(line(row) + b"\n" for row in found),
        z=(line(row) + b"\0" for row in found),
    )


def present_layers(rows: Iterable[StackedLayer], covered: bool) -> Reply:
    """Answer ``layers``: a line per layer, and below it what it covers when that was asked for."""
    found = list(rows)
    branches = max((len(row.layer.branch) for row in found), default=0)
    return Reply(
        data={"layers": [_data(row) for row in found]},
        text=b"".join(piece for row in found for piece in _shown(row, branches, covered)),
    )


def _shown(row: StackedLayer, width: int, covered: bool) -> Iterator[bytes]:
    layer = row.layer
    columns = [
        f"L{layer.number}".ljust(5),
        short(layer.commit),
        readable_time(layer.time_ns, 0),
        layer.how.ljust(9),
    ]
    columns += [layer.branch.ljust(width)] if width else []
    subject = layer.message.split("\n", 1)[0]
    yield encode_text("  ".join(columns)) + b"  " + show_line(subject) + b"\n"
    if covered:
        yield from covered_lines(row)


def covered_lines(row: StackedLayer) -> Iterator[bytes]:
    """Yield what a layer covers: the layers, then the paths, at most ``SHOWN_PATHS``."""
    if row.covers:
        yield f"       covers {', '.join(f'L{number}' for number in row.covers)}\n".encode()
    for path in row.paths[:SHOWN_PATHS]:
        yield b"         " + show_path(path) + b"\n"
    if len(row.paths) > SHOWN_PATHS:
        rest = counted(len(row.paths) - SHOWN_PATHS, "more path")
        yield f"         and {rest}; --json lists all\n".encode()

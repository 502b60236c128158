"""How one commit, one layer or one file is shown."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import chain

from layerfs.cli.output import Reply, encode_text
from layerfs.cli.quantities import readable_time
from layerfs.history.layerstack import StackedLayer
from layerfs.history.showing import ShownPlace, State
from layerfs.ids import short, to_hex
from layerfs.objects.entry import EntryKind
from layerfs.present.entries import entry_data
from layerfs.present.history import Names, commit_header
from layerfs.present.layers import covered_lines
from layerfs.present.names import show_line, show_path
from layerfs.present.objects import commit_data, layer_data
from layerfs.present.patch import present_names, present_patch, present_stat


class PatchStyle(Enum):
    """How the changes of a commit are shown."""

    PATCH = "patch"
    STAT = "stat"
    NAMES = "names"
    NONE = "none"


def present_state(state: State, names: Names, style: PatchStyle, columns: int) -> Reply:
    """Answer ``show REV``."""
    head = b"".join(_layer_lines(state.layers)) + commit_header(state.oid, state.commit, names)
    head += b"".join(_note_lines(state))
    if style is PatchStyle.STAT:
        changes = present_stat(state.diffs, columns)
    elif style is PatchStyle.NAMES:
        changes = present_names(state.changes)
    else:
        changes = present_patch(state.diffs if style is PatchStyle.PATCH else ())
    return Reply(
        data={
            "commit": to_hex(state.oid),
            "names": list(names.get(state.oid, ())),
            **commit_data(state.commit),
            "layers": [{"id": to_hex(row.oid), **layer_data(row.layer)} for row in state.layers],
            **changes.data,
        },
        text=_after(head, changes.text),
        notes=("a first commit holds everything; --patch or --stat shows it",)
        if state.is_first and style is not PatchStyle.NONE
        else (),
    )


def _after(head: bytes, body: bytes | Iterator[bytes] | object) -> Iterator[bytes]:
    """Yield the head, and the body behind a blank line if there is one."""
    yield head
    pieces: Iterator[bytes] = iter((body,)) if isinstance(body, bytes) else iter(body)  # type: ignore[call-overload]
    first = next((piece for piece in pieces if piece), None)
    if first is not None:
        yield from chain((b"\n", first), pieces)


def _layer_lines(layers: tuple[StackedLayer, ...]) -> Iterator[bytes]:
    for row in layers:
        layer = row.layer
        origin = f" of {layer.branch}" if layer.branch else ""
        yield encode_text(f"layer L{layer.number} {short(row.oid)}\n")
        yield encode_text(f"Published: {readable_time(layer.time_ns, 0)}, {layer.how}{origin}\n")
        yield b"By:        " + show_line(layer.author) + b"\n"
        if layer.message and layer.message.split("\n", 1)[0]:
            yield b"Message:   " + show_line(layer.message.split("\n", 1)[0]) + b"\n"
        for check in layer.checks:
            yield b"Check:     " + show_line(f"{check.command}  [exit {check.exit_code}]") + b"\n"
        yield from covered_lines(row)
        yield b"\n"


def _note_lines(state: State) -> Iterator[bytes]:
    commit = state.commit
    if commit.reads or commit.renames or commit.notes:
        yield b"\n"
    for read in commit.reads:
        yield b"    relied on " + show_path(read.path or b".") + (b"" if read.seen else b" (absent)") + b"\n"
    for old, new in commit.renames:
        yield b"    renamed " + show_path(old) + b" to " + show_path(new) + b"\n"
    for path, note in commit.notes:
        yield b"    noted " + show_path(path) + b": " + show_line(note) + b"\n"


def present_place(place: ShownPlace, with_content: bool) -> Reply:
    """Answer ``show REV:PATH``: the content as it is, or the names of a directory; the document holds it if asked."""
    data: dict[str, object] = {"path": place.path, "entry": entry_data(place.entry)}
    if place.entry.kind is EntryKind.DIR:
        rows = [name + b"/" if entry.kind is EntryKind.DIR else name for name, entry in place.names]
        data["names"] = [{"name": name, "kind": entry.kind.name.lower()} for name, entry in place.names]
        return Reply(
            data, b"".join(show_path(row) + b"\n" for row in rows), z=b"".join(row + b"\0" for row in rows)
        )
    if with_content:
        data["content"] = b"".join(place.content)
    return Reply(data, place.content)

"""How conflicts and notes of a merge are shown, the same for every command that merges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from layerfs.errors import Conflicted, quote
from layerfs.merge.conflicts import Conflict, Note
from layerfs.merge.textmerge import Region
from layerfs.present.entries import entry_data
from layerfs.present.names import show_path

if TYPE_CHECKING:
    from layerfs.merge.conflicts import Conflict, Note

NOTES_SHOWN = 20


def conflict_lines(conflicts: Iterable[Conflict]) -> Iterable[bytes]:
    """Yield one line per conflict: its kind, its path, and which lines meet."""
    for conflict in conflicts:
        line = b"conflict (" + str(conflict.kind).encode() + b"): " + show_path(conflict.path or b".")
        if conflict.hunks:
            line += b" at line " + b", ".join(b"%d" % (hunk.ours_start + 1) for hunk in conflict.hunks)
        if conflict.detail:
            line += b" - " + conflict.detail.encode("utf-8", "surrogateescape")
        yield line + b"\n"


def conflict_data(conflicts: Iterable[Conflict]) -> list[Mapping[str, Any]]:
    """Return conflicts for a document; line numbers count from 1."""
    return [
        {
            "path": conflict.path,
            "kind": str(conflict.kind),
            "base": entry_data(conflict.base),
            "ours": entry_data(conflict.ours),
            "theirs": entry_data(conflict.theirs),
            "hunks": [_hunk_data(hunk) for hunk in conflict.hunks],
            "detail": conflict.detail,
        }
        for conflict in conflicts
    ]


def _hunk_data(hunk: Region) -> dict[str, Any]:
    return {
        "base_start": hunk.base_start + 1,
        "base_lines": hunk.base_end - hunk.base_start,
        "ours_start": hunk.ours_start + 1,
        "ours_lines": hunk.ours_end - hunk.ours_start,
        "theirs_start": hunk.theirs_start + 1,
        "theirs_lines": hunk.theirs_end - hunk.theirs_start,
    }


def conflict_errors(conflicts: Sequence[Conflict], hint: str) -> tuple[Mapping[str, Any], ...]:
    """Return the one error that says the answer is no, and what to do about it."""
    first = conflicts[0]
    count = f"{len(conflicts)} conflicts" if len(conflicts) > 1 else "a conflict"
    message = f"{count}, the first at {quote(first.path)} ({first.kind})"
    return ({"code": Conflicted.slug, "message": message, "hint": hint},)


def note_lines(notes: Sequence[Note]) -> tuple[str, ...]:
    """Return what the merge decided by rule, as lines for stderr."""
    lines = [f"layerfs: note ({note.kind}): {quote(note.path)}: {note.text}" for note in notes[:NOTES_SHOWN]]
    if len(notes) > NOTES_SHOWN:
        lines.append(f"layerfs: and {len(notes) - NOTES_SHOWN} more notes; --json lists all")
    return tuple(lines)


def note_data(notes: Iterable[Note]) -> list[Mapping[str, Any]]:
    """Return notes for a document."""
    return [
        {
            "path": note.path,
            "kind": str(note.kind),
            "text": note.text,
            "ours": entry_data(note.ours),
            "theirs": entry_data(note.theirs),
        }
        for note in notes
    ]

"""How ``merge`` and ``publish`` report: the commit or layer that came of it, or the conflicts that prevented it."""

from __future__ import annotations

from layerfs.cli.output import Reply
from layerfs.cli.quantities import counted
from layerfs.errors import EXIT_NO
from layerfs.history.combine import Combined
from layerfs.history.merging import Outcome
from layerfs.history.publish import Published
from layerfs.ids import short, to_hex
from layerfs.present.conflicts import conflict_data, conflict_errors, conflict_lines, note_data, note_lines
from layerfs.present.names import path_data, show_path

PATHS_SHOWN = 50
_HOW = {Outcome.FAST_FORWARD: "ff", Outcome.MERGED: "merge"}


def present_merge(done: Combined, theirs: str, here: bool) -> Reply:
    """Answer ``merge``; ``theirs`` is how the other side was called, ``here`` whether the caller works on the branch."""
    data = {
        "how": _HOW.get(done.outcome),
        "branch": done.branch,
        "before": to_hex(done.before),
        "commit": None if done.commit is None else to_hex(done.commit),
        "conflicts": conflict_data(done.conflicts),
        "notes": note_data(done.notes),
    }
    notes = note_lines(done.notes)
    if done.outcome is Outcome.CONFLICT:
        text = [*conflict_lines(done.conflicts), f"nothing was merged into {done.branch}\n".encode()]
        hint = _decide(done.branch, theirs)
        errors = conflict_errors(done.conflicts, hint)
        return Reply(data, text, "conflict", EXIT_NO, notes=(*notes, f"hint: {hint}"), errors=errors)
    assert done.commit is not None
    if done.outcome is Outcome.UP_TO_DATE:
        return Reply(data, b"already up to date\n", "up-to-date", notes=notes)
    later = ("the files here stay as they are until 'layerfs update'",) if here else ()
    how = "fast-forward" if done.outcome is Outcome.FAST_FORWARD else "merged"
    return Reply(data, f"[{done.branch} {short(done.commit)}] {how}\n".encode(), notes=(*notes, *later))


def _decide(branch: str, theirs: str) -> str:
    return f"in a workspace on {branch}, 'layerfs update {theirs} --mark' lets you decide it in the files"


def present_publish(done: Published) -> Reply:
    """Answer ``publish``; an overwrite lists every layer it covers and the first paths."""
    data = {
        "branch": done.branch,
        "mode": done.mode,
        "before_layer": done.before,
        "layer": None if done.layer is None else done.layer.number,
        "layer_id": None if done.layer_id is None else to_hex(done.layer_id),
        "commit": None if done.layer is None else to_hex(done.layer.commit),
        "how": None if done.layer is None else done.layer.how,
        "covered_layers": list(done.covered_layers),
        "covered_paths": path_data(done.covered_paths),
        "conflicts": conflict_data(done.conflicts),
        "notes": note_data(done.notes),
    }
    notes = note_lines(done.notes)
    if done.conflicts:
        text = [
            *conflict_lines(done.conflicts),
            f"nothing was published; main stays at L{done.before}\n".encode(),
        ]
        hint = _decide(done.branch, "main")
        errors = conflict_errors(done.conflicts, hint)
        return Reply(data, text, "conflict", EXIT_NO, notes=(*notes, f"hint: {hint}"), errors=errors)
    if done.layer is None:
        return Reply(data, f"main has all of {done.branch} already\n".encode(), "up-to-date", notes=notes)
    lines = [
        f"published {done.branch} as L{done.layer.number} ({short(done.layer.commit)}, {done.layer.how})\n".encode()
    ]
    if done.covered_layers:
        layers = ", ".join(f"L{number}" for number in reversed(done.covered_layers))
        lines.append(f"covered {layers}: {counted(len(done.covered_paths), 'path')}\n".encode())
        lines += [b"\t" + show_path(path or b".") + b"\n" for path in done.covered_paths[:PATHS_SHOWN]]
        if len(done.covered_paths) > PATHS_SHOWN:
            rest = counted(len(done.covered_paths) - PATHS_SHOWN, "more path")
            lines.append(f"\t… and {rest}; 'layerfs layers --covered' lists all\n".encode())
    return Reply(data, lines, notes=notes)

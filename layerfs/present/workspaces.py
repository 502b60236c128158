"""How workspaces are shown: attached, detached, listed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from layerfs.cli.output import Reply
from layerfs.cli.quantities import counted
from layerfs.errors import EXIT_NO, EXIT_REFUSED
from layerfs.ids import CommitId, short, to_hex
from layerfs.present.names import show_path
from layerfs.present.problems import exit_code, problem_data, problem_notes
from layerfs.present.work import present_commit
from layerfs.store.workspacerecords import WorkspaceRecord
from layerfs.workspace.attach import Attached
from layerfs.workspace.detach import Detached
from layerfs.workspace.layercache import Stack
from layerfs.workspace.listing import Listed


def record_data(record: WorkspaceRecord) -> dict[str, Any]:
    """Return a workspace record for a document."""
    return {
        "name": record.name,
        "branch": record.branch or None,
        "engine": record.engine.value,
        "path": record.path or None,
        "last": to_hex(record.last),
        "lower": to_hex(record.lower),
        "created_ns": record.created_ns,
        "layers": list(record.layers),
    }


def present_attached(done: Attached) -> Reply:
    """Answer ``mount``: the path on stdout, for scripts; everything else on stderr."""
    record = done.record
    notes = [*done.notes, *problem_notes(done.problems, "restored")]
    where = f"on branch '{record.branch}'" if record.branch else "detached (commit --as NAME saves its work)"
    notes.append(f"layerfs: workspace '{record.name}', engine {record.engine.value}, {where}")
    data: Mapping[str, Any] = {
        **record_data(record),
        "healed": done.healed,
        "problems": problem_data(done.problems),
    }
    return Reply(data, record.path + b"\n", exit_code=exit_code(done.problems), notes=tuple(notes))


def present_detached(done: Detached) -> Reply:
    """Answer ``unmount`` and ``workspace remove``."""
    data: dict[str, Any] = {
        "workspace": done.name,
        "path": done.path or None,
        "kept": done.kept,
        "left": done.left,
        "uncommitted": done.uncommitted,
        "ended": [{"pid": holder.pid, "command": holder.command} for holder in done.ended],
        "committed": None,
    }
    ended = tuple(f"layerfs: ended pid {holder.pid} ({holder.command})" for holder in done.ended)
    text = b""
    if done.committed is not None:
        commit = present_commit(done.committed)
        data["committed"] = commit.data
        text = commit.text if isinstance(commit.text, bytes) else b"".join(commit.text)
        if done.committed.conflicts:
            return Reply(data, text, "conflict", EXIT_NO, notes=(*ended, *commit.notes), errors=commit.errors)
    if done.uncommitted:
        note = (
            f"layerfs: {counted(done.uncommitted, 'uncommitted change')} of '{done.name}' are kept; "
            f"'layerfs mount {done.name}' brings them back"
        )
        return Reply(data, text, "kept", notes=(*ended, note))
    if done.kept:
        note = f"layerfs: '{done.name}' was written to at the last moment; 'layerfs mount {done.name}' brings it back"
        return Reply(data, text, "kept", EXIT_REFUSED, notes=(note,))
    if done.left:
        note = f"layerfs: files that no capture includes were left in {os.fsdecode(done.path)}"
        return Reply(data, text + f"removed workspace {done.name}\n".encode(), notes=(*ended, note))
    return Reply(data, text + f"removed workspace {done.name}\n".encode(), notes=ended)


def present_warm(commit: CommitId, stack: Stack) -> Reply:
    """Answer ``warm``."""
    data = {"commit": to_hex(commit), "layers": list(stack.names)}
    return Reply(data, f"{short(commit)} is warm: {counted(len(stack.names), 'cached layer')}\n".encode())


def present_workspaces(listed: Sequence[Listed]) -> Reply:
    """Answer ``workspace list``."""
    rows = [
        (
            one.record.name,
            one.record.engine.value,
            one.state.value,
            one.record.branch or "(detached)",
            short(one.record.last),
        )
        for one in listed
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(5)]
    text = b"".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).encode()
        + b"  "
        + show_path(one.record.path or b"-")
        + b"\n"
        for row, one in zip(rows, listed, strict=True)
    )
    return Reply({"workspaces": [listed_data(one) for one in listed]}, text)


def listed_data(one: Listed) -> dict[str, Any]:
    """Return a listed workspace for a document."""
    return {**record_data(one.record), "state": one.state.value, "upper": one.upper}


def present_workspace(one: Listed) -> Reply:
    """Answer ``workspace show``."""
    data = listed_data(one)
    shown = {
        **data,
        "path": os.fsdecode(one.record.path) or "-",
        "upper": os.fsdecode(one.upper or b"") or "-",
    }
    shown["layers"] = " ".join(one.record.layers) or "-"
    lines = [f"{key}: {value if value is not None else '-'}\n" for key, value in shown.items()]
    return Reply(data, "".join(lines).encode("utf-8", "surrogateescape"))

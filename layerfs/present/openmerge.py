"""How an open merge is shown: what is still undecided."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from layerfs.cli.output import Reply
from layerfs.errors import EXIT_NO, EXIT_OK
from layerfs.ids import short, to_hex
from layerfs.merge.conflicts import ConflictKind
from layerfs.present.names import show_path
from layerfs.store.workspacerecords import OpenConflict, WorkspaceRecord

_MERGED_IN_PLACE = (ConflictKind.BOTH_MODIFIED, ConflictKind.BOTH_ADDED)


def present_open(record: WorkspaceRecord, undecided: Sequence[OpenConflict]) -> Reply:
    """Answer ``conflicts`` and ``resolve``."""
    data = {
        "workspace": record.name,
        "merging": None if record.merging is None else to_hex(record.merging),
        "undecided": [
            {"path": one.path, "kind": one.kind, "beside": one.beside or None, "hint": _hint(record, one)}
            for one in undecided
        ],
    }
    if record.merging is None:
        return Reply(data, b"no merge is open\n")
    lines = [
        one.kind.encode()
        + b"\t"
        + show_path(one.path)
        + (b"\t(theirs: " + show_path(one.beside) + b")" if one.beside else b"")
        + b"\n"
        for one in undecided
    ]
    if not lines:
        lines = [f"all decided: 'layerfs commit' concludes the merge of {short(record.merging)}\n".encode()]
    return Reply(
        data,
        lines,
        exit_code=EXIT_NO if undecided else EXIT_OK,
        z=[one.kind.encode() + b" " + one.path + b"\0" for one in undecided],
    )


def _hint(record: WorkspaceRecord, one: OpenConflict) -> str:
    """Say how a path is decided, from wherever the caller stands: a text that is merged in place also by editing it."""
    name = shlex.quote(os.fsdecode(os.path.join(record.path, one.path)))
    command = f"'layerfs resolve {name} --ours' (or --theirs, --base, --delete) decides it"
    in_place = one.kind in _MERGED_IN_PLACE and not one.beside
    return f"edit the file until no conflict marker is left, or {command}" if in_place else command

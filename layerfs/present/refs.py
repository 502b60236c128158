"""How pointers are shown."""

from __future__ import annotations

from collections.abc import Sequence

from layerfs.cli.output import Reply
from layerfs.errors import EXIT_NO, EXIT_OK
from layerfs.ids import CommitId, to_hex


def present_refs(refs: Sequence[tuple[str, CommitId]], wanted: Sequence[str] | None) -> Reply:
    """Answer ``show-ref``: all pointers, or those whose full name is one of ``wanted`` or ends in it."""
    shown = [(name, to_hex(commit)) for name, commit in refs if not wanted or _is_wanted(name, wanted)]
    lines = [f"{commit} {name}".encode() for name, commit in shown]
    return Reply(
        data={"refs": [{"name": name, "commit": commit} for name, commit in shown]},
        text=b"".join(line + b"\n" for line in lines),
        z=b"".join(line + b"\0" for line in lines),
        exit_code=EXIT_OK if shown or not wanted else EXIT_NO,
    )


def present_ref_updates(moves: Sequence[tuple[str, CommitId | None, CommitId | None]]) -> Reply:
    """Answer ``update-ref``: nothing for scripts to read; the document lists what changed."""
    data = [
        {
            "name": ref,
            "old": None if old is None else to_hex(old),
            "new": None if new is None else to_hex(new),
        }
        for ref, old, new in moves
    ]
    return Reply({"refs": data}, status="ok" if data else "up-to-date")


def _is_wanted(name: str, wanted: Sequence[str]) -> bool:
    return any(name == word or name.endswith(f"/{word}") for word in wanted)

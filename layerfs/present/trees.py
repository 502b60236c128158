"""How a directory written as a root object is answered, with what could not be captured."""

from __future__ import annotations

from collections.abc import Sequence

from layerfs.capture import Problem
from layerfs.errors import EXIT_INCOMPLETE, EXIT_OK, quote
from layerfs.ids import RootId, to_hex
from layerfs.output import Reply


def present_written(
    root: RootId, files: int, size: int, problems: Sequence[Problem], mounts: Sequence[bytes]
) -> Reply:
    """Answer ``write-tree``: the root's id; notes and exit code 3 for what is missing from it."""
    notes = [f"not captured: {quote(problem.path or b'.')}: {problem.why}" for problem in problems]
    notes += [f"not entered: {quote(mount)} is another file system" for mount in mounts]
    return Reply(
        data={
            "root": to_hex(root),
            "files": files,
            "bytes": size,
            "problems": [{"path": problem.path, "why": problem.why} for problem in problems],
            "mounts": list(mounts),
        },
        text=to_hex(root).encode() + b"\n",
        notes=tuple(notes),
        exit_code=EXIT_INCOMPLETE if problems else EXIT_OK,
    )

"""How a directory written as a root object is answered, with what could not be captured."""

from __future__ import annotations

from layerfs.cli.output import Reply
from layerfs.ids import to_hex
from layerfs.plumbing.objectwriting import WrittenTree
from layerfs.present.names import path_data
from layerfs.present.problems import mount_notes, with_problems


def present_written(written: WrittenTree) -> Reply:
    """Answer ``write-tree``: the root's id; notes and exit code 3 for what is missing from it."""
    root = to_hex(written.root)
    reply = Reply(
        data={
            "root": root,
            "files": written.files,
            "bytes": written.size,
            "mounts": path_data(written.mounts),
        },
        text=root.encode() + b"\n",
        notes=mount_notes(written.mounts),
    )
    return with_problems(reply, written.problems, "captured")

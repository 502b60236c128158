"""How ``run`` and ``shell`` report: nothing on stdout but what the command wrote, the rest on stderr."""

from __future__ import annotations

from layerfs.cli.output import Reply
from layerfs.ids import short
from layerfs.present.conflicts import conflict_errors, conflict_lines
from layerfs.present.work import COMMIT_HINT, commit_result
from layerfs.workspace.runs import Ran


def present_run(ran: Ran) -> Reply:
    """Answer ``run``: the exit code is the command's own."""
    notes = list(ran.notes)
    done = ran.committed
    if done is not None and done.commit is not None:
        notes.append(f"layerfs: committed to {done.branch} as {short(done.commit)}")
        if done.joined and done.head is not None:
            notes.append(f"layerfs: joined with the work of others as {short(done.head)}")
    elif done is not None and done.conflicts:
        notes.append(f"layerfs: branch {done.branch} has moved and conflicts; nothing was committed")
        notes += [
            line.decode("utf-8", "backslashreplace").rstrip("\n") for line in conflict_lines(done.conflicts)
        ]
    data = {
        "exit_code": ran.code,
        "workspace": ran.workspace,
        "kept": ran.kept,
        "changed": ran.changed,
        "committed": None if done is None else commit_result(done),
    }
    if done is not None and done.conflicts:
        errors = conflict_errors(done.conflicts, COMMIT_HINT)
        return Reply(data, b"", "conflict", ran.code, notes=tuple(notes), errors=errors)
    return Reply(data, exit_code=ran.code, notes=tuple(notes))

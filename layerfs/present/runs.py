"""How ``run`` and ``shell`` report: nothing on stdout but what the command wrote, the rest on stderr."""

from __future__ import annotations

from layerfs.ids import short, to_hex
from layerfs.output import Reply
from layerfs.present.conflicts import conflict_data, conflict_lines
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
        "branch": None if done is None else done.branch,
        "commit": None if done is None or done.commit is None else to_hex(done.commit),
        "head": None if done is None or done.head is None else to_hex(done.head),
        "conflicts": [] if done is None else conflict_data(done.conflicts),
    }
    return Reply(data, exit_code=ran.code, notes=tuple(notes))

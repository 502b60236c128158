"""How work in a workspace is shown: status, commit, update, restore."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from layerfs.cli.output import Reply
from layerfs.cli.quantities import counted, readable_size
from layerfs.errors import EXIT_NO
from layerfs.ids import short, to_hex
from layerfs.objects.entry import EntryKind
from layerfs.objects.environment import Change
from layerfs.present.conflicts import conflict_data, conflict_errors, conflict_lines, note_data, note_lines
from layerfs.present.entries import change_data, status_letter
from layerfs.present.names import path_data, show_path
from layerfs.present.problems import exit_code, mount_notes, problem_data, problem_notes

if TYPE_CHECKING:
    from layerfs.workspace.advance import Advanced
    from layerfs.workspace.recording import Committed
    from layerfs.workspace.status import WorkspaceStatus

SHOWN = 50


def change_lines(changes: Sequence[Change]) -> Iterable[bytes]:
    """Yield one line per change: its letter and its path."""
    for change in changes:
        yield status_letter(change).encode() + b"\t" + show_path(change.path or b".") + b"\n"


def collapsed_lines(changes: Sequence[Change]) -> Iterable[bytes]:
    """Yield one line per change, but only one for a directory that came or went whole, with how much it holds."""
    at = 0
    while at < len(changes):
        change = changes[at]
        below = at + 1
        whole = change.new if change.old is None else change.old if change.new is None else None
        if whole is not None and whole.kind is EntryKind.DIR:
            prefix = change.path + b"/"
            while below < len(changes) and changes[below].path.startswith(prefix):
                below += 1
        line = status_letter(change).encode() + b"\t" + show_path(change.path or b".")
        if below > at + 1:
            line += f"/ ({counted(below - at - 1, 'entry', 'entries')})".encode()
        yield line + b"\n"
        at = below


def present_status(status: WorkspaceStatus, exit_with_changes: bool, every: bool) -> Reply:
    """Answer ``status``: where the workspace is, how far its branch is ahead, what changed."""
    record = status.record
    where = f"on branch {record.branch}" if record.branch else "on no branch (detached)"
    lines = [f"workspace {record.name} {where}, at {short(record.last)}\n".encode()]
    if status.stale:
        lines.append(
            f"its mount is gone: 'layerfs mount {record.name}' attaches it again, with all its work\n".encode()
        )
    if record.branch and status.head is None:
        lines.append(
            f"branch {record.branch} is gone: 'layerfs commit --as NAME' saves the work elsewhere\n".encode()
        )
    if record.merging is not None:
        theirs = short(record.merging)
        lines.append(
            f"in the middle of a merge with {theirs}: 'layerfs conflicts' shows what is left to decide,"
            " 'layerfs commit' concludes it\n".encode()
        )
    if status.ahead:
        lines.append(
            f"the branch is {counted(status.ahead, 'commit')} ahead: 'layerfs update' brings them in\n".encode()
        )
    shown = change_lines(status.changes) if every else collapsed_lines(status.changes)
    lines += shown if status.changes else [b"nothing changed since the last commit\n"]
    data = {
        "workspace": record.name,
        "branch": record.branch or None,
        "engine": record.engine.value,
        "path": record.path,
        "last": to_hex(record.last),
        "head": None if status.head is None else to_hex(status.head),
        "ahead": status.ahead,
        "stale": status.stale,
        "merging": None if record.merging is None else to_hex(record.merging),
        "changes": [change_data(change) for change in status.changes],
        "problems": problem_data(status.problems),
        "mounts": path_data(status.mounts),
    }
    return Reply(
        data,
        lines,
        exit_code=EXIT_NO if exit_with_changes and status.changes else 0,
        z=[status_letter(change).encode() + b" " + change.path + b"\0" for change in status.changes],
        notes=(*mount_notes(status.mounts), *problem_notes(status.problems, "readable")),
    )


def commit_result(done: Committed) -> dict[str, Any]:
    """Return what became of a commit for a document."""
    return {
        "workspace": done.workspace,
        "branch": done.branch,
        "before": to_hex(done.before),
        "commit": None if done.commit is None else to_hex(done.commit),
        "head": None if done.head is None else to_hex(done.head),
        "joined": done.joined,
        "stored_bytes": done.stored_bytes,
        "conflicts": conflict_data(done.conflicts),
        "notes": note_data(done.notes),
        "problems": problem_data(done.problems),
        "mounts": path_data(done.mounts),
    }


COMMIT_HINT = (
    "'layerfs update --mark' lets you decide it here; 'layerfs commit --as NAME' saves to a new branch"
)


def present_commit(done: Committed) -> Reply:
    """Answer ``commit``: both ids when the work was joined with others', the conflicts when it could not be."""
    data = commit_result(done)
    notes = (*note_lines(done.notes), *mount_notes(done.mounts), *problem_notes(done.problems, "captured"))
    if done.conflicts:
        text = [
            f"branch {done.branch} has moved and conflicts with this workspace; nothing was committed\n".encode(),
            *conflict_lines(done.conflicts),
        ]
        errors = conflict_errors(done.conflicts, COMMIT_HINT)
        return Reply(data, text, "conflict", EXIT_NO, notes=(*notes, f"hint: {COMMIT_HINT}"), errors=errors)
    if done.commit is None:
        return Reply(data, b"nothing to commit\n", "up-to-date", exit_code(done.problems), notes=notes)
    line = f"[{done.branch} {short(done.commit)}] {readable_size(done.stored_bytes)} stored\n"
    if done.joined and done.head is not None:
        line += f"joined with the work of others as {short(done.head)}\n"
    return Reply(data, line.encode(), exit_code=exit_code(done.problems), notes=notes)


def shown_lines(changes: Sequence[Change]) -> Iterable[bytes]:
    """Yield the first ``SHOWN`` collapsed lines, and how many more there are."""
    lines = list(collapsed_lines(changes))
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        yield f"… and {counted(len(lines) - SHOWN, 'more line')}; --json lists all\n".encode()


def present_advance(done: Advanced, verb: str, theirs: str = "", ahead: int = 0) -> Reply:
    """Answer ``update`` and ``restore``: what changed; ``theirs`` is how the state that came in was called.

    ``ahead`` counts what the branch still has and the workspace has not, where nothing came in.
    """
    data = {
        "workspace": done.workspace,
        "before": to_hex(done.before),
        "after": to_hex(done.after),
        "changes": [change_data(change) for change in done.changes],
        "conflicts": conflict_data(done.conflicts),
        "notes": note_data(done.notes),
        "problems": problem_data(done.problems),
    }
    notes = (*note_lines(done.notes), *problem_notes(done.problems, "restored"))
    if done.marked or done.conflicts:
        if done.marked:
            head = "the merge is open; decide these, then commit"
            hint = "'layerfs conflicts' lists what is undecided"
        else:
            head = "the states conflict; the workspace is as it was"
            hint = f"'layerfs update {theirs} --mark' lets you decide it in the files"
        text = [f"{head}\n".encode(), *conflict_lines(done.conflicts)]
        errors = conflict_errors(done.conflicts, hint)
        return Reply(data, text, "conflict", EXIT_NO, notes=(*notes, f"hint: {hint}"), errors=errors)
    if not done.changes and done.before == done.after:
        if ahead:
            what = counted(ahead, "commit")
            notes = (*notes, f"the branch is {what} ahead of the workspace: 'layerfs update' brings them in")
        return Reply(data, b"already up to date\n", "up-to-date", notes=notes)
    head = f"{verb} workspace {done.workspace} at {short(done.after)}: {counted(len(done.changes), 'path')} changed\n"
    return Reply(
        data,
        [head.encode(), *shown_lines(done.changes)],
        exit_code=exit_code(done.problems),
        notes=notes,
    )

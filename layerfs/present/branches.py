"""How branches, tags and the history of refs are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from layerfs.cli.output import Reply, encode_text
from layerfs.cli.quantities import counted, readable_time
from layerfs.history.branches import Branch, BranchMove, Forked
from layerfs.history.reflog import ReflogLine
from layerfs.history.tags import Tag, TagMove
from layerfs.ids import CommitId, short, to_hex
from layerfs.present.names import show_line

FEW = 10


def _hex(commit: CommitId | None) -> str | None:
    return None if commit is None else to_hex(commit)


def present_fork(forked: Forked) -> Reply:
    """Answer ``fork``: the new branches, and where they start."""
    start = forked.start
    if len(forked.names) <= FEW:
        made = ", ".join(forked.names)
    else:
        made = f"{counted(len(forked.names), 'branch', 'branches')}, {forked.names[0]} to {forked.names[-1]},"
    return Reply(
        data={"branches": list(forked.names), "from": start.text, "commit": to_hex(start.commit)},
        text=encode_text(f"forked {made} from {start.text} ({short(start.commit)})\n"),
    )


def present_branches(rows: Sequence[Branch], current: str | None) -> Reply:
    """Answer ``branch``: a line per branch; the one worked on here is marked."""
    width = max((len(row.name) for row in rows), default=0)
    lines = []
    for row in rows:
        mark = "*" if row.name == current else " "
        line = encode_text(f"{mark} {row.name.ljust(width)}  {short(row.head)}  ") + show_line(
            row.commit.subject
        )
        lines.append(line.rstrip() + b"\n")
    return Reply(
        data={
            "branches": [
                {
                    "name": row.name,
                    "commit": to_hex(row.head),
                    "subject": row.commit.subject,
                    "time_ns": row.commit.time_ns,
                    "workspaces": list(row.workspaces),
                    "current": row.name == current,
                }
                for row in rows
            ]
        },
        text=b"".join(lines),
    )


def _moves_data(moves: Iterable[BranchMove]) -> list[dict[str, object]]:
    return [
        {"name": move.name, "old": _hex(move.old), "new": _hex(move.new), "workspaces": list(move.workspaces)}
        for move in moves
    ]


def present_deleted(moves: Sequence[BranchMove]) -> Reply:
    """Answer ``branch -d``, with the way back."""
    lines = [
        f"deleted branch {move.name} (was {short(move.old)})\n" for move in moves if move.old is not None
    ]
    first = next((move for move in moves if move.old is not None), None)
    back = (
        f"to have it back: layerfs fork {first.name} --from {short(first.old)}" if first and first.old else ""
    )
    return Reply({"branches": _moves_data(moves)}, encode_text("".join(lines)), notes=(back,) if back else ())


def present_renamed(old: str, move: BranchMove) -> Reply:
    """Answer ``branch -m``."""
    return Reply(
        {"old_name": old, "branches": _moves_data([move])},
        encode_text(f"renamed branch {old} to {move.name}\n"),
    )


def present_reset(move: BranchMove) -> Reply:
    """Answer ``branch reset``."""
    assert move.old is not None and move.new is not None
    if move.old == move.new:
        text, status = f"branch {move.name} is at {short(move.new)} already\n", "up-to-date"
    else:
        text, status = f"branch {move.name} is now at {short(move.new)} (was {short(move.old)})\n", "ok"
    notes = tuple(
        f"workspace {name} keeps its files and its last commit: 'layerfs update' brings newer work in;"
        " if the branch was moved back, the workspace's next commit moves it forward again"
        for name in move.workspaces
        if move.old != move.new
    )
    return Reply({"branches": _moves_data([move])}, encode_text(text), status, notes=notes)


def present_tags(rows: Sequence[Tag]) -> Reply:
    """Answer ``tag``: a line per tag."""
    width = max((len(row.name) for row in rows), default=0)
    lines = [
        (
            encode_text(f"{row.name.ljust(width)}  {short(row.target)}  ") + show_line(row.commit.subject)
        ).rstrip()
        for row in rows
    ]
    return Reply(
        data={
            "tags": [
                {"name": row.name, "commit": to_hex(row.target), "subject": row.commit.subject}
                for row in rows
            ]
        },
        text=b"".join(line + b"\n" for line in lines),
    )


def present_tag_moves(moves: Sequence[TagMove]) -> Reply:
    """Answer making, moving or deleting tags."""
    changed = any(move.old != move.new for move in moves)
    return Reply(
        data={"tags": [{"name": move.name, "old": _hex(move.old), "new": _hex(move.new)} for move in moves]},
        text=encode_text("".join(_tag_line(move) for move in moves)),
        status="ok" if changed else "up-to-date",
    )


def _tag_line(move: TagMove) -> str:
    if move.new is None:
        return f"deleted tag {move.name} (was {short(move.old or b'')})\n"
    if move.old == move.new:
        return f"tag {move.name} is at {short(move.new)} already\n"
    was = f" (was {short(move.old)})" if move.old is not None else ""
    return f"tag {move.name} is now at {short(move.new)}{was}\n"


def present_reflog(rows: Iterable[ReflogLine]) -> Reply:
    """Answer ``reflog``: newest first, the commit, the name to use for it, when, who, why."""
    found = iter(rows)

    def line(row: ReflogLine) -> bytes:
        commit = "-" * 12 if row.new is None else short(row.new)
        head = f"{commit} {row.name}@{{{row.ago}}}  {readable_time(row.time_ns, 0)}  "
        return encode_text(head) + show_line(f"{row.why}  {row.actor}".rstrip()) + b"\n"

    return Reply(
        data={
            "moves": (
                {
                    "name": row.name,
                    "ago": row.ago,
                    "old": _hex(row.old),
                    "new": _hex(row.new),
                    "time_ns": row.time_ns,
                    "actor": row.actor,
                    "why": row.why,
                }
                for row in found
            )
        },
        text=(line(row) for row in found),
    )

"""How commits are shown: ``log`` and its short forms, lists of ids, and the header of one commit.

Owns the wording of a commit for people. Git's habits: the id, the names pointing at it, author, date, an indented
message; then what layerfs knows besides: which agent, session and tool, which command, and how that ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from layerfs.cli.output import Reply, encode_text
from layerfs.cli.quantities import readable_time
from layerfs.errors import EXIT_NO, EXIT_OK, quote
from layerfs.history.history import LoggedCommit
from layerfs.ids import CommitId, short, to_hex
from layerfs.objects.commits import Commit
from layerfs.present.names import show_line
from layerfs.present.objects import commit_data

Names = Mapping[CommitId, Sequence[str]]

_LABELS = (("agent", "Agent"), ("session", "Session"), ("workspace", "Workspace"))
_NANOS_PER_MS = 1_000_000


def present_bases(bases: Sequence[CommitId], every: bool) -> Reply:
    """Answer ``merge-base``: the ids; exit 1 if there is none."""
    shown = list(bases) if every else list(bases[:1])
    return Reply(
        data={"bases": [to_hex(base) for base in shown]},
        text="".join(f"{to_hex(base)}\n" for base in shown).encode(),
        exit_code=EXIT_OK if shown else EXIT_NO,
    )


def present_answer(name: str, yes: bool) -> Reply:
    """Answer a question by the exit code alone."""
    return Reply({name: yes}, exit_code=EXIT_OK if yes else EXIT_NO)


def present_rev_list(commits: Iterator[LoggedCommit], count: bool) -> Reply:
    """Answer ``rev-list``: ids, or how many there are."""
    if count:
        number = sum(1 for _ in commits)
        return Reply({"count": number}, b"%d\n" % number)
    return Reply(
        data={"commits": ({"commit": to_hex(logged.oid)} for logged in commits)},
        text=(to_hex(logged.oid).encode() + b"\n" for logged in commits),
        z=(to_hex(logged.oid).encode() + b"\0" for logged in commits),
    )


def present_log(
    commits: Iterable[LoggedCommit], names: Names, style: str, paths: Sequence[bytes] = ()
) -> Reply:
    """Answer ``log`` in one of its styles: ``full``, ``oneline`` or ``calls``; say so when no commit has the paths."""
    rows = iter(commits)
    notes: tuple[str, ...] = ()
    if paths:
        first = next(rows, None)
        rows = iter(()) if first is None else chain((first,), rows)
        notes = () if first else ("no commit changed " + ", ".join(map(quote, paths)),)
    return Reply(
        notes=notes,
        data={
            "commits": (
                {
                    "commit": to_hex(logged.oid),
                    "names": list(names.get(logged.oid, ())),
                    **commit_data(logged.commit),
                }
                for logged in rows
            )
        },
        text=_styled(rows, names, style),
    )


def _styled(rows: Iterator[LoggedCommit], names: Names, style: str) -> Iterator[bytes]:
    if style == "oneline":
        return (_oneline(oid, commit, names) for oid, commit in rows)
    if style == "calls":
        return (_call(oid, commit) for oid, commit in rows)
    return _separated(commit_header(oid, commit, names) for oid, commit in rows)


def _separated(blocks: Iterable[bytes]) -> Iterator[bytes]:
    first = True
    for block in blocks:
        yield block if first else b"\n" + block
        first = False


def decoration(oid: CommitId, names: Names) -> str:
    """Return `` (main, L2, fix-a)``, or nothing."""
    found = names.get(oid)
    return f" ({', '.join(found)})" if found else ""


def commit_header(oid: CommitId, commit: Commit, names: Names) -> bytes:
    """Return a commit as ``log`` shows it, the message indented."""
    lines = [f"commit {to_hex(oid)}{decoration(oid, names)}".encode()]
    if len(commit.parents) > 1:
        lines.append(b"Merge:     " + " ".join(short(parent) for parent in commit.parents).encode())
    lines.append(b"Author:    " + show_line(commit.author))
    lines.append(f"Date:      {readable_time(commit.time_ns, commit.tz_minutes)}".encode())
    lines += provenance_lines(commit)
    lines.append(b"")
    message = encode_text(commit.message).rstrip(b"\n") or b"(no message)"
    lines += [b"    " + show_line(os.fsdecode(line)) if line else b"" for line in message.split(b"\n")]
    return b"".join(line + b"\n" for line in lines)


def provenance_lines(commit: Commit) -> list[bytes]:
    """Return the lines that say which agent, tool call and command a commit came from."""
    about = dict(commit.provenance)
    lines = [f"{label}:".ljust(11).encode() + show_line(about[key]) for key, label in _LABELS if key in about]
    tool, call = about.get("tool"), about.get("call-id")
    if tool:
        lines.append(b"Tool:      " + show_line(f"{tool} ({call})" if call else tool))
    elif call:
        lines.append(b"Call:      " + show_line(call))
    if "command" in about:
        lines.append(b"Command:   " + show_line(about["command"]) + _ending(about).encode())
    if commit.is_join:
        lines.append(b"Join:      of concurrent commits")
    return lines


def _ending(about: Mapping[str, str]) -> str:
    parts = []
    if "exit-code" in about:
        parts.append(f"exit {about['exit-code']}")
    duration = about.get("duration-ns", "")
    if duration.isascii() and duration.isdigit():
        parts.append(readable_duration(int(duration)))
    return f"  [{', '.join(parts)}]" if parts else ""


def readable_duration(duration_ns: int) -> str:
    """Return a duration as ``340 ms`` or ``12.3 s``."""
    milliseconds = duration_ns / _NANOS_PER_MS
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _oneline(oid: CommitId, commit: Commit, names: Names) -> bytes:
    subject = show_line(commit.subject or "(no message)")
    return f"{short(oid)}{decoration(oid, names)} ".encode() + subject + b"\n"


def _call(oid: CommitId, commit: Commit) -> bytes:
    about = dict(commit.provenance)
    who = "/".join(about[key] for key in ("agent", "session") if key in about) or commit.author
    tool = " ".join(about[key] for key in ("tool", "call-id") if key in about) or "-"
    what = about.get("command") or commit.subject
    columns = (short(oid).encode(), readable_time(commit.time_ns, commit.tz_minutes).encode())
    text = show_line(f"{who}  {tool}  {what}")
    return b"  ".join((*columns, text)) + _ending(about).encode() + b"\n"

"""How blame is shown: a line per line for people, fields for scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from layerfs.cli.output import Reply, encode_text
from layerfs.cli.quantities import readable_time
from layerfs.history.annotate import Annotated, AnnotatedRange
from layerfs.ids import CommitId, short, to_hex
from layerfs.objects.commits import Commit
from layerfs.present.names import show_line, show_path

_ADDRESS = re.compile(r"\s*<[^<>]*>$")
_WIDEST = 28


def who(commit: Commit) -> str:
    """Return who a line is from in a few words: agent and tool call, else the author without an address."""
    about = dict(commit.provenance)
    parts = [about[key] for key in ("agent", "tool", "call-id") if key in about]
    return " ".join(parts) or _ADDRESS.sub("", commit.author) or commit.author


def present_annotations(found: Annotated, porcelain: bool) -> Reply:
    """Answer ``blame``."""
    return Reply(
        data={
            "path": found.path,
            "commit": to_hex(found.commit),
            "ranges": [_data(one) for one in found.ranges],
        },
        text=b"".join(_porcelain(found) if porcelain else _lines(found)),
    )


def _data(one: AnnotatedRange) -> dict[str, Any]:
    commit = one.commit
    return {
        "commit": to_hex(one.range.commit),
        "origin_path": one.range.path,
        "origin_line": one.range.origin_line,
        "final_line": one.range.final_line,
        "lines": one.range.lines,
        "author": commit.author,
        "time_ns": commit.time_ns,
        "tz_minutes": commit.tz_minutes,
        "subject": commit.subject,
        "provenance": dict(commit.provenance),
        "text": [{"line": line} for line in one.lines],
    }


def _lines(found: Annotated) -> Iterator[bytes]:
    names = {one.range.commit: show_line(who(one.commit)) for one in found.ranges}
    width = min(_WIDEST, max((len(name.decode("utf-8", "replace")) for name in names.values()), default=0))
    last = max((one.range.final_line + len(one.lines) for one in found.ranges), default=1)
    digits = len(str(last))
    moved = any(one.range.path != found.path for one in found.ranges)
    for one in found.ranges:
        commit = one.commit
        text = names[one.range.commit].decode("utf-8", "surrogateescape")
        name = text if len(text) <= width else text[: width - 3] + "..."
        head = short(one.range.commit).encode() + (b" " + show_path(one.range.path) if moved else b"")
        middle = f" ({name.ljust(width)} {readable_time(commit.time_ns, commit.tz_minutes)} "
        prefix = head + encode_text(middle)
        if not one.lines:
            yield prefix.rstrip() + b") (the whole file; it is not text)\n"
        for number, line in enumerate(one.lines, one.range.final_line):
            yield prefix + f"{number:{digits}}) ".encode() + line + (b"" if line.endswith(b"\n") else b"\n")


def _porcelain(found: Annotated) -> Iterator[bytes]:
    seen: set[CommitId] = set()
    for one in found.ranges:
        oid, path, origin, final, count = one.range
        for number, line in enumerate(one.lines or (b"",)):
            head = f"{to_hex(oid)} {origin + number} {final + number}" + ("" if number else f" {count}")
            yield head.encode() + b"\n"
            if not number:
                yield from () if oid in seen else _fields(one.commit)
                yield b"filename " + show_path(path) + b"\n"
                seen.add(oid)
            yield b"\t" + line + (b"" if line.endswith(b"\n") else b"\n")


def _fields(commit: Commit) -> Iterator[bytes]:
    yield b"author " + show_line(commit.author) + b"\n"
    yield f"time-ns {commit.time_ns}\ntz-minutes {commit.tz_minutes}\n".encode()
    yield b"summary " + show_line(commit.subject) + b"\n"
    for key, value in commit.provenance:
        yield b"about " + show_line(f"{key} {value}") + b"\n"

"""Patches: a difference between two states as git would write it.

Pure: entries and texts in, bytes out. Unified hunks with three lines of context; extended header lines for what git keeps
(modes, new and deleted files, links) and, after those, for what it does not: owner, extended attributes, link group, and
times where the content is the same. A change of kind is a deletion and an addition, as in git. ``git apply`` and
``patch`` take the parts that git knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from layerfs.cli.output import Reply
from layerfs.cli.quantities import counted
from layerfs.errors import EXIT_NO, EXIT_OK
from layerfs.history.diffing import FileDiff, Lines
from layerfs.ids import short
from layerfs.merge.linediff import Hunk
from layerfs.objects.entry import Entry, EntryKind, device_number
from layerfs.objects.environment import Change
from layerfs.present.entries import change_data, mode_text, status_letter, time_text
from layerfs.present.names import show_path

CONTEXT = 3
NO_NEWLINE = b"\\ No newline at end of file\n"
_GRAPH_WIDTH = 40


def format_diff(diff: FileDiff) -> bytes:
    """Return the patch of one path."""
    path, old, new = diff.path, diff.old, diff.new
    if old is not None and new is not None and old.kind is not new.kind:
        gone, come = _halves(diff)
        return format_diff(gone) + format_diff(come)
    out = [b"diff --git ", show_path(path, b"a/"), b" ", show_path(path, b"b/"), b"\n"]
    out += [line + b"\n" for line in _header(old, new)]
    if diff.binary:
        out.append(
            b"Binary files " + _side(old, path, b"a/") + b" and " + _side(new, path, b"b/") + b" differ"
        )
        out.append(f" ({_size(old)} -> {_size(new)} bytes)\n".encode())
    elif diff.hunks:
        assert diff.old_lines is not None and diff.new_lines is not None
        out += [b"--- ", _side(old, path, b"a/"), _after_name(old, path)]
        out += [b"+++ ", _side(new, path, b"b/"), _after_name(new, path)]
        out += format_hunks(diff.old_lines, diff.new_lines, diff.hunks)
    return b"".join(out)


def _halves(diff: FileDiff) -> tuple[FileDiff, FileDiff]:
    """Cut a change of kind into what goes and what comes."""
    old_lines, new_lines = diff.old_lines, diff.new_lines
    gone = FileDiff(diff.path, diff.old, None, diff.binary and _is_file(diff.old))
    come = FileDiff(diff.path, None, diff.new, diff.binary and _is_file(diff.new))
    if old_lines is not None and new_lines is not None:
        gone = gone._replace(old_lines=old_lines, new_lines=[], hunks=_whole(len(old_lines), 0))
        come = come._replace(old_lines=[], new_lines=new_lines, hunks=_whole(0, len(new_lines)))
    return gone, come


def _is_file(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is EntryKind.FILE and bool(entry.size)


def _whole(old: int, new: int) -> tuple[Hunk, ...]:
    return (Hunk(0, old, 0, new),) if old or new else ()


def _side(entry: Entry | None, path: bytes, prefix: bytes) -> bytes:
    return b"/dev/null" if entry is None else show_path(path, prefix)


def _after_name(entry: Entry | None, path: bytes) -> bytes:
    """A name with blanks is ended by a tab, as git does, so that ``patch`` finds its end."""
    return b"\t\n" if entry is not None and b" " in path else b"\n"


def _size(entry: Entry | None) -> int:
    return 0 if entry is None else entry.size


def _header(old: Entry | None, new: Entry | None) -> Iterator[bytes]:
    if old is None:
        assert new is not None
        yield f"new file mode {mode_text(new)}".encode()
    elif new is None:
        yield f"deleted file mode {mode_text(old)}".encode()
    elif old.mode != new.mode:
        yield f"old mode {mode_text(old)}".encode()
        yield f"new mode {mode_text(new)}".encode()
    if _index(old) != _index(new) and EntryKind.FILE in _kinds(old, new):
        mode = f" {mode_text(old)}" if old is not None and new is not None and old.mode == new.mode else ""
        yield f"index {_index(old)}..{_index(new)}{mode}".encode()
    yield from attribute_lines(old, new)


def _kinds(old: Entry | None, new: Entry | None) -> set[EntryKind]:
    return {entry.kind for entry in (old, new) if entry is not None}


def _index(entry: Entry | None) -> str:
    return (
        "0" * 12 if entry is None or entry.kind is not EntryKind.FILE or not entry.ref else short(entry.ref)
    )


def attribute_lines(old: Entry | None, new: Entry | None) -> Iterator[bytes]:
    """Yield the extended header lines of what git does not keep."""
    if old is not None and new is not None:
        if (old.uid, old.gid) != (new.uid, new.gid):
            yield f"old owner {old.uid}:{old.gid}".encode()
            yield f"new owner {new.uid}:{new.gid}".encode()
        if old.link_group != new.link_group:
            yield f"old link group {old.link_group:016x}".encode()
            yield f"new link group {new.link_group:016x}".encode()
        if old.mtime_ns != new.mtime_ns and old.ref == new.ref and old.size == new.size:
            yield f"old mtime {time_text(old.mtime_ns)}".encode()
            yield f"new mtime {time_text(new.mtime_ns)}".encode()
    yield from _device_lines(old, new)
    before = {} if old is None else dict(old.xattrs)
    after = {} if new is None else dict(new.xattrs)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            if name in before:
                yield b"old xattr " + show_path(name) + b"=" + before[name].hex().encode()
            if name in after:
                yield b"new xattr " + show_path(name) + b"=" + after[name].hex().encode()


def _device_lines(old: Entry | None, new: Entry | None) -> Iterator[bytes]:
    for label, entry, other in (("old", old, new), ("new", new, old)):
        is_device = entry is not None and entry.kind in (EntryKind.CHARDEV, EntryKind.BLOCKDEV)
        if entry is not None and is_device and (other is None or other.ref != entry.ref):
            yield "{} device {}:{}".format(label, *device_number(entry)).encode()


def format_hunks(old: Lines, new: Lines, hunks: Sequence[Hunk], context: int = CONTEXT) -> Iterator[bytes]:
    """Yield unified hunks: changes closer than twice the context share one."""
    for group in _groups(hunks, context):
        first, last = group[0], group[-1]
        a_start, b_start = max(0, first.a_start - context), max(0, first.b_start - context)
        a_end, b_end = min(len(old), last.a_end + context), min(len(new), last.b_end + context)
        ranges = (_range(b"-", a_start, a_end), _range(b"+", b_start, b_end))
        yield b"@@ " + b" ".join(ranges) + b" @@\n"
        at = a_start
        for hunk in group:
            yield from _marked(b" ", old[at : hunk.a_start])
            yield from _marked(b"-", old[hunk.a_start : hunk.a_end])
            yield from _marked(b"+", new[hunk.b_start : hunk.b_end])
            at = hunk.a_end
        yield from _marked(b" ", old[at:a_end])


def _groups(hunks: Sequence[Hunk], context: int) -> Iterator[list[Hunk]]:
    group: list[Hunk] = []
    for hunk in hunks:
        if group and hunk.a_start - group[-1].a_end > 2 * context:
            yield group
            group = []
        group.append(hunk)
    if group:
        yield group


def _range(sign: bytes, start: int, end: int) -> bytes:
    length = end - start
    text = f"{start + 1 if length else start}" + ("" if length == 1 else f",{length}")
    return sign + text.encode()


def _marked(mark: bytes, lines: Lines) -> Iterator[bytes]:
    for line in lines:
        yield mark + line
        if not line.endswith(b"\n"):
            yield b"\n" + NO_NEWLINE


# -- answers ------------------------------------------------------------------------------------------------------


def present_patch(diffs: Iterable[FileDiff], exit_code: bool = False) -> Reply:
    """Answer with patches; with ``exit_code`` differences are exit code 1."""
    rows, code = _peeked(diffs, exit_code)
    return Reply(
        data={"changes": (_diff_data(diff) for diff in rows)},
        text=(format_diff(diff) for diff in rows),
        exit_code=code,
    )


def present_names(changes: Iterable[Change], exit_code: bool = False) -> Reply:
    """Answer with a status letter and a path per line; records under ``-z`` are letter, NUL, path, NUL."""
    rows, code = _peeked(changes, exit_code)
    return Reply(
        data={"changes": (change_data(change) for change in rows)},
        text=(
            status_letter(change).encode() + b"\t" + show_path(change.path or b".") + b"\n" for change in rows
        ),
        z=(status_letter(change).encode() + b"\0" + change.path + b"\0" for change in rows),
        exit_code=code,
    )


def present_stat(diffs: Iterable[FileDiff], columns: int, exit_code: bool = False) -> Reply:
    """Answer with a line per path and its changed lines, and a total, as ``git diff --stat``."""
    rows, code = _peeked(diffs, exit_code)
    found = [diff._replace(old_lines=None, new_lines=None) for diff in rows]
    return Reply(
        data={"changes": [_diff_data(diff) for diff in found]},
        text=format_stat(found, columns),
        exit_code=code,
    )


def _peeked(rows: Iterable[Any], exit_code: bool) -> tuple[Iterator[Any], int]:
    """Return the rows and the exit code, which must be known before the first is printed."""
    stream = iter(rows)
    first = next(stream, None)
    if first is None:
        return iter(()), EXIT_OK
    return chain((first,), stream), EXIT_NO if exit_code else EXIT_OK


def _diff_data(diff: FileDiff) -> Mapping[str, Any]:
    return {
        **change_data(diff.change),
        "binary": diff.binary,
        "added": diff.added,
        "removed": diff.removed,
        "hunks": [
            {"old_start": a + 1, "old_lines": b - a, "new_start": c + 1, "new_lines": d - c}
            for a, b, c, d in diff.hunks
        ],
    }


def format_stat(diffs: Sequence[FileDiff], columns: int) -> bytes:
    """Return the lines of ``--stat``."""
    if not diffs:
        return b""
    names = [show_path(diff.path or b".").decode("utf-8", "surrogateescape") for diff in diffs]
    width = min(max(map(len, names)), max(20, columns - 30))
    most = max(diff.added + diff.removed for diff in diffs)
    digits = len(str(most))
    graph = max(10, min(_GRAPH_WIDTH, columns - width - digits - 8))
    lines = []
    for name, diff in zip(names, diffs, strict=True):
        shown = name if len(name) <= width else "..." + name[3 - width :]
        lines.append(f" {shown.ljust(width)} | {_amount(diff, digits, most, graph)}".rstrip())
    added, removed = sum(diff.added for diff in diffs), sum(diff.removed for diff in diffs)
    total = f" {counted(len(diffs), 'path')} changed"
    total += f", {counted(added, 'insertion')}(+)" if added else ""
    total += f", {counted(removed, 'deletion')}(-)" if removed else ""
    return "".join(f"{line}\n" for line in [*lines, total]).encode("utf-8", "surrogateescape")


def _amount(diff: FileDiff, digits: int, most: int, graph: int) -> str:
    if diff.binary:
        return f"Bin {_size(diff.old)} -> {_size(diff.new)} bytes"
    number = diff.added + diff.removed
    if not number:
        return _what(diff)
    scale = 1.0 if most <= graph else graph / most
    plus = max(1, round(diff.added * scale)) if diff.added else 0
    minus = max(1, round(diff.removed * scale)) if diff.removed else 0
    return f"{number:{digits}} {'+' * plus}{'-' * minus}"


def _what(diff: FileDiff) -> str:
    """Say in a word what changed where no line did."""
    old, new = diff.old, diff.new
    if old is None or new is None:
        entry = old or new
        assert entry is not None
        return f"{'new' if old is None else 'deleted'} {entry.kind.name.lower()}"
    parts = []
    if old.mode != new.mode:
        parts.append(f"mode {mode_text(old)} -> {mode_text(new)}")
    if (old.uid, old.gid) != (new.uid, new.gid):
        parts.append(f"owner {old.uid}:{old.gid} -> {new.uid}:{new.gid}")
    if old.xattrs != new.xattrs:
        parts.append("xattrs")
    if old.link_group != new.link_group:
        parts.append("links")
    return ", ".join(parts) or "mtime"

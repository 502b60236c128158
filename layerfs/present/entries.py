"""How one entry of a tree is shown: its mode as git writes it, its kind as a word, its id or a dash.

Owns the columns of ``ls-tree`` and ``diff-tree`` and the JSON form of an entry, which is the same in every document.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from layerfs.cli.output import Reply
from layerfs.ids import to_hex
from layerfs.objects.entry import NANO, Entry, EntryKind, device_number
from layerfs.objects.environment import Change
from layerfs.present.names import show_path

TYPE_BITS = {
    EntryKind.FILE: stat.S_IFREG,
    EntryKind.DIR: stat.S_IFDIR,
    EntryKind.SYMLINK: stat.S_IFLNK,
    EntryKind.FIFO: stat.S_IFIFO,
    EntryKind.SOCKET: stat.S_IFSOCK,
    EntryKind.CHARDEV: stat.S_IFCHR,
    EntryKind.BLOCKDEV: stat.S_IFBLK,
}
NO_ID = "-"


def mode_text(entry: Entry | None) -> str:
    """Return type and permissions as six octal digits; zeros for nothing."""
    return "000000" if entry is None else f"{TYPE_BITS[entry.kind] | entry.mode:06o}"


def kind_word(entry: Entry) -> str:
    """Return the kind as a word."""
    return entry.kind.name.lower()


def id_text(entry: Entry | None) -> str:
    """Return the id of the object the entry refers to; a dash where there is none (empty files, links, devices)."""
    if entry is None or entry.kind not in (EntryKind.FILE, EntryKind.DIR) or not entry.ref:
        return NO_ID
    return to_hex(entry.ref)


def time_text(time_ns: int) -> str:
    """Return an instant as seconds with nine decimals."""
    seconds, nanos = divmod(time_ns, NANO)
    return f"{seconds}.{nanos:09d}"


def status_letter(change: Change) -> str:
    """Return A, D, T (another kind) or M."""
    if change.old is None:
        return "A"
    if change.new is None:
        return "D"
    return "M" if change.old.kind is change.new.kind else "T"


def entry_data(entry: Entry | None) -> Mapping[str, Any] | None:
    """Return an entry for a document."""
    if entry is None:
        return None
    data: dict[str, Any] = {
        "kind": kind_word(entry),
        "mode": mode_text(entry),
        "uid": entry.uid,
        "gid": entry.gid,
        "mtime_ns": entry.mtime_ns,
        "size": entry.size,
        "id": None if id_text(entry) == NO_ID else id_text(entry),
    }
    if entry.kind is EntryKind.SYMLINK:
        data["target"] = entry.ref
    if entry.kind in (EntryKind.CHARDEV, EntryKind.BLOCKDEV):
        data["major"], data["minor"] = device_number(entry)
    if entry.xattrs:
        data["xattrs"] = [{"name": name, "value": value} for name, value in entry.xattrs]
    if entry.link_group:
        data["link_group"] = f"{entry.link_group:016x}"
    return data


def present_tree(rows: Iterator[tuple[bytes, Entry]], long: bool) -> Reply:
    """Answer ``ls-tree``: mode, kind, id (with ``long`` also size and mtime), a tab, the name."""

    def head(entry: Entry) -> bytes:
        columns = [mode_text(entry), kind_word(entry), id_text(entry)]
        if long:
            columns += [str(entry.size), time_text(entry.mtime_ns)]
        return " ".join(columns).encode() + b"\t"

    return Reply(
        data={"entries": ({"path": name, **(entry_data(entry) or {})} for name, entry in rows)},
        text=(head(entry) + show_path(name) + b"\n" for name, entry in rows),
        z=(head(entry) + name + b"\0" for name, entry in rows),
    )


def present_raw_changes(changes: Iterable[Change]) -> Reply:
    """Answer ``diff-tree``: status letter, both modes, both ids, a tab, the path."""
    rows = iter(changes)

    def head(change: Change) -> bytes:
        columns = (
            status_letter(change),
            mode_text(change.old),
            mode_text(change.new),
            id_text(change.old),
            id_text(change.new),
        )
        return " ".join(columns).encode() + b"\t"

    return Reply(
        data={"changes": (change_data(change) for change in rows)},
        text=(head(change) + show_path(change.path) + b"\n" for change in rows),
        z=(head(change) + change.path + b"\0" for change in rows),
    )


def change_data(change: Change) -> Mapping[str, Any]:
    """Return one change for a document."""
    return {
        "status": status_letter(change),
        "path": change.path,
        "old": entry_data(change.old),
        "new": entry_data(change.new),
    }

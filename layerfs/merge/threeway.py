"""The three-way rule on values, and on what an entry holds besides its content.

Invariant: pure and symmetric – swapping the sides gives the same value, except where a note says that ours was kept.
Modification times are never a reason for anything here: two entries that differ in them only are the same entry.

Elsewhere: contents (``textmerge``), what happens to paths (``treemerge``).
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, NamedTuple, TypeVar

from layerfs.objects.entry import Entry, EntryKind, Xattrs

Value = TypeVar("Value")

EXEC_BITS = 0o111
ACCESS_BITS = 0o666
SPECIAL_BITS = 0o7000


class _Clash(Enum):
    CLASH = "clash"


CLASH: Final = _Clash.CLASH
"""What :func:`merge_value` returns when both sides changed a value differently."""


def merge_value(base: Value, ours: Value, theirs: Value) -> Value | Literal[_Clash.CLASH]:
    """Return the one value that follows from three, or ``CLASH``."""
    if ours == theirs or theirs == base:
        return ours
    return theirs if ours == base else CLASH


def same(a: Entry | None, b: Entry | None) -> bool:
    """Whether two entries are equal apart from their modification time."""
    if a is None or b is None:
        return a is b
    return a == b or a._replace(mtime_ns=0) == b._replace(mtime_ns=0)


def same_content(a: Entry | None, b: Entry | None) -> bool:
    """Whether two entries have the same kind and content, whatever their attributes."""
    if a is None or b is None:
        return a is b
    return a.kind is b.kind and a.ref == b.ref


class Attributes(NamedTuple):
    """Merged attributes; ``mode_combined`` and the rest say what needed more than the scalar rule."""

    mode: int
    uid: int
    gid: int
    xattrs: Xattrs
    link_group: int
    mode_combined: bool
    owner_kept: bool
    xattr_clashes: tuple[bytes, ...]
    unlinked: bool

    def onto(self, entry: Entry, mtime_ns: int) -> Entry:
        """Return ``entry`` with these attributes."""
        return entry._replace(
            mode=self.mode,
            uid=self.uid,
            gid=self.gid,
            xattrs=self.xattrs,
            link_group=self.link_group,
            mtime_ns=mtime_ns,
        )


def merge_attributes(base: Entry | None, ours: Entry, theirs: Entry) -> Attributes:
    """Merge everything but kind, content and time; where owners or xattr values clash, ours stand in the result."""
    mode, combined = merge_mode(None if base is None else base.mode, ours.mode, theirs.mode)
    uid = merge_value(None if base is None else base.uid, ours.uid, theirs.uid)
    gid = merge_value(None if base is None else base.gid, ours.gid, theirs.gid)
    xattrs, clashes = merge_xattrs(() if base is None else base.xattrs, ours.xattrs, theirs.xattrs)
    group = merge_value(0 if base is None else base.link_group, ours.link_group, theirs.link_group)
    return Attributes(
        mode,
        ours.uid if uid is CLASH or uid is None else uid,
        ours.gid if gid is CLASH or gid is None else gid,
        xattrs,
        0 if group is CLASH else group,
        combined,
        uid is CLASH or gid is CLASH,
        clashes,
        group is CLASH,
    )


def merge_mode(base: int | None, ours: int, theirs: int) -> tuple[int, bool]:
    """Return the merged permission bits, and whether some group had to be combined bit by bit.

    The groups (execute, read and write, set-id and sticky) are independent: an edit that makes a file executable and one
    that closes it for others both survive. Within a group each bit keeps the side that changed it. Without a base the
    execute bits are united and the others intersected: never more access than a side gave.
    """
    mode = 0
    combined = False
    for group in (EXEC_BITS, ACCESS_BITS, SPECIAL_BITS):
        o, t = ours & group, theirs & group
        if o == t:
            mode |= o
        elif base is None:
            mode |= (o | t) if group is EXEC_BITS else (o & t)
            combined = True
        else:
            b = base & group
            mode |= (o & t) | ((o ^ t) & ~b & group)
            combined |= b not in (o, t)
    return mode, combined


def merge_xattrs(base: Xattrs, ours: Xattrs, theirs: Xattrs) -> tuple[Xattrs, tuple[bytes, ...]]:
    """Merge extended attributes name by name; a value is atomic. Return them with the names that clash (ours kept)."""
    if ours == theirs or theirs == base:
        return ours, ()
    if ours == base:
        return theirs, ()
    b, o, t = dict(base), dict(ours), dict(theirs)
    merged: list[tuple[bytes, bytes]] = []
    clashes: list[bytes] = []
    for name in sorted(b.keys() | o.keys() | t.keys()):
        value = merge_value(b.get(name), o.get(name), t.get(name))
        if value is CLASH:
            clashes.append(name)
            value = o.get(name)
        if value is not None:
            merged.append((name, value))
    return tuple(merged), tuple(clashes)


def merge_times(base: Entry | None, ours: Entry, theirs: Entry) -> int:
    """Return the modification time that follows: the side that changed it, the later one if both did."""
    if ours.kind is EntryKind.DIR or base is None:
        return max(ours.mtime_ns, theirs.mtime_ns)
    merged = merge_value(base.mtime_ns, ours.mtime_ns, theirs.mtime_ns)
    return max(ours.mtime_ns, theirs.mtime_ns) if merged is CLASH else merged

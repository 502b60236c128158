"""Hard links after a merge: the names of one inode must agree, or part.

Invariant: whatever was merged name by name, no two entries of one link group differ afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping

from layerfs.objects.entry import Entry


def relink(members: Mapping[bytes, tuple[Entry | None, Entry]]) -> dict[bytes, Entry]:
    """Return the entries to change so that one link group is consistent; given path → (base, merged entry).

    One inode has one content: a name that one side linked follows the edit the other side made through another name. If
    more than one edit remains the names are unlinked (group 0).
    """
    merged = {path: entry for path, (_, entry) in members.items()}
    if len(set(merged.values())) == 1:
        return {}
    latest = max(entry.mtime_ns for entry in merged.values())
    inodes = {_inode(entry) for entry in merged.values()}
    edited = inodes - {_inode(base) for base, _ in members.values() if base is not None}
    if len(inodes) > 1 and len(edited) != 1:
        return {path: entry._replace(link_group=0) for path, entry in merged.items()}
    kept = edited.pop() if len(edited) == 1 else inodes.pop()
    return dict.fromkeys(merged, kept._replace(mtime_ns=latest))


def _inode(entry: Entry) -> Entry:
    return entry._replace(mtime_ns=0)

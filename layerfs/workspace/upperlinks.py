"""Links of the upper: which upper names are one file, and the link group of each in the next commit.

Owns the rule for groups where only the upper is read: names of one inode keep the group they had in the last scan, and a
group of the base is taken over only when every name of it was made again as one file. How a whole directory that was
captured gets its groups is in ``linkgroups``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from blake3 import blake3

from layerfs.objects.entry import Entry, EntryKind
from layerfs.objects.environment import walk
from layerfs.objects.source import ObjectSource
from layerfs.store.layout import is_inside
from layerfs.workspace.uppercache import UpperCache

if TYPE_CHECKING:
    from layerfs.workspace.upper import UpperEntry


def link_sets(found: Iterable[UpperEntry]) -> dict[tuple[int, int], list[bytes]]:
    """Return (device, inode) → paths for the files of which the upper has several names."""
    sets: dict[tuple[int, int], list[bytes]] = {}
    for entry in found:
        row = entry.row
        if (
            row is not None
            and row.nlink > 1
            and entry.new is not None
            and entry.new.kind is not EntryKind.DIR
        ):
            sets.setdefault((row.dev, row.ino), []).append(entry.path)
    return {inode: paths for inode, paths in sets.items() if len(paths) > 1}


def with_link_groups(
    found: list[UpperEntry], source: ObjectSource, base: Entry, cache: UpperCache | None
) -> list[UpperEntry]:
    """Give the names of one inode one group: the one they had in the last scan, else one made of the smallest name.

    A group of the base is taken over only as a whole, when all its names were made again as one file: an upper inode is
    not linked with what the base still shows (``index=off``). The salt keeps a new group from meeting one that the base
    made of the same name.
    """
    groups: dict[bytes, int] = {}
    taken: set[int] = set()
    salt = base.ref
    fresh: list[list[bytes]] = []
    for paths in link_sets(found).values():
        known = [
            cache.rows[path].entry.link_group for path in paths if cache is not None and path in cache.rows
        ]
        group = next((number for number in known if number and number not in taken), 0)
        if not group:
            fresh.append(paths)
            continue
        taken.add(group)
        groups.update((path, group) for path in paths)
    again = _made_again(found, fresh, source, base)
    for paths in fresh:
        group = again.get(min(paths), 0)
        if not group or group in taken:
            digest = blake3(salt + min(paths)).digest(8)
            group = int.from_bytes(digest, "little") or 1
        taken.add(group)
        groups.update((path, group) for path in paths)
    return [
        entry._replace(new=entry.new._replace(link_group=groups.get(entry.path, 0)))
        if entry.row is not None
        and entry.new is not None
        and entry.new.link_group != groups.get(entry.path, 0)
        else entry
        for entry in found
    ]


def _made_again(
    found: list[UpperEntry], sets: list[list[bytes]], source: ObjectSource, base: Entry
) -> dict[bytes, int]:
    """Return smallest name → group of the base, for the sets of names that are all the names of one file of the base.

    Reads the whole base, because nothing less tells all names of a group: but only if a set looks like one that was
    made again with the same attributes, and only once, since the next scan has the answer in its cache.
    """
    at = {entry.path: entry for entry in found}
    looked_for: dict[int, list[bytes]] = {}
    for paths in sets:
        olds = [at[path].old for path in paths]
        first = olds[0]
        if first is not None and first.link_group and all(old == first for old in olds):
            new = at[paths[0]].new
            if new is not None and (new.mode, new.mtime_ns, new.size) == (
                first.mode,
                first.mtime_ns,
                first.size,
            ):
                looked_for[first.link_group] = paths
    if not looked_for:
        return {}
    members: dict[int, set[bytes]] = {}
    for path, entry in walk(source, base):
        if entry.link_group in looked_for:
            members.setdefault(entry.link_group, set()).add(path)
    moved = [entry.moved_from for entry in found if entry.moved_from is not None]
    return {
        min(paths): group
        for group, paths in looked_for.items()
        if members[group] == set(paths) and not any(is_inside(path, top) for path in paths for top in moved)
    }

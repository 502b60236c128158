"""Hard-link groups: which names of a captured tree are one file, and the number that says so in each entry.

Inode numbers mean nothing outside the file system they come from, so a group is named by 64 bits of the BLAKE3 of its
smallest path when first captured. The name is sticky: as long as a member keeps its group from the state before, the
group keeps its number, so linking one more name or renaming a member changes one entry, not all. A file that never had a
second name inside the tree has no group, whatever its link count says; one that lost its other names keeps its group,
because the state it came from cannot be searched for them at the cost of the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blake3 import blake3

from layerfs.objects.environment import path_key

_CONTEXT = "layerfs logical format 1 link group"


def fresh_group(path: bytes, used: set[int]) -> int:
    """Return the number of a new group whose smallest member is ``path``: not zero, and not one of ``used``."""
    salt = 0
    while True:
        digest = blake3(salt.to_bytes(8, "little") + path, derive_key_context=_CONTEXT).digest(8)
        number = int.from_bytes(digest, "little")
        if number and number not in used:
            return number
        salt += 1


def assign_groups(
    members: Mapping[tuple[int, int], Iterable[tuple[bytes, int]]], taken: Iterable[int] = ()
) -> dict[bytes, int]:
    """Return each path's group from (device, inode) → (path, group in the state before or 0).

    ``taken`` are numbers in use elsewhere in the tree. The result does not depend on the order of the input.
    """
    used = set(taken)
    groups: dict[bytes, int] = {}
    ordered = sorted(
        (sorted(paths, key=lambda member: path_key(member[0])) for paths in members.values()),
        key=lambda paths: (len(paths) < 2, path_key(paths[0][0])),
    )
    fresh: list[list[tuple[bytes, int]]] = []
    for paths in ordered:
        number = next((before for _, before in paths if before and before not in used), 0)
        if not number:
            if len(paths) > 1:
                fresh.append(paths)
            else:
                groups[paths[0][0]] = 0
            continue
        used.add(number)
        groups.update((path, number) for path, _ in paths)
    for paths in fresh:
        number = fresh_group(paths[0][0], used)
        used.add(number)
        groups.update((path, number) for path, _ in paths)
    return groups

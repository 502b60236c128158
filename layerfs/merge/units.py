"""Files that only make sense together: databases with their logs, distributions installed by both sides.

Invariant: a unit comes whole from one side or conflicts; no mixture of two sides is ever handed out as clean.
Lock files, package directories of other package managers and regeneration are later drivers; they attach here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from layerfs.merge.classes import database_of, distribution_of
from layerfs.merge.threeway import same
from layerfs.objects.entry import Entry, EntryKind

Names = dict[bytes, tuple[Entry | None, Entry | None, Entry | None]]
"""The differing names of one directory: name → (base, ours, theirs)."""


class UnitConflict(NamedTuple):
    """A unit both sides changed: the name to report, its three terms, why, and the names it decides."""

    name: bytes
    terms: tuple[Entry | None, Entry | None, Entry | None]
    detail: str
    members: tuple[bytes, ...]


def mixed_databases(names: Names, find: Callable[[bytes], Entry | None]) -> list[UnitConflict]:
    """Return the databases whose files would come from both sides; ``find`` looks a name up in ours."""
    found: list[UnitConflict] = []
    for database in sorted({base for base in map(database_of, names) if base is not None}):
        terms_of_file = names[database] if database in names else (find(database),)
        if not any(entry is not None and entry.kind is EntryKind.FILE for entry in terms_of_file):
            continue
        members = sorted(name for name in names if database in (name, database_of(name)))
        terms = [names[name] for name in members]
        ours_changed = any(not same(base, ours) for base, ours, _ in terms)
        theirs_changed = any(not same(base, theirs) for base, _, theirs in terms)
        if ours_changed and theirs_changed and not all(same(ours, theirs) for _, ours, theirs in terms):
            detail = "a database and its log belong together"
            found.append(UnitConflict(members[0], names[members[0]], detail, tuple(members)))
    return found


def clashing_distributions(names: Names) -> list[UnitConflict]:
    """Return the distributions of which each side installed another version, judged by their metadata directories."""
    ours_added: dict[bytes, bytes] = {}
    theirs_added: dict[bytes, bytes] = {}
    for name, (base, ours, theirs) in names.items():
        project = distribution_of(name)
        if project is None or base is not None:
            continue
        if ours is not None:
            ours_added[project] = name
        if theirs is not None:
            theirs_added[project] = name
    found: list[UnitConflict] = []
    for project, mine in sorted(ours_added.items()):
        other = theirs_added.get(project, mine)
        if other != mine:
            shown = " and ".join(name.decode("utf-8", "backslashreplace") for name in sorted((mine, other)))
            terms = (None, names[mine][1], names[other][2])
            found.append(UnitConflict(project, terms, f"both sides installed {shown}", ()))
    return found

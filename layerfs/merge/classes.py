"""Path classes: which rule decides a path when both sides changed it.

Owns the built-in table. The class of a path follows from its names alone, top down, so a walk carries it along and the
merge stays a pure function. Rules of the user (``.lww``, with its classes lww, union, ours, theirs, binary, ephemeral)
attach here later: they are asked after the built-in rules said conflict, and always those of the target's head.

Elsewhere: what a class does (``treemerge``) and what lies inside a git directory (``gitdir``).
"""

from __future__ import annotations

from enum import Enum


class PathClass(Enum):
    """How a path merges when the plain three-way rule has no answer."""

    PLAIN = "plain"
    """Text merges by lines; anything else conflicts. Files a side changed get the time of the merge."""
    CACHE = "cache"
    """Rebuilt by itself: never a conflict, dropped where both sides changed it."""
    OUTPUT = "output"
    """A build output by its name; dropped like a cache unless git tracks the path, because then it is source."""
    UNIT = "unit"
    """Files that only fit each other (an installed package): never merged by lines, times kept."""
    GIT = "git"
    """Inside a git directory: each file by its role there."""


DERIVED = frozenset((PathClass.CACHE, PathClass.OUTPUT))

_CACHE_NAMES = frozenset(
    (
        b"__pycache__",
        b".pytest_cache",
        b".mypy_cache",
        b".ruff_cache",
        b".hypothesis",
        b".tox",
        b".nox",
        b".ccache",
        b".gradle",
        b".parcel-cache",
        b".turbo",
    )
)
_CACHE_SUFFIXES = (b".pyc", b".pyo")
_CACHE_IN_UNIT = frozenset((b".cache", b".package-lock.json", b".vite"))
_OUTPUT_NAMES = frozenset((b"target", b"build", b"dist", b".next", b".tsbuildinfo", b".coverage"))
_OUTPUT_SUFFIXES = (b".o", b".a", b".so", b".class", b".egg-info", b".tsbuildinfo")
_UNIT_NAMES = frozenset((b"site-packages", b"dist-packages", b"node_modules"))


def class_below(parent: PathClass, name: bytes) -> PathClass:
    """Return the class of ``name`` in a directory of class ``parent``."""
    if parent is PathClass.GIT or parent is PathClass.CACHE:
        return parent
    if name in _CACHE_NAMES or name.endswith(_CACHE_SUFFIXES):
        return PathClass.CACHE
    if parent is PathClass.UNIT:
        return PathClass.CACHE if name in _CACHE_IN_UNIT else PathClass.UNIT
    if name in _UNIT_NAMES:
        return PathClass.UNIT
    if name == b".git":
        return PathClass.GIT
    if parent is PathClass.OUTPUT or name in _OUTPUT_NAMES or name.endswith(_OUTPUT_SUFFIXES):
        return PathClass.OUTPUT
    return PathClass.PLAIN


def class_of(path: bytes) -> PathClass:
    """Return the class of a path relative to the root."""
    found = PathClass.PLAIN
    for name in path.split(b"/") if path else ():
        found = class_below(found, name)
    return found


DATABASE_COMPANIONS = (b"-wal", b"-shm", b"-journal")


def database_of(name: bytes) -> bytes | None:
    """Return the database file that ``name`` (a write-ahead log or journal) belongs to, or None.

    A database and its log are one value in several files: mixing sides gives a file that is malformed or silently wrong.
    """
    for suffix in DATABASE_COMPANIONS:
        if name.endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return None


def distribution_of(name: bytes) -> bytes | None:
    """Return the normalised project name of an installed distribution's metadata directory, or None."""
    if not name.endswith(b".dist-info"):
        return None
    project, dash, _ = name[: -len(b".dist-info")].rpartition(b"-")
    return project.lower().replace(b"-", b"_").replace(b".", b"_") if dash else None

"""Authorship: who makes a commit, when, and what is known of how it came about.

Provenance comes from flags or from the variables that agents set (``LAYERFS_AGENT``, ``LAYERFS_SESSION``,
``LAYERFS_TOOL``, ``LAYERFS_CALL_ID``); flags win. Everything here is a value, read once from the context.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from layerfs.context import Context

VARIABLES = {
    "agent": "LAYERFS_AGENT",
    "session": "LAYERFS_SESSION",
    "tool": "LAYERFS_TOOL",
    "call-id": "LAYERFS_CALL_ID",
}


class Author(NamedTuple):
    """Who and when: ``name <address>``, nanoseconds since the epoch, and minutes east of UTC."""

    name: str
    time_ns: int
    tz_minutes: int


def author_now(context: Context, given: str | None = None) -> Author:
    """Return the author of what this process does now; ``given`` replaces the name."""
    now = context.now_ns()
    return Author(given or context.author(), now, context.tz_minutes(now))


def provenance_from(context: Context, flags: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return what the environment and then the flags say of how a commit came about."""
    found = {key: context.env[name] for key, name in VARIABLES.items() if context.env.get(name)}
    found.update((key, value) for key, value in (flags or {}).items() if value)
    return found

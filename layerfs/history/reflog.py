"""The reflog: every value a branch or tag ever had, and how main grew.

Owns the numbering ``NAME@{N}`` that ``revision`` resolves: 0 is the newest move. Main is no ref; its history is its
layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from layerfs.errors import NotFound, quote
from layerfs.history.layerstack import iter_layers
from layerfs.history.revision import MAX_NUMBER
from layerfs.ids import CommitId
from layerfs.store.refs import HEADS, MAIN, MAIN_REF, TAGS, short_ref
from layerfs.store.store import Store


class ReflogLine(NamedTuple):
    """One move of one name; ``old`` None if it was made, ``new`` None if it was deleted."""

    name: str
    ago: int
    old: CommitId | None
    new: CommitId | None
    time_ns: int
    actor: str
    why: str


def read_reflog(store: Store, name: str | None, limit: int | None = None) -> list[ReflogLine]:
    """Return the moves of a name (None: of all branches and tags), newest first, at most ``limit``."""
    if name in (MAIN, MAIN_REF):
        return list(_main_lines(store))[:limit]
    bound = -1 if limit is None else min(limit, MAX_NUMBER)
    if name is None:
        rows = store.refs.reflog(None, bound)
    else:
        candidates = (name,) if name.startswith("refs/") else (HEADS + name, TAGS + name)
        rows = next((found for ref in candidates if (found := store.refs.reflog(ref, bound))), [])
        if not rows and limit != 0:
            raise NotFound(
                f"no branch or tag was ever called {quote(name)}", "'layerfs reflog' lists all moves"
            )
    seen: dict[str, int] = {}
    lines = []
    for row in rows:
        ago = seen[row.name] = seen.get(row.name, -1) + 1
        lines.append(ReflogLine(short_ref(row.name), ago, row.old, row.new, row.time_ns, row.actor, row.why))
    return lines


def _main_lines(store: Store) -> Iterator[ReflogLine]:
    layers = list(iter_layers(store))
    for ago, row in enumerate(layers):
        layer = row.layer
        below = layers[ago + 1].layer.commit if ago + 1 < len(layers) else None
        why = f"L{layer.number}: {layer.how}" + (f" of {layer.branch}" if layer.branch else "")
        yield ReflogLine(MAIN, ago, below, layer.commit, layer.time_ns, layer.author, why)

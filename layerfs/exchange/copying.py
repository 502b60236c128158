"""Copying between stores on paths: ``clone``, ``fetch`` and ``push``.

Owns finding the other store and which names are meant. What is copied and how names move is in ``transfer``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from layerfs.errors import NotFound, quote
from layerfs.exchange.transfer import TransferOptions, Transferred, transfer
from layerfs.progress import SILENT, Progress
from layerfs.store.refs import HEADS, MAIN, MAIN_REF, TAGS
from layerfs.store.settings import Settings
from layerfs.store.store import Store

Clock = Callable[[], int]


class Cloned(NamedTuple):
    """A new store, and what was copied into it."""

    store: bytes
    transferred: Transferred


def clone(source: bytes, target: bytes, clock: Clock, actor: str = "", progress: Progress = SILENT) -> Cloned:
    """Copy a store into a new one at ``target``, which must be absent or empty."""
    with Store.open(source, clock=clock) as theirs:
        fmt = theirs.format
        with Store.create(target, clock=clock, source=fmt.source, durability=fmt.durability) as mine:
            _copy_settings(theirs, mine)
            options = TransferOptions(why=f"clone from {os.fsdecode(source)}:", actor=actor)
            return Cloned(target, transfer(theirs, mine, options, progress))


def _copy_settings(theirs: Store, mine: Store) -> None:
    settings = Settings(mine.path)
    for name, value, is_given in Settings(theirs.path).items():
        if is_given:
            settings.change(mine.files, name, value)


def fetch(
    store: Store,
    other: bytes,
    names: Sequence[str],
    force: bool,
    clock: Clock,
    actor: str = "",
    progress: Progress = SILENT,
) -> Transferred:
    """Bring names from the store at ``other`` into ``store``."""
    with Store.open(other, clock=clock) as theirs:
        options = TransferOptions(_full(theirs, names), force, f"fetch from {os.fsdecode(other)}:", actor)
        return transfer(theirs, store, options, progress)


def push(
    store: Store,
    other: bytes,
    names: Sequence[str],
    force: bool,
    clock: Clock,
    actor: str = "",
    progress: Progress = SILENT,
) -> Transferred:
    """Send names from ``store`` to the store at ``other``."""
    with Store.open(other, clock=clock) as theirs:
        options = TransferOptions(_full(store, names), force, f"push from {os.fsdecode(store.path)}:", actor)
        return transfer(store, theirs, options, progress)


def _full(source: Store, names: Sequence[str]) -> tuple[str, ...]:
    """Return the full names of branches, tags and main in the source."""
    found = []
    for name in names:
        known = [full for full in (HEADS + name, TAGS + name, name) if source.refs.get(full) is not None]
        if name == MAIN:
            known = [MAIN_REF]
        if not known:
            raise NotFound(f"no such branch or tag in {quote(source.path)}: {quote(name)}")
        found.append(known[0])
    return tuple(found)

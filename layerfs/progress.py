"""How a long operation says how far it is, without knowing who listens.

Owns the protocol between operations and whatever shows progress. An operation calls ``phase`` when it starts a stretch of
work and ``advance`` for what it finished since; it passes :data:`SILENT` when nobody listens. The bar is in ``render``.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Somebody who is told how far an operation is. Calls are cheap and may come from any one thread at a time."""

    def phase(self, label: str, files: int = 0, size: int = 0) -> None:
        """Begin a stretch of work named ``label``; totals of 0 mean "not known"."""

    def advance(self, files: int = 0, size: int = 0) -> None:
        """Count ``files`` more files and ``size`` more bytes as done."""


class SilentProgress:
    """The listener that ignores everything."""

    def phase(self, label: str, files: int = 0, size: int = 0) -> None:
        """Ignore it."""

    def advance(self, files: int = 0, size: int = 0) -> None:
        """Ignore it."""


SILENT = SilentProgress()

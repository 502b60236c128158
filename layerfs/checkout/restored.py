"""Restored: what a checkout, an update or a mount did, and what of a state this machine could not represent."""

from __future__ import annotations

from layerfs.capture.captured import Problem


class Restored:
    """Counts, what could not be represented, and the names of hard-linked files that were made, by their groups."""

    __slots__ = ("cloned", "files", "foreign_owners", "linked", "others", "problems", "removed", "size")

    def __init__(self) -> None:
        self.files = self.others = self.size = self.removed = self.cloned = 0
        self.foreign_owners = 0
        self.problems: list[Problem] = []
        self.linked: list[tuple[bytes, int]] = []

    @property
    def complete(self) -> bool:
        """Whether everything was restored faithfully (owners excepted, which need root)."""
        return not self.problems

"""Fixtures of the workspace tests: real mounts, in a mount namespace that ends with the test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mounting import enter_private_namespace
from stranger import Stranger, a_stranger


@pytest.fixture
def overlay_mounts(need_overlay: None) -> None:
    """Let a test mount overlays in this very process; a forgotten mount cannot outlive it."""
    enter_private_namespace()


@pytest.fixture
def stranger(overlay_mounts: None) -> Iterator[Stranger]:
    """Uid 1000, for whom the directories of the interpreter and the program are mounted where he may go."""
    with a_stranger() as somebody:
        yield somebody

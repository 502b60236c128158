"""Fixtures of the workspace tests: real mounts, in a mount namespace that ends with the test process."""

from __future__ import annotations

import pytest
from mounting import enter_private_namespace


@pytest.fixture
def overlay_mounts(need_overlay: None) -> None:
    """Let a test mount overlays in this very process; a forgotten mount cannot outlive it."""
    enter_private_namespace()

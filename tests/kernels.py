"""The compiled kernels and their Python twins, for tests that run one body on both."""

from __future__ import annotations

from importlib import import_module
from typing import cast

import pytest

from layerfs.kernels.native import Kernels

on_both = pytest.mark.parametrize("which", ["kernel", "twin"])


def load(which: str) -> Kernels:
    """Return the implementation; a kernel that was not built skips the test."""
    try:
        return cast(Kernels, import_module(f"layerfs.kernels.{'_native' if which == 'kernel' else 'native_reference'}"))
    except ImportError as error:
        pytest.skip(f"the native kernels are not built: {error}")

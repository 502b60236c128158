"""The compiled kernels and their Python twins, for tests that run one body on both."""

from __future__ import annotations

import os
from importlib import import_module
from typing import cast

import pytest

from layerfs.native import Kernels

on_both = pytest.mark.parametrize("which", ["kernel", "twin"])


def load(which: str) -> Kernels:
    """Return the implementation; a kernel that was not built skips the test, and under CI fails it."""
    try:
        return cast(Kernels, import_module("layerfs._native" if which == "kernel" else "layerfs.native_reference"))
    except ImportError as error:
        message = f"the native kernels are not built: {error}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)

"""``python -m layerfs``: the same as the ``layerfs`` command."""

from __future__ import annotations

from layerfs.cli import entry

entry()

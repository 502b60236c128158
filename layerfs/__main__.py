"""``python -m layerfs``: the same as the ``layerfs`` command."""

from __future__ import annotations

import sys

from layerfs.cli import main

sys.exit(main())

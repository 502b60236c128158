"""``python -m layerfs``: the same as the ``layerfs`` command.

Python puts the working directory first on its path for ``-m``. There may be anything in it, a captured virtualenv's
packages included, and none of that is to be imported: it is taken off again before anything else is loaded.
"""

from __future__ import annotations

import os
import sys

if (
    not sys.flags.safe_path
    and sys.path
    and os.path.realpath(sys.path[0]) != os.path.dirname(os.path.dirname(__file__))
):
    del sys.path[0]

from layerfs.cli.main import entry

entry()

"""Build of the native kernels; everything else about the package is in pyproject.toml.

The kernels are optional: without a compiler layerfs installs all the same and runs on their Python twins.
``LAYERFS_REQUIRE_NATIVE=1`` makes a failed build an error (CI sets it).
"""

import os
from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "layerfs.kernels._native",
            sources=sorted(glob("csrc/*.c")),
            depends=sorted(glob("csrc/*.h")),
            extra_compile_args=["-O3", "-std=gnu11", "-Wall", "-Wextra", "-fno-strict-aliasing"],
            optional=os.environ.get("LAYERFS_REQUIRE_NATIVE") != "1",
        )
    ]
)

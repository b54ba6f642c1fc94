"""Making a local Spark session in which this format works."""

from __future__ import annotations

import os
import sys

INTERPRETER_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


def require_this_interpreter() -> None:
    """Make Spark run its Python workers with this interpreter; call it before the session is made.

    Spark looks for ``python3`` on the path otherwise, which finds neither this distribution nor the stores' plugins.
    """
    for name in INTERPRETER_VARIABLES:
        os.environ[name] = sys.executable

"""A Spark home whose Python workers start fast.

The JVM puts ``python/lib/pyspark.zip`` of its home first on the path of every worker, where all of PySpark is compiled
again on each import, because a zip keeps no bytecode: about a second of work for each of the ten processes of one
start. In a home without that file, workers import the installed PySpark, which is the same one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

VARIABLE: Final = "SPARK_HOME"
_NEEDED = ("bin", "jars")


def make_spark_home(directory: Path) -> Path:
    """Make ``directory`` a home that has only what starting the JVM needs; return it."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    directory.mkdir()
    for name in _NEEDED:
        (directory / name).symlink_to(installed / name, target_is_directory=True)
    return directory


@contextlib.contextmanager
def fast_home(folder: Path) -> Iterator[None]:
    """Let a JVM that is started meanwhile have such a home in ``folder``, for as long as it may look for classes there.

    Where SPARK_HOME is set, somebody has chosen one, with settings and jars of its own: then that is left as it is.
    """
    if VARIABLE in os.environ:
        yield
        return
    os.environ[VARIABLE] = str(make_spark_home(folder / "home"))
    try:
        yield
    finally:
        del os.environ[VARIABLE]

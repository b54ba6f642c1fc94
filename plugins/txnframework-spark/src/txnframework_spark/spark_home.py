"""The JVM puts ``python/lib/pyspark.zip`` of its home first on the path of every worker. A zip stores no bytecode, so
each import compiles all of PySpark again: about one second for each of the ten processes of a start. In a home without
that file, workers import the installed PySpark, which is the same version.
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
    """Create ``directory`` as a home with only the files that the JVM needs to start; return it."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    directory.mkdir()
    for name in _NEEDED:
        (directory / name).symlink_to(installed / name, target_is_directory=True)
    return directory


@contextlib.contextmanager
def fast_home(folder: Path) -> Iterator[None]:
    """Make a JVM that is started in the block use such a home in ``folder``, which must exist as long as the JVM runs.

    If SPARK_HOME is set, it is kept: the user has chosen a home with its own settings and jars.
    """
    if VARIABLE in os.environ:
        yield
        return
    os.environ[VARIABLE] = str(make_spark_home(folder / "home"))
    try:
        yield
    finally:
        del os.environ[VARIABLE]

"""A Spark home whose Python workers start fast.

The JVM puts ``python/lib/pyspark.zip`` of its home first on the path of every worker, where all of PySpark is compiled
again on each import, because a zip keeps no bytecode: more than a second of work for each of the ten processes of one
start. In a home without that file, workers import the installed PySpark, which is the same one.

It also keeps a SPARK_HOME of the surroundings, perhaps of another version, from being taken.
"""

from __future__ import annotations

from pathlib import Path

_NEEDED = ("bin", "jars")


def make_spark_home(directory: Path) -> Path:
    """Make ``directory`` a home that has only what starting the JVM needs; return it."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    directory.mkdir()
    for name in _NEEDED:
        (directory / name).symlink_to(installed / name, target_is_directory=True)
    return directory

"""The location of ZooKeeper's classes: PySpark includes them."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

_JARS = (
    "zookeeper", "slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl", "metrics-core", "snappy-java",
    "commons-cli", "commons-io", "netty-",
)  # fmt: skip
"""The jars that a server needs, out of Spark's three hundred; with all of them the start takes twice as long."""


def java_command() -> list[str]:
    """Return the command that runs a class of ZooKeeper; raise RuntimeError with what to install if it is missing."""
    return [java_tool("java"), "-cp", os.pathsep.join(map(str, _class_path()))]


def java_tool(name: str) -> str:
    """Return the path of a Java program; raise RuntimeError with what to install if it is missing."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=str(Path(home, "bin"))) if home else shutil.which(name)
    if found is None:
        raise RuntimeError("a ZooKeeper server needs Java: install a JDK (17 or later), or set JAVA_HOME to one")
    return found


def _class_path() -> list[Path]:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise RuntimeError("a ZooKeeper server is taken from PySpark's jars: pip install pyspark")
    jars = Path(spec.origin).parent / "jars"
    found = [jar for jar in sorted(jars.glob("*.jar")) if jar.name.startswith(_JARS)]
    if not any(jar.name.startswith("zookeeper") for jar in found):
        raise RuntimeError(f"a ZooKeeper server is taken from PySpark's jars, and {jars} has none of ZooKeeper")
    return found

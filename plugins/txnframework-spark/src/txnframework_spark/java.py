"""Check for a Java that Spark can run on; its error is one sentence, Spark's own takes fifty lines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from txnframework_spark.errors import JavaUnusable

JAVA_VERSION_MIN = 17
_HINT = f"install a Java of version {JAVA_VERSION_MIN} or newer, or set JAVA_HOME to one"


def check_java(timeout_ms: int = 20_000) -> int:
    """Return the major version of the Java that Spark would start, or raise JavaUnusable."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if command is None:
        raise JavaUnusable(f"Spark needs Java and none is installed: {_HINT}")
    try:
        done = subprocess.run(  # noqa: S603 - the program that Spark itself would start
            [command, "-version"], capture_output=True, text=True, timeout=timeout_ms / 1000, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        where = f"JAVA_HOME={home}" if home else command
        raise JavaUnusable(f"Spark needs Java, and the one at {where} does not run: {_HINT}") from error
    version = java_version(done.stderr + done.stdout)
    if version is None:
        raise JavaUnusable(f"Spark needs Java, and {command} does not say its version: {_HINT}")
    if version < JAVA_VERSION_MIN:
        raise JavaUnusable(f"Spark needs Java {JAVA_VERSION_MIN} or newer and found {version}: {_HINT}", version)
    return version


def java_version(text: str) -> int | None:
    """Return the major version in the output of ``java -version``; None if it contains none."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    major = int(found[1])
    # Up to Java 8, versions had the form 1.8.
    return int(found[2]) if major == 1 and found[2] else major

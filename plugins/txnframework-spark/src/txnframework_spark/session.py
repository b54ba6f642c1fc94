"""Making a Spark session in which this format works."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

INTERPRETER_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


def require_this_interpreter() -> None:
    """Make Spark run its Python workers with this interpreter; call it before the session is made.

    Spark looks for ``python3`` on the path otherwise, which finds neither this distribution nor the stores' plugins.
    """
    for name in INTERPRETER_VARIABLES:
        os.environ[name] = sys.executable


def choose_interpreter(local: bool) -> None:
    """On a cluster this interpreter may be elsewhere: what PYSPARK_PYTHON says then counts."""
    if local:
        require_this_interpreter()
    for name in INTERPRETER_VARIABLES:
        os.environ.setdefault(name, sys.executable)


def is_local(master: str) -> bool:
    """Whether driver and executors are one process, so that they have one working folder."""
    return master == "local" or master.startswith("local[")


@contextlib.contextmanager
def standard_error_to(log: Path | None) -> Iterator[None]:
    """Let processes that are started meanwhile say what they have to say in a file; None: where this one does."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)

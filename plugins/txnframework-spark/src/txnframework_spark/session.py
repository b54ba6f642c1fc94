"""Making a Spark session in which this format works."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from txnframework_spark.java import check_java
from txnframework_spark.scratch import scratch_folder
from txnframework_spark.spark_home import fast_home
from txnframework_spark.workers import WORKER_SETTINGS, worker_nursery, worker_sockets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERPRETER_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")

LOCAL_CHECKPOINT: Mapping[str, str] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""How to write the files of a checkpoint that is a local folder: by itself Spark starts two or three programs for each
file, to look at links and to set modes, where Hadoop's native library is not there. What is written is the same.
"""


REDACTION: Mapping[str, str] = {
    "spark.redaction.string.regex": (
        r"(?i)(?<=://[^\s:@/]{0,255}:)\S*(?=@)|(?<=[?&;](password|passwd|pwd|secret|token)=)[^&;\s,\])}]*"
    )
}
"""
Settings with which Spark keeps the passwords of URLs out of what it prints of a plan: ``explain``, its pages, its event
log. It prints options there as they are; by itself it hides those only whose names it takes for secret.
"""


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
def spark_session(settings: Mapping[str, str], log: Path | None) -> Iterator[SparkSession]:
    """
    Give a session of its own with these settings, of which ``spark.master`` is one, and stop it when the block ends.

    :param log: where Spark, and all processes that it starts, say what they have to say; None: standard error.
    :raises JavaUnusable: there is no Java for it.
    """
    check_java()
    local = is_local(settings["spark.master"])
    choose_interpreter(local)
    from pyspark.sql import SparkSession

    with contextlib.ExitStack() as stack:
        ours = {**REDACTION, **WORKER_SETTINGS}
        # Its JVM keeps what is standard error now, and so does what the JVM starts.
        with standard_error_to(log):
            if local:
                folder = stack.enter_context(scratch_folder("txnframework-spark-"))
                stack.enter_context(fast_home(folder))
                stack.enter_context(worker_nursery(folder))
                ours = {**ours, **worker_sockets(folder)}
            builder = SparkSession.builder
            for name, value in {**ours, **settings}.items():
                builder = builder.config(name, value)
            session = builder.getOrCreate()
        try:
            yield session
        except BaseException:
            # A JVM that has died, which may be what went wrong, cannot be stopped.
            with contextlib.suppress(Exception):
                session.stop()
            raise
        session.stop()


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

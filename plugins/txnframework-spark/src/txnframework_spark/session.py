"""Creation of Spark sessions in which this format works."""

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
"""
Settings for a checkpoint in a local folder. Without Hadoop's native library, Spark starts two or three programs for
each checkpoint file, to resolve links and set modes. These settings avoid that; the files are the same.
"""


REDACTION: Mapping[str, str] = {
    "spark.redaction.string.regex": (
        r"(?i)(?<=://[^\s:@/]{0,255}:)\S*(?=@)|(?<=[?&;](password|passwd|pwd|secret|token)=)[^&;\s,\])}]*"
    )
}
"""
Settings that hide the passwords of URLs in printed plans: ``explain``, Spark's web pages and its event log. Spark
prints the options of a source there, and by default hides only those whose names look secret.
"""


def require_this_interpreter() -> None:
    """Make Spark run its Python workers with this interpreter; call it before the session is created.

    By default Spark runs the ``python3`` on the path, which may lack this distribution and the plugins of the stores.
    """
    for name in INTERPRETER_VARIABLES:
        os.environ[name] = sys.executable


def choose_interpreter(local: bool) -> None:
    """Choose the interpreter of Python workers: this one if ``local``, else PYSPARK_PYTHON if it is set."""
    if local:
        require_this_interpreter()
    for name in INTERPRETER_VARIABLES:
        os.environ.setdefault(name, sys.executable)


def is_local(master: str) -> bool:
    """Return whether driver and executors are one process, with one working folder."""
    return master == "local" or master.startswith("local[")


@contextlib.contextmanager
def spark_session(settings: Mapping[str, str], log: Path | None) -> Iterator[SparkSession]:
    """
    Provide a session with these settings, which include ``spark.master``, and stop it when the block ends.

    :param log: the file for the output of Spark and of all processes that it starts; None: standard error.
    :raises JavaUnusable: no usable Java is installed.
    """
    check_java()
    local = is_local(settings["spark.master"])
    choose_interpreter(local)
    from pyspark.sql import SparkSession

    with contextlib.ExitStack() as stack:
        ours = {**REDACTION, **WORKER_SETTINGS}
        # The JVM and the processes that it starts inherit the current standard error.
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
            # Stopping fails if the JVM has died, which may be the cause of this error.
            with contextlib.suppress(Exception):
                session.stop()
            raise
        session.stop()


@contextlib.contextmanager
def standard_error_to(log: Path | None) -> Iterator[None]:
    """Redirect the standard error of processes started in the block to a file; None: no redirection."""
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

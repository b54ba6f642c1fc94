"""The Spark that a pipeline runs on."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from txnframework_spark.java import check_java
from txnframework_spark.pipeline.description import Pipeline, spelled
from txnframework_spark.pipeline.errors import StoresUnnamed
from txnframework_spark.pipeline.options import config_file
from txnframework_spark.session import INTERPRETER_VARIABLES, require_this_interpreter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANALYSING: Mapping[str, str] = {"spark.ui.enabled": "false", "spark.master": "local[1]"}
"""Settings of a session in which nothing is run."""


def is_local(master: str) -> bool:
    """Whether driver and executors are one process, so that they have one working folder."""
    return master == "local" or master.startswith("local[")


@contextlib.contextmanager
def open_session(
    pipeline: Pipeline, log: Path | None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """
    Give the session that a pipeline asks for, until the block ends.

    :param log: where Spark, and all processes that it starts, say what they have to say; None: standard error.
    :param settings: what goes before the pipeline's own settings.
    :raises JavaUnusable: there is no Java for it.
    """
    check_java()
    wanted = {
        "spark.master": pipeline.spark.master,
        "spark.app.name": pipeline.pipeline.name,
        "spark.ui.showConsoleProgress": "false",
        **spelled(pipeline.spark.conf),
        **(settings or {}),
    }
    local = is_local(wanted["spark.master"])
    config = config_file(pipeline)
    if not local and config is None and pipeline.stores.metadata is None:
        raise StoresUnnamed(wanted["spark.master"])
    _choose_interpreter(local)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in wanted.items():
        builder = builder.config(name, value)
    # Its JVM keeps what is standard error now, and so does what the JVM starts.
    with _standard_error_to(log):
        session = builder.getOrCreate()
    try:
        session.sparkContext.setLogLevel(pipeline.spark.log_level)
        if config is not None and not local:
            session.sparkContext.addFile(str(config.absolute()))
        yield session
    finally:
        session.stop()


def _choose_interpreter(local: bool) -> None:
    """On a cluster this interpreter may be elsewhere: what PYSPARK_PYTHON says then counts."""
    if local:
        require_this_interpreter()
    for name in INTERPRETER_VARIABLES:
        os.environ.setdefault(name, sys.executable)


@contextlib.contextmanager
def _standard_error_to(log: Path | None) -> Iterator[None]:
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

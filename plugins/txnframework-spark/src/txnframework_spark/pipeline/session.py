"""The Spark that a pipeline runs on."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from txnframework_spark.java import check_java
from txnframework_spark.pipeline.description import Pipeline, spelled
from txnframework_spark.pipeline.options import config_file
from txnframework_spark.session import choose_interpreter, is_local, standard_error_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANALYSING: Mapping[str, str] = {"spark.ui.enabled": "false", "spark.master": "local[1]"}
"""Settings of a session in which nothing is run."""


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
    choose_interpreter(local)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in wanted.items():
        builder = builder.config(name, value)
    with contextlib.ExitStack() as stack:
        shipped = None if local or config is None else stack.enter_context(_copy_of(config))
        # Its JVM keeps what is standard error now, and so does what the JVM starts.
        with standard_error_to(log):
            session = builder.getOrCreate()
        stack.callback(session.stop)
        session.sparkContext.setLogLevel(pipeline.spark.log_level)
        if shipped is not None:
            session.sparkContext.addFile(str(shipped))
        yield session


@contextlib.contextmanager
def _copy_of(config: Path) -> Iterator[Path]:
    """Give a copy that only we can read: the driver hands it to every executor that comes, also after an edit."""
    with tempfile.TemporaryDirectory(prefix="txnframework-pipeline-") as folder:
        yield Path(shutil.copyfile(config, Path(folder) / config.name))

"""The Spark session of a pipeline."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from txnframework_spark.pipeline.description import Pipeline, spelled
from txnframework_spark.pipeline.options import config_file
from txnframework_spark.scratch import scratch_folder
from txnframework_spark.session import LOCAL_CHECKPOINT, is_local, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANALYSING: Mapping[str, str] = {"spark.ui.enabled": "false", "spark.master": "local[1]"}
"""Settings of a session that only analyses."""

_HARMLESS = ("spark.driver.memory", "spark.sql.caseSensitive", "spark.sql.shuffle.partitions", "spark.ui.enabled")
_HARMLESS_BELOW = ("spark.sql.ansi.", "spark.sql.session.", "spark.sql.legacy.", "spark.sql.timestampType")


def is_harmless(setting: str) -> bool:
    """Return whether a setting only changes how queries are parsed; others may load jars, packages or classes."""
    return setting in _HARMLESS or setting.startswith(_HARMLESS_BELOW)


@contextlib.contextmanager
def open_session(
    pipeline: Pipeline, log: Path | None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """
    Provide the session of a pipeline until the block ends.

    :param log: the file for the output of Spark and of all processes that it starts; None: standard error.
    :param settings: settings that override the pipeline's own.
    :raises JavaUnusable: no usable Java is installed.
    """
    wanted = {
        "spark.master": pipeline.spark.master,
        "spark.app.name": pipeline.pipeline.name,
        "spark.ui.showConsoleProgress": "false",
        **({} if "://" in pipeline.pipeline.checkpoint else LOCAL_CHECKPOINT),
        **spelled(pipeline.spark.conf),
        **(settings or {}),
    }
    config = None if is_local(wanted["spark.master"]) else config_file(pipeline)
    with contextlib.ExitStack() as stack:
        shipped = None if config is None else stack.enter_context(_copy_of(config))
        session = stack.enter_context(spark_session(wanted, log))
        session.sparkContext.setLogLevel(pipeline.spark.log_level)
        if shipped is not None:
            session.sparkContext.addFile(str(shipped))
        yield session


@contextlib.contextmanager
def _copy_of(config: Path) -> Iterator[Path]:
    """Provide a private copy: the driver sends it to every executor that starts, even after the file is edited."""
    with scratch_folder("txnframework-config-") as folder:
        yield Path(shutil.copyfile(config, folder / config.name))

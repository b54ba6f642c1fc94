"""The Spark of a job: begun for one command, its own words in a file."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from txnframework_spark.java import check_java
from txnframework_spark.jobs.errors import StoresUnnamed
from txnframework_spark.options.stores import StoreOptions
from txnframework_spark.session import choose_interpreter, is_local, standard_error_to
from txnframework_spark.spark_home import make_spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_AT_A_TIME: Final = 200


@contextlib.contextmanager
def session(master: str, name: str, stores: StoreOptions) -> Iterator[SparkSession]:
    """
    Give a session on ``master``, and stop it; what Spark says goes to a file, which is kept if the job fails.

    :raises StoresUnnamed: tasks on other machines would look for the embedded database there.
    """
    check_java()
    local = is_local(master)
    if not local and stores.config is None:
        raise StoresUnnamed(master)
    choose_interpreter(local)
    scratch = Path(tempfile.mkdtemp(prefix="txnframework-job-"))
    log = scratch / "spark.log"
    try:
        with standard_error_to(log):
            opened = _open(master, name, scratch)
        try:
            if not local:
                opened.sparkContext.addFile(str(stores.config))  # tasks find it by its name
            yield opened
        finally:
            opened.stop()
    except Exception:
        kept = Path(tempfile.gettempdir()) / f"{scratch.name}.log"
        if log.exists() and log.stat().st_size:
            shutil.copyfile(log, kept)
            click.echo(f"What Spark said is in {kept}", err=True)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _open(master: str, name: str, scratch: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    # A row of a compaction is an entry, of up to megabytes: Spark's 10,000 of them are more than a task's memory.
    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_AT_A_TIME)
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    )
    if is_local(master):
        os.environ["SPARK_HOME"] = str(make_spark_home(scratch / "home"))
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.local.dir", str(scratch))
    opened = builder.getOrCreate()
    opened.sparkContext.setLogLevel("WARN")
    return opened

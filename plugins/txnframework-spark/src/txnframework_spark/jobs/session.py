"""The Spark session of a job: created for one command, with Spark's log in a file."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from txnframework_spark.jobs.errors import StoresUnnamed
from txnframework_spark.options.stores import StoreOptions
from txnframework_spark.scratch import scratch_folder
from txnframework_spark.session import is_local, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_AT_A_TIME: Final = 200


@contextlib.contextmanager
def session(master: str, name: str, stores: StoreOptions) -> Iterator[SparkSession]:
    """
    Provide a session on ``master``, and stop it; Spark's log goes to a file, which is kept if the job fails.

    :raises JavaUnusable: no usable Java is installed.
    :raises StoresUnnamed: tasks on other machines would use an embedded database of their own.
    """
    local = is_local(master)
    if not local and stores.config is None:
        raise StoresUnnamed(master)
    with scratch_folder("txnframework-job-") as scratch:
        log = scratch / "spark.log"
        try:
            with spark_session(_settings(master, name, scratch), log) as opened:
                opened.sparkContext.setLogLevel("WARN")
                if not local:
                    opened.sparkContext.addFile(str(stores.config))  # tasks find the file by its name
                yield opened
        except Exception:
            kept = Path(tempfile.gettempdir()) / f"{scratch.name}.log"
            if log.exists() and log.stat().st_size:
                shutil.copyfile(log, kept)
                click.echo(f"What Spark said is in {kept}", err=True)
            raise


def _settings(master: str, name: str, scratch: Path) -> dict[str, str]:
    settings = {
        "spark.master": master,
        "spark.app.name": name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # A row of a compaction is an entry of up to megabytes: Spark's default of 10,000 rows would exhaust memory.
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_AT_A_TIME),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if is_local(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.local.dir": str(scratch)}
    return settings

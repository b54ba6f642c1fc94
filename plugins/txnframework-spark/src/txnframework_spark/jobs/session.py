"""The Spark of a job: begun for one command, its own words in a file."""

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
    Give a session on ``master``, and stop it; what Spark says goes to a file, which is kept if the job fails.

    :raises JavaUnusable: there is no Java for it.
    :raises StoresUnnamed: tasks on other machines would look for the embedded database there.
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
                    opened.sparkContext.addFile(str(stores.config))  # tasks find it by its name
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
        # A row of a compaction is an entry, of up to megabytes: Spark's 10,000 of them are more than a task's memory.
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_AT_A_TIME),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if is_local(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.local.dir": str(scratch)}
    return settings

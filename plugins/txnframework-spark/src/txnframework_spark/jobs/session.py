"""The Spark session of a job, with Spark's log in a file, and the display of the job's progress."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from txnframework_spark.errors import StoresNotConfigured
from txnframework_spark.options.parser import StoreOptions
from txnframework_spark.session import is_local, scratch_folder, spark_session

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession


_LOOK_EVERY_S: Final = 0.2


class Meter:
    """The messages and bytes that tasks have read; approximate, because a retried task counts twice."""

    def __init__(self, spark: SparkSession) -> None:
        self.messages: Accumulator[int] = spark.sparkContext.accumulator(0)
        self.bytes: Accumulator[int] = spark.sparkContext.accumulator(0)


class JobProgress:
    """Shows one line for each step of a job."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn("line"),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the steps until the block ends."""
        with self._progress:
            yield

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show a step that only the driver performs."""
        task = self._progress.add_task(title, total=1, said="")
        yield
        self._progress.update(task, completed=1)

    @contextmanager
    def tasks(self, title: str, spark: SparkSession, meter: Meter) -> Iterator[None]:
        """Show the progress of Spark's tasks until the block ends."""
        task = self._progress.add_task(title, total=None, said="")
        over = threading.Event()
        looking = threading.Thread(target=self._look, args=(task, spark, meter, over), daemon=True)
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()
        self._progress.update(task, total=1, completed=1, said=_said(None, meter))

    def _look(self, task: TaskID, spark: SparkSession, meter: Meter, over: threading.Event) -> None:
        tracker = spark.sparkContext.statusTracker()
        while not over.wait(_LOOK_EVERY_S):
            found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            stages = [stage for stage in found if stage is not None]
            if stages:
                done, total = sum(one.numCompletedTasks for one in stages), sum(one.numTasks for one in stages)
                self._progress.update(task, total=total, completed=done, said=_said((done, total), meter))


def _said(tasks: tuple[int, int] | None, meter: Meter) -> str:
    parts = [] if tasks is None else [f"{tasks[0]}/{tasks[1]} tasks"]
    return ", ".join((*parts, f"{meter.messages.value} messages", decimal(meter.bytes.value)))


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
        raise StoresNotConfigured(master)
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
                click.echo(f"Spark's log is {kept}", err=True)
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

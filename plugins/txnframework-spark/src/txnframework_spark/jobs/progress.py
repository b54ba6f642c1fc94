"""The progress of a job: tasks, messages and bytes; shown only on a terminal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

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

"""Progress on standard error: a live line on a terminal, otherwise one line for each finished measure."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from txnframework_compare.measures import Measure


class Shown:
    """Shows progress while a measure is taken; between measures, tables can be written to standard output."""

    def __init__(self, console: Console, measures: int) -> None:
        self._console = console
        self._measures = measures
        self._number = 0
        self._began_s = 0.0
        self._measure: Measure | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def begin(self, measure: Measure, steps: int) -> None:
        """Start the next measure."""
        self._number += 1
        self._began_s = time.monotonic()
        self._measure = measure
        if self._console.is_terminal:
            columns = (BarColumn(10), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._task = self._progress.add_task(measure.name, total=steps)
            self._progress.start()

    def step(self, doing: str) -> None:
        """Start the next step of the measure."""
        if self._progress is not None and self._measure is not None and self._task is not None:
            self._progress.update(self._task, description=f"{self._measure.name}: {doing}", advance=1)

    def end(self) -> None:
        """Report that the measure is finished."""
        self.stop()
        if self._measure is not None and not self._console.is_terminal:
            seconds = time.monotonic() - self._began_s
            title = f"[{self._number}/{self._measures}] {self._measure.title}: done ({seconds:.1f} s)"
            self._console.print(Text(title), soft_wrap=True)

    def stop(self) -> None:
        """Remove the live line, whatever the state of the measure. Idempotent."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

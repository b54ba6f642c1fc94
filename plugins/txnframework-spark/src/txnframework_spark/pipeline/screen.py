"""The display of a running pipeline: a line for each batch and, on a terminal, what it is doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console
from rich.text import Text

from txnframework_spark.progress import StateProgress, lag, state

ROWS_OUT: Final = "txnframework_rows_out"
"""The name of the metric that counts the rows for the sinks."""


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A finished batch.

    ``behind``: readable messages after it, None if unknown. ``state``: the state of a stateful plan.
    """

    number: int
    rows_in: int
    rows_out: int
    behind: int | None
    took_s: float
    state: StateProgress | None = None


def finished_batch(progress: Mapping[str, Any]) -> FinishedBatch | None:
    """Return the batch in a query's progress; None if there was no data."""
    durations = progress["durationMs"]
    if "addBatch" not in durations:
        return None
    counted = (progress.get("observedMetrics") or {}).get(ROWS_OUT)
    return FinishedBatch(
        number=progress["batchId"],
        rows_in=progress["numInputRows"],
        rows_out=counted["rows"] if counted else 0,
        behind=lag(progress),
        took_s=durations["triggerExecution"] / 1000,
        state=state(progress),
    )


def format_state(rows: int, size: int) -> str:
    """Return the size of a state for users."""
    return f"{rows:,} rows, {size / 1_000_000:,.1f} MB"


def late_rows(number: int, shown: StateProgress) -> str:
    """Return the warning for the first batch that dropped rows."""
    rows = "1 row" if shown.late_rows == 1 else f"{shown.late_rows:,} rows"
    return (
        f"Warning: batch {number} dropped {rows} as late, the first of this run: their time is before the watermark,"
        f" {shown.watermark}, so no result contains them. A longer watermark delay keeps such rows."
    )


def _of_state(found: StateProgress | None) -> str:
    if found is None:
        return ""
    watermark = "" if found.watermark is None else f", watermark {found.watermark}"
    late = f", {found.late_rows:,} dropped as late" if found.late_rows else ""
    return f"; state {format_state(found.rows, found.bytes)}{watermark}{late}"


class Screen:
    """Shows batches as they finish, and the current activity of the pipeline."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self.batches = 0
        self.rows_in = 0
        self.rows_out = 0
        self.rows_late = 0
        self._status = console.status(Text(f"{name}: starting Spark"))

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def doing(self, what: str) -> None:
        """Show the current activity; only on a terminal, because it changes often."""
        totals = f"{self.batches:,} batches, {self.rows_in:,} rows in, {self.rows_out:,} rows out"
        self._status.update(Text(f"{self._name}: {what}; {totals}"))

    def say(self, sentence: str) -> None:
        """Print a sentence that remains on the screen."""
        self._console.print(Text(sentence), soft_wrap=True)

    def batch(self, ended: FinishedBatch) -> None:
        """Show a finished batch."""
        self.batches += 1
        self.rows_in += ended.rows_in
        self.rows_out += ended.rows_out
        if ended.state is not None and ended.state.late_rows:
            if not self.rows_late:
                self.say(late_rows(ended.number, ended.state))
            self.rows_late += ended.state.late_rows
        behind = "" if ended.behind is None else f", {ended.behind:,} behind"
        self.say(
            f"batch {ended.number}: {ended.rows_in:,} rows in, {ended.rows_out:,} rows out{behind},"
            f" {ended.took_s:.1f} s{_of_state(ended.state)}"
        )

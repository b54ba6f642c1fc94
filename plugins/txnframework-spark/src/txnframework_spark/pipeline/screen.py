"""The display of a running pipeline: a live table on a terminal, otherwise a line for each batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from txnframework_spark.progress import StateProgress, lag, state

ROWS_OUT: Final = "txnframework_rows_out"
"""The name of the metric that counts the rows for the sinks."""

_REFRESHES_A_SECOND: Final = 4
_SHOWN_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A finished batch.

    ``behind``: readable messages after it, None if unknown. ``state``: the state of a stateful plan.
    """

    number: int
    at: str
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
        at=progress["timestamp"],
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


def _cells(shown: FinishedBatch, stateful: bool) -> tuple[str, ...]:
    """Return the cells of a table row after the duration of the batch."""
    if not stateful:
        return (shown.at,)
    if shown.state is None:
        return ("", "", shown.at, "")
    found = shown.state
    return (f"{found.late_rows:,}", format_state(found.rows, found.bytes), shown.at, found.watermark or "")


class Screen:
    """Shows batches as they finish, and the current activity of the pipeline."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._doing = "starting Spark"
        self._shown: deque[FinishedBatch] = deque(maxlen=_SHOWN_MAX)
        self.batches = 0
        self.rows_in = 0
        self.rows_out = 0
        self.rows_late = 0
        self._spinner = Spinner("line", style="cyan")
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=_REFRESHES_A_SECOND)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._spinner = Spinner("line", style="dim")
            self._doing = "stopped"
            self._live.stop()

    def doing(self, what: str) -> None:
        """Show the current activity; only on a terminal, because it changes often."""
        self._doing = what

    def say(self, sentence: str) -> None:
        """Print a sentence that remains on the screen."""
        self._console.print(Text(sentence), soft_wrap=True)

    def batch(self, ended: FinishedBatch) -> None:
        """Show a finished batch."""
        self.batches += 1
        self.rows_in += ended.rows_in
        self.rows_out += ended.rows_out
        self._shown.append(ended)
        if ended.state is not None and ended.state.late_rows:
            if not self.rows_late:
                self.say(late_rows(ended.number, ended.state))
            self.rows_late += ended.state.late_rows
        if not self._console.is_terminal:
            behind = "" if ended.behind is None else f", {ended.behind:,} behind"
            self.say(
                f"batch {ended.number}: {ended.rows_in:,} rows in, {ended.rows_out:,} rows out{behind},"
                f" {ended.took_s:.1f} s{_of_state(ended.state)}"
            )

    def _render(self) -> RenderableType:
        table = Table(box=SIMPLE_HEAD)
        stateful = any(one.state is not None for one in self._shown)
        for title in ("batch", "rows in", "rows out", "behind", "took", *(("late", "state") if stateful else ())):
            table.add_column(title, justify="right")
        for title in ("began", *(("watermark",) if stateful else ())):
            table.add_column(title)
        for one in self._shown:
            behind = "" if one.behind is None else f"{one.behind:,}"
            counts = (f"{one.rows_in:,}", f"{one.rows_out:,}", behind, f"{one.took_s:.1f} s")
            table.add_row(str(one.number), *counts, *_cells(one, stateful))
        line = Table.grid(padding=(0, 1))
        total = f"{self.batches:,} batches, {self.rows_in:,} rows in, {self.rows_out:,} rows out"
        line.add_row(self._spinner, Text(self._name, style="bold"), Text(f"{self._doing}; {total}"))
        return Group(table, line) if self._shown else line

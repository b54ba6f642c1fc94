"""The display of the current step: a live list on a terminal, otherwise a line for each finished step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

_REFRESHES_A_SECOND = 5
_BAR_WIDTH = 40


@dataclass(slots=True)
class _Step:
    title: str
    detail: str = ""
    began: float | None = None
    ended: float | None = None
    ok: bool = True


class Progress:
    """The steps of the demo in order; ``begin`` starts the next one, ``end`` shows its result."""

    def __init__(self, console: Console, titles: Sequence[str]) -> None:
        self._console = console
        self._steps = [_Step(title) for title in titles]
        self._began = time.monotonic()
        self._at = -1
        self._spinner = Spinner("line", style="cyan")
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=_REFRESHES_A_SECOND, auto_refresh=True
        )

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._at >= 0 and self._steps[self._at].ended is None:
            self.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", ok=False)
        if self._console.is_terminal:
            self._live.stop()

    def begin(self, detail: str = "") -> None:
        """Start the next step."""
        self._go_to(self._at + 1, detail)

    def begin_last(self, detail: str = "") -> None:
        """Start the last step and skip those before it."""
        self._go_to(len(self._steps) - 1, detail)

    def _go_to(self, number: int, detail: str) -> None:
        self._at = number
        step = self._steps[number]
        step.began, step.detail = time.monotonic(), detail

    def note(self, detail: str) -> None:
        """Show the state of the current step; only on a terminal, because it changes often."""
        self._steps[self._at].detail = detail

    def end(self, detail: str, ok: bool = True) -> None:
        """Show the result of the current step."""
        step = self._steps[self._at]
        step.ended, step.detail, step.ok = time.monotonic(), detail, ok
        if not self._console.is_terminal:
            seconds = step.ended - (step.began if step.began is not None else step.ended)
            mark = "done" if ok else "FAILED"
            self._console.print(
                Text(f"[{self._at + 1}/{len(self._steps)}] {mark}: {step.title} - {detail} ({seconds:.1f} s)"),
                soft_wrap=True,
            )

    def _render(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(width=7)
        table.add_column(overflow="fold")
        table.add_column(justify="right", width=7)
        for step in self._steps:
            table.add_row(self._mark(step), _words(step), Text(_took(step), style="dim"))
        return Group(table, self._bar())

    def _mark(self, step: _Step) -> RenderableType:
        if step.began is None:
            return Text("")
        if step.ended is None:
            return self._spinner
        return Text("done", style="green") if step.ok else Text("failed", style="bold red")

    def _bar(self) -> RenderableType:
        done = sum(step.ended is not None for step in self._steps)
        line = Table.grid(padding=(0, 2))
        elapsed = Text(f"step {min(done + 1, len(self._steps))} of {len(self._steps)}, {self._elapsed():.0f} s")
        line.add_row(ProgressBar(total=len(self._steps), completed=done, width=_BAR_WIDTH), elapsed)
        return line

    def _elapsed(self) -> float:
        return time.monotonic() - self._began


def _words(step: _Step) -> Text:
    words = Text(step.title, style="dim" if step.began is None else "")
    if step.detail:
        words.append(f" - {step.detail}", style="dim" if step.ended is not None else "cyan")
    return words


def _took(step: _Step) -> str:
    if step.began is None:
        return ""
    return f"{(step.ended if step.ended is not None else time.monotonic()) - step.began:.1f} s"

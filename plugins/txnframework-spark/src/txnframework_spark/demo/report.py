"""The display of the demo: its current step, and its outcome as tables for users or one JSON object for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from txnframework_spark.demo.faults import POINT_MEANINGS
from txnframework_spark.demo.verdict import Finding, OutputVerdict

_REFRESHES_A_SECOND = 5
_BAR_WIDTH = 40


@dataclass(slots=True)
class _Step:
    title: str
    detail: str = ""
    began: float | None = None
    ended: float | None = None
    ok: bool = True


class StepDisplay:
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


FINDINGS_SHOWN_MAX = 8
"""The limit for each kind; a defective run may have thousands."""


@dataclass(frozen=True, slots=True)
class KillOutcome:
    """One planned kill. ``hit``: the pipeline was stopped at the point, the records confirmed it, and it was killed.

    ``reason``: why it missed. ``python`` and ``jvm``: the processes that got SIGKILL.
    """

    point: str
    batch: int
    start: int
    hit: bool
    transaction: str | None = None
    python: int | None = None
    jvm: tuple[int, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SplitOutcome:
    """A segment that was split while ``transaction`` was open; ``written``: it had written to that segment."""

    segment: str
    children: tuple[int, ...]
    transaction: str
    written: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """All actions of the demo and their results; ``errors``: the reasons why the demo was not completed."""

    source: str
    verdict: OutputVerdict
    expected: dict[str, int]
    discarded: int
    starts: int
    seconds: float
    kills: tuple[KillOutcome, ...] = ()
    splits: tuple[SplitOutcome, ...] = ()
    checkpoint_losses: int = 0
    errors: tuple[str, ...] = ()
    directory: str | None = None
    stores: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there was no loss, duplicate, wrong row or partial transaction, and the plan was completed."""
        return self.verdict.exactly_once and not self.errors and all(kill.hit for kill in self.kills)

    def shown_findings(self) -> tuple[Finding, ...]:
        """Return the first findings of each kind."""
        kinds = dict.fromkeys(finding.kind for finding in self.verdict.findings)
        by_kind = ([one for one in self.verdict.findings if one.kind == kind] for kind in kinds)
        return tuple(finding for some in by_kind for finding in some[:FINDINGS_SHOWN_MAX])

    def to_json(self) -> str:
        """Return one line with one JSON object."""
        verdict = self.verdict
        document = {
            "ok": self.ok,
            "input": self.source,
            "rows_in": verdict.rows_in,
            "rows_out": verdict.rows_out.get("enriched", 0),
            "duplicates": verdict.duplicates,
            "lost": verdict.lost,
            "wrong": verdict.wrong,
            "torn": verdict.torn,
            "outputs": {
                output: {"expected": expected, "found": verdict.rows_out.get(output, 0)}
                for output, expected in self.expected.items()
            },
            "discarded": self.discarded,
            "transactions": verdict.transactions,
            "starts": self.starts,
            "kills": [asdict(kill) for kill in self.kills],
            "splits": len(self.splits),
            "split_segments": [asdict(split) for split in self.splits],
            "checkpoint_losses": self.checkpoint_losses,
            "findings": [asdict(finding) for finding in self.shown_findings()],
            "errors": list(self.errors),
            "metadata": self.stores.get("metadata"),
            "ledger": self.stores.get("ledger"),
            "directory": self.directory,
            "seconds": round(self.seconds, 1),
        }
        return json.dumps(document, ensure_ascii=False)

    def print_to(self, console: Console) -> None:
        """Print the tables and the verdict in words."""
        console.print(Group(_fault_table(self), _result_table(self)))
        shown = self.shown_findings()
        for finding in shown:
            console.print(Text(f"  {finding.kind}: {finding.text}", style="red"))
        hidden = len(self.verdict.findings) - len(shown)
        if hidden > 0:
            console.print(Text(f"  and {hidden:,} more", style="red"))
        for error in self.errors:
            console.print(Text(f"  {error}", style="red"))
        console.print(_summary(self))


def _fault_table(outcome: Outcome) -> Table:
    table = Table(title="Faults", box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("start", justify="right")
    table.add_column("killed at")
    table.add_column("batch", justify="right")
    table.add_column("where", overflow="fold")
    table.add_column("hit")
    for kill in outcome.kills:
        hit = Text("yes", style="green") if kill.hit else Text(f"no: {kill.reason}", style="red")
        table.add_row(str(kill.start), kill.point, str(kill.batch), POINT_MEANINGS[kill.point], hit)
    return table


def _result_table(outcome: Outcome) -> Table:
    verdict = outcome.verdict
    table = Table(title="Result", box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("found", justify="right")
    table.add_column("expected", justify="right")
    table.add_row("rows of input", f"{verdict.rows_in:,}", "")
    for output, expected in outcome.expected.items():
        table.add_row(f"rows in {output}", _against(verdict.rows_out.get(output, 0), expected), f"{expected:,}")
    for name in ("duplicates", "lost", "wrong", "torn"):
        label = "torn transactions" if name == "torn" else f"rows {name}" if name != "duplicates" else "duplicate rows"
        table.add_row(label, _against(getattr(verdict, name), 0), "0")
    kills = sum(kill.hit for kill in outcome.kills)
    table.add_row("kills that hit their point", _against(kills, len(outcome.kills)), str(len(outcome.kills)))
    table.add_row("segments split under an open transaction", str(len(outcome.splits)), "")
    table.add_row("checkpoints lost", str(outcome.checkpoint_losses), "")
    table.add_row("transactions visible", f"{verdict.transactions:,}", "")
    table.add_row("rows of aborted transactions (not visible)", f"{outcome.discarded:,}", "")
    return table


def _against(found: int, expected: int) -> Text:
    return Text(f"{found:,}", style="green" if found == expected else "bold red")


def _summary(outcome: Outcome) -> Text:
    took = f"{outcome.seconds:.0f} s, {outcome.starts} starts of Spark"
    if outcome.ok:
        return Text(f"Exactly once: no loss, no duplicates, no partial transactions ({took}).", style="bold green")
    if outcome.verdict.exactly_once:
        return Text(f"The rows are correct, but not all faults were applied as planned ({took}).", style="bold red")
    return Text(f"Not exactly once ({took}).", style="bold red")

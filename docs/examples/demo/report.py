"""What the demo prints: each step when it is done, and its outcome as tables or as one JSON object."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from faults import MEANINGS
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from verdict import KINDS, Finding

FINDINGS_SHOWN_MAX = 8
"""The limit for each kind; a defective run may have thousands."""


class Steps:
    """The steps of the demo."""

    def __init__(self, console: Console, count: int) -> None:
        self._console = console
        self._count = count
        self._number = 0

    @contextmanager
    def step(self, title: str) -> Iterator[list[str]]:
        """Perform a step; it puts its results into the list. A text that begins with `missed` is a failure."""
        self._number += 1
        began = time.monotonic()
        results: list[str] = []
        try:
            with self._console.status(f"step {self._number} of {self._count}: {title}"):
                yield results
        except BaseException:
            results.append("missed: interrupted")
            raise
        finally:
            mark = "FAILED" if any(result.startswith("missed") for result in results) else "done"
            took = f"({time.monotonic() - began:.1f} s)"
            line = f"[{self._number}/{self._count}] {mark}: {title} - {', '.join(results)} {took}"
            self._console.print(Text(line), soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Kill:
    """A planned kill; `reason` says why it missed. `python` and `jvm` are the pids that got SIGKILL."""

    point: str
    batch: int
    start: int
    hit: bool
    transaction: str | None = None
    python: int | None = None
    jvm: Sequence[int] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """A segment that was split while `transaction` was open; `written`: it had written to that segment."""

    segment: str
    children: Sequence[int]
    transaction: str
    written: bool


@dataclass(slots=True)
class Outcome:
    """All that the demo did and found; `errors` are the reasons why it was not completed."""

    input: str
    metadata: str
    ledger: str
    directory: str
    rows_in: int = 0
    outputs: dict[str, dict[str, int]] = field(default_factory=dict)
    transactions: int = 0
    discarded: int = 0
    starts: int = 0
    seconds: float = 0.0
    kills: list[Kill] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)
    checkpoint_losses: int = 0
    findings: list[Finding] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every row arrived exactly once, and every fault was applied as planned."""
        return not self.findings and not self.errors and all(kill.hit for kill in self.kills)

    def count(self, kind: str) -> int:
        return sum(finding.kind == kind for finding in self.findings)

    def shown_findings(self) -> list[Finding]:
        """Return the first findings of each kind."""
        seen: Counter[str] = Counter()
        shown = []
        for finding in self.findings:
            seen[finding.kind] += 1
            if seen[finding.kind] <= FINDINGS_SHOWN_MAX:
                shown.append(finding)
        return shown

    def to_json(self) -> str:
        document: dict[str, Any] = {
            "ok": self.ok,
            **{name: value for name, value in asdict(self).items() if name != "splits"},
            "rows_out": self.outputs["enriched"]["found"],
            **{kind: self.count(kind) for kind in KINDS},
            "splits": len(self.splits),
            "split_segments": [asdict(split) for split in self.splits],
            "findings": [asdict(finding) for finding in self.shown_findings()],
            "seconds": round(self.seconds, 1),
        }
        return json.dumps(document, ensure_ascii=False)

    def print_to(self, console: Console) -> None:
        console.print(self._faults())
        console.print(self._result())
        for finding in self.shown_findings():
            console.print(Text(f"  {finding.kind}: {finding.text}", style="red"))
        if hidden := len(self.findings) - len(self.shown_findings()):
            console.print(Text(f"  and {hidden:,} more", style="red"))
        for error in self.errors:
            console.print(Text(f"  {error}", style="red"))
        console.print(self._summary())

    def _faults(self) -> Table:
        table = titled("Faults", "start", "killed at", "batch", "where", "hit")
        for kill in self.kills:
            hit = Text("yes", style="green") if kill.hit else Text(f"no: {kill.reason}", style="red")
            table.add_row(str(kill.start), kill.point, str(kill.batch), MEANINGS[kill.point], hit)
        return table

    def _result(self) -> Table:
        table = titled("Result", "", "found", "expected")
        table.add_row("rows of input", f"{self.rows_in:,}", "")
        for output, counts in self.outputs.items():
            add_compared(table, f"rows in {output}", counts["found"], counts["expected"])
        labels = ("duplicate rows", "rows lost", "rows wrong", "torn transactions")
        for label, kind in zip(labels, KINDS, strict=True):
            add_compared(table, label, self.count(kind), 0)
        add_compared(table, "kills that hit their point", sum(kill.hit for kill in self.kills), len(self.kills))
        table.add_row("segments split under an open transaction", str(len(self.splits)), "")
        table.add_row("checkpoints lost", str(self.checkpoint_losses), "")
        table.add_row("transactions visible", f"{self.transactions:,}", "")
        table.add_row("rows of aborted transactions (not visible)", f"{self.discarded:,}", "")
        return table

    def _summary(self) -> Text:
        took = f"({self.seconds:.0f} s, {self.starts} starts of Spark)"
        if self.ok:
            return Text(f"Exactly once: no loss, no duplicates, no partial transactions {took}.", style="bold green")
        if not self.findings:
            return Text(f"The rows are correct, but not all faults were applied as planned {took}.", style="bold red")
        return Text(f"Not exactly once {took}.", style="bold red")


def titled(title: str, *columns: str) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def add_compared(table: Table, label: str, found: int, expected: int) -> None:
    style = "green" if found == expected else "bold red"
    table.add_row(label, Text(f"{found:,}", style=style), f"{expected:,}")

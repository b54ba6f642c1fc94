"""The result of a torture run, and its progress on a terminal."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from txnframework_simulation.checkers import INVARIANTS, Violation
from txnframework_simulation.history import Begin, Call, Commit, EventKind, History
from txnframework_simulation.torture.disruptions import Disruptions

SHOWN_MAX = 20
KINDS = "ok: it succeeded; fail: it was refused and has no effect; unknown: no reply arrived, it may have succeeded"


@dataclass
class TortureResult:
    """
    Counts, ``violations`` of the rules, and other ``defects``, such as processes that ended without being killed.
    """

    counts: dict[str, int]
    operations: dict[str, Counter[str]]
    violations: list[Violation]
    defects: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.violations and not self.defects

    def to_json(self) -> bytes:
        """Return the result as JSON, with the events that show each violation."""
        violations = [{"violation": str(one), "events": one.events} for one in self.violations]
        said = {"counts": self.counts, "operations": self.operations, "violations": violations}
        return msgspec.json.format(msgspec.json.encode(said | {"defects": self.defects}))

    def print_to(self, console: Console) -> None:
        """Print the tables of counts, and the first defects and violations."""
        table = Table(box=SIMPLE_HEAD, caption=KINDS, caption_justify="left")
        table.add_column("operation")
        for kind in ("ok", "fail", "unknown"):
            table.add_column(kind, justify="right")
        for name, kinds in sorted(self.operations.items()):
            table.add_row(name, *(str(kinds[kind]) for kind in ("ok", "fail", "unknown")))
        console.print(table)
        facts = Table(box=SIMPLE_HEAD, show_header=False)
        facts.add_column()
        facts.add_column(justify="right")
        for name, count in self.counts.items():
            facts.add_row(name, str(count))
        console.print(facts)
        for defect in self.defects[:SHOWN_MAX]:
            console.print(f"[red]defect:[/red] {escape(defect)}")
        for violation in self.violations[:SHOWN_MAX]:
            console.print(f"[red]violated:[/red] {escape(str(violation))}")
        if len(self.violations) > SHOWN_MAX:
            console.print(f"... and {len(self.violations) - SHOWN_MAX} more")
        if not self.violations:
            console.print(f"none of the {len(INVARIANTS)} rules and of the workload's own rules was violated")


def operations_of(calls: list[Call]) -> dict[str, Counter[str]]:
    """Return how often each operation succeeded, failed, or has an unknown outcome."""
    found: dict[str, Counter[str]] = {}
    for call in calls:
        found.setdefault(type(call.operation).__name__, Counter())[call.kind.value] += 1
    return found


def counts_of(history: History, calls: list[Call]) -> dict[str, int]:
    """Return the counts of a history."""
    kinds = Counter(call.kind for call in calls)
    return {
        "events": len(history.events),
        "operations": len(calls),
        "transactions begun": sum(isinstance(call.operation, Begin) and call.ok for call in calls),
        "transactions committed": sum(isinstance(call.operation, Commit) and call.ok for call in calls),
        "unknown outcomes": kinds[EventKind.UNKNOWN],
        "refused or failed": kinds[EventKind.FAIL],
    }


_REFRESH_SECONDS = 1.0
_PLAIN_SECONDS = 10.0
_ENDS = {b'"kind":"ok"': "done", b'"kind":"fail"': "refused", b'"kind":"unknown"': "unknown"}


class Progress:
    """Counts what the processes append to their histories."""

    def __init__(self, console: Console, parts: Path, seconds: float, disruptions: Disruptions) -> None:
        self._console = console
        self._parts = parts
        self._seconds = seconds
        self._disruptions = disruptions
        self._read: dict[Path, int] = {}
        self._counts = dict.fromkeys(_ENDS.values(), 0)
        self._said_at = 0.0

    async def until(self, end: float) -> None:
        """Print the progress until a time of the monotonic clock."""
        live = self._console.status("") if self._console.is_terminal else nullcontext()
        with live as status:
            while (left := end - time.monotonic()) > 0:
                await asyncio.sleep(min(_REFRESH_SECONDS, left))
                self._count()
                line = self._line(end)
                if status is not None:
                    status.update(line)
                elif time.monotonic() - self._said_at > _PLAIN_SECONDS:
                    self._said_at = time.monotonic()
                    self._console.print(line, highlight=False, soft_wrap=True)  # one line of any length, for a log

    def _line(self, end: float) -> str:
        gone = self._seconds - max(0.0, end - time.monotonic())
        counts = ", ".join(f"{count} {name}" for name, count in self._counts.items())
        disrupted = ", ".join(f"{count} {name}" for name, count in sorted(self._disruptions.counts.items()))
        return f"{gone:.0f} of {self._seconds:.0f} s: {counts}; {disrupted or 'no disruptions yet'}"

    def _count(self) -> None:
        for file in self._parts.glob("*.jsonl"):
            with file.open("rb") as lines:
                lines.seek(self._read.get(file, 0))
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    self._read[file] = self._read.get(file, 0) + len(line)
                    for mark, name in _ENDS.items():
                        self._counts[name] += mark in line

"""What came of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from txnframework_simulation.checkers import INVARIANTS, Violation
from txnframework_simulation.history import Begin, Call, Commit, History, Kind

SHOWN_MAX = 20
KINDS = "ok: it was done; fail: it was refused, and nothing was done; unknown: no answer came, it may have been done"


@dataclass
class Outcome:
    """
    Counts, and everything that was wrong: ``violations`` of the rules, and ``defects``, such as processes that ended by
    themselves.
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
        """Return all of it, with the events that show each violation."""
        violations = [{"violation": str(one), "events": one.events} for one in self.violations]
        said = {"counts": self.counts, "operations": self.operations, "violations": violations}
        return msgspec.json.format(msgspec.json.encode(said | {"defects": self.defects}))

    def print_to(self, console: Console) -> None:
        """Print tables, and the first of what was wrong."""
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
            console.print(f"[red]wrong:[/red] {escape(defect)}")
        for violation in self.violations[:SHOWN_MAX]:
            console.print(f"[red]violated:[/red] {escape(str(violation))}")
        if len(self.violations) > SHOWN_MAX:
            console.print(f"... and {len(self.violations) - SHOWN_MAX} more")
        if not self.violations:
            console.print(f"none of {len(INVARIANTS)} rules, nor of the workload's own, was violated")


def operations_of(calls: list[Call]) -> dict[str, Counter[str]]:
    """Return how often each operation happened, did not, and may have."""
    found: dict[str, Counter[str]] = {}
    for call in calls:
        found.setdefault(type(call.operation).__name__, Counter())[call.kind.value] += 1
    return found


def counts_of(history: History, calls: list[Call]) -> dict[str, int]:
    """Return what a history counts."""
    kinds = Counter(call.kind for call in calls)
    return {
        "events": len(history.events),
        "operations": len(calls),
        "transactions begun": sum(isinstance(call.operation, Begin) and call.ok for call in calls),
        "transactions committed": sum(isinstance(call.operation, Commit) and call.ok for call in calls),
        "unknown outcomes": kinds[Kind.UNKNOWN],
        "refused or failed": kinds[Kind.FAIL],
    }

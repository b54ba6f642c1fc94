"""
The verdict on the outputs; it depends on the evidence only.

* duplicate: a line that an output contains more than once; every copy beyond the first counts.
* lost: a line that an output should contain and does not.
* wrong: an unexpected row, or a row that differs from the result of plain Python.
* torn: a transaction that took effect partially, counted by transaction. Its rows in `enriched` do not match its rows
  in `alerts`, or the input of one of its rows is not acknowledged, or it is not committed. A row without a transaction
  is torn.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rows import ALERTS, ENRICHED

KINDS = ("duplicates", "lost", "wrong", "torn")


@dataclass(frozen=True, slots=True)
class OutputRow:
    """A row as a new consumer received it; `line` is None if the row does not name one."""

    output: str
    txn: str | None
    line: int | None
    value: Any


@dataclass(frozen=True, slots=True)
class Evidence:
    """
    What the verdict depends on: the results of plain Python by output and line, the rows that were received, the lines
    whose input is not acknowledged, and the outcome of each transaction that a row names.
    """

    expected: Mapping[str, Mapping[int, Any]]
    found: tuple[OutputRow, ...]
    unacknowledged: Collection[int]
    outcomes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str
    text: str


def judge(evidence: Evidence) -> list[Finding]:
    """Return every defect; none: exactly once."""
    checks = {"duplicates": duplicates, "lost": lost, "wrong": wrong, "torn": torn}
    return [Finding(kind, text) for kind in KINDS for text in checks[kind](evidence)]


def duplicates(evidence: Evidence) -> Iterator[str]:
    counts = Counter((row.output, row.line) for row in evidence.found if row.line is not None)
    for (output, line), count in counts.items():
        yield from [f"line {line} in {output}, {count} times"] * (count - 1)


def lost(evidence: Evidence) -> Iterator[str]:
    found = {(row.output, row.line) for row in evidence.found}
    for output, lines in evidence.expected.items():
        yield from (f"line {line} in {output}" for line in lines if (output, line) not in found)


def wrong(evidence: Evidence) -> Iterator[str]:
    for row in evidence.found:
        expected = evidence.expected[row.output].get(row.line) if row.line is not None else None
        if expected is None:
            yield f"line {row.line} in {row.output}: unexpected row {row.value}"
        elif row.value != expected:
            yield f"line {row.line} in {row.output}: it is {row.value}, expected {expected}"


def torn(evidence: Evidence) -> Iterator[str]:
    by_txn: dict[str, list[OutputRow]] = defaultdict(list)
    for row in evidence.found:
        if row.txn is None:
            yield f"line {row.line} in {row.output} was written outside of any transaction"
        else:
            by_txn[row.txn].append(row)
    for txn, rows in by_txn.items():
        reason = torn_reason(evidence, txn, rows)
        if reason is not None:
            yield f"transaction {txn}: {reason}"


def torn_reason(evidence: Evidence, txn: str, rows: list[OutputRow]) -> str | None:
    enriched, alerts = (
        {row.line for row in rows if row.output == output and row.line is not None} for output in (ENRICHED, ALERTS)
    )
    if missing := (enriched & evidence.expected[ALERTS].keys()) - alerts:
        return f"line {min(missing)} is in {ENRICHED}, but its alert is not in {ALERTS}"
    if missing := alerts - enriched:
        return f"line {min(missing)} is in {ALERTS}, but not in {ENRICHED}"
    if missing := (enriched | alerts) & set(evidence.unacknowledged):
        return f"line {min(missing)} is visible, but its input is not acknowledged"
    if evidence.outcomes.get(txn) != "COMMITTED":
        return f"its rows are visible, but its outcome is {evidence.outcomes.get(txn, 'unknown')}"
    return None

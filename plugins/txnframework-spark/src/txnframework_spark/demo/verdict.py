"""The judgment of the outputs, pure: it depends on the evidence only.

* *duplicate*: a line that is stored in an output more than once; every copy beyond the first counts.
* *lost*: a line that an output should contain and does not.
* *wrong*: an unexpected row, a row whose value differs from the result of plain Python, or a row that does not name its
  position in the input.
* *torn*: a partially visible transaction, counted by transaction. Its rows in ``enriched`` do not match its rows in
  ``alerts``. Or the input of one of its visible rows is not acknowledged on the subscription's cursor. Or its outcome
  is not COMMITTED. A row without a transaction is torn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from txnframework.model.acks import AckState
from txnframework.model.cursor import Cursor, state_of
from txnframework.model.positions import Position
from txnframework_spark.demo.input import ALERTS, ENRICHED, Value

COMMITTED = "COMMITTED"


@dataclass(frozen=True, slots=True)
class InputPosition:
    """The position of a message in the input."""

    segment: str
    position: Position


@dataclass(frozen=True, slots=True)
class OutputRow:
    """A row as a new consumer received it: ``value`` is its content without its line and its input's position.

    ``line`` and ``place`` are None if the row does not contain them in a readable form.
    """

    output: str
    txn: str | None
    line: int | None
    place: InputPosition | None
    value: Value


@dataclass(frozen=True, slots=True)
class Evidence:
    """All data for the judgment.

    ``expected``: the results of plain Python by output and line. ``places``: the position of each line in the input
    topic. ``cursors``: the cursors of the subscription, by segment. ``outcomes``: the outcome of every transaction that
    a row names.
    """

    expected: Mapping[str, Mapping[int, Value]]
    found: tuple[OutputRow, ...]
    places: Mapping[int, InputPosition]
    cursors: Mapping[str, Cursor]
    outcomes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect: ``kind`` as above, ``text`` for users."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class OutputVerdict:
    """The number of defects of each kind; ``findings`` describes each of them."""

    rows_in: int
    rows_out: Mapping[str, int]
    transactions: int
    duplicates: int
    lost: int
    wrong: int
    torn: int
    findings: tuple[Finding, ...]

    @property
    def exactly_once(self) -> bool:
        """Whether there are no defects."""
        return not (self.duplicates or self.lost or self.wrong or self.torn)


def judge_outputs(evidence: Evidence) -> OutputVerdict:
    """Return the verdict on the evidence."""
    duplicates = tuple(find_duplicates(evidence.found))
    lost = tuple(find_lost(evidence.expected, evidence.found))
    wrong = tuple(find_wrong(evidence))
    torn = find_torn(evidence)
    rows_out = Counter(row.output for row in evidence.found)
    return OutputVerdict(
        rows_in=len(evidence.expected[ENRICHED]),
        rows_out={output: rows_out[output] for output in evidence.expected},
        transactions=len({row.txn for row in evidence.found if row.txn is not None}),
        duplicates=len(duplicates),
        lost=len(lost),
        wrong=len(wrong),
        torn=len(torn),
        findings=(
            *(Finding("duplicate", text) for text in duplicates),
            *(Finding("lost", text) for text in lost),
            *(Finding("wrong", text) for text in wrong),
            *(Finding("torn", f"transaction {txn}: {reason}") for txn, reason in torn.items()),
        ),
    )


def find_duplicates(found: Iterable[OutputRow]) -> Iterator[str]:
    """Yield one text for each copy of a row beyond the first."""
    seen: dict[tuple[str, int], str | None] = {}
    for row in found:
        if row.line is None:
            continue
        if (row.output, row.line) in seen:
            yield f"line {row.line} in {row.output}, by transactions {seen[row.output, row.line]} and {row.txn}"
        seen.setdefault((row.output, row.line), row.txn)


def find_lost(expected: Mapping[str, Mapping[int, Value]], found: Iterable[OutputRow]) -> Iterator[str]:
    """Yield one text for each expected row that is missing."""
    there = {(row.output, row.line) for row in found}
    for output, lines in expected.items():
        yield from (f"line {line} in {output}" for line in lines if (output, line) not in there)


def find_wrong(evidence: Evidence) -> Iterator[str]:
    """Yield one text for each row with wrong content."""
    for row in evidence.found:
        where = f"line {row.line} in {row.output}"
        value = evidence.expected.get(row.output, {}).get(row.line) if row.line is not None else None
        if value is None:
            yield f"{where}: unexpected row"
        elif row.value != value:
            yield f"{where}: it is {dict(row.value)}, expected {dict(value)}"
        elif row.line is not None and row.place != (place := evidence.places.get(row.line)):
            yield f"{where}: it names input position {row.place}, but its input is at {place}"


def find_torn(evidence: Evidence) -> dict[str, str]:
    """Return every partially visible transaction, with the first defect that shows it."""
    rows: dict[str, list[OutputRow]] = {}
    torn: dict[str, str] = {}
    for row in evidence.found:
        if row.txn is None:
            torn[f"(none) of line {row.line} in {row.output}"] = "the row was written outside of any transaction"
        else:
            rows.setdefault(row.txn, []).append(row)
    for txn, written in rows.items():
        reason = _torn_between_outputs(evidence, written) or _torn_from_input(evidence, written)
        if reason is None and evidence.outcomes.get(txn) != COMMITTED:
            reason = f"its rows are visible, but its outcome is {evidence.outcomes.get(txn, 'not known')}"
        if reason is not None:
            torn[txn] = reason
    return torn


def _torn_between_outputs(evidence: Evidence, written: list[OutputRow]) -> str | None:
    enriched = {row.line for row in written if row.output == ENRICHED and row.line is not None}
    alerts = {row.line for row in written if row.output == ALERTS and row.line is not None}
    implied = enriched & evidence.expected[ALERTS].keys()
    if implied - alerts:
        return f"line {min(implied - alerts)} is in {ENRICHED}, but its alert is not in {ALERTS}"
    if alerts - enriched:
        return f"line {min(alerts - enriched)} is in {ALERTS}, but not in {ENRICHED}"
    return None


def _torn_from_input(evidence: Evidence, written: list[OutputRow]) -> str | None:
    """Return the first missing acknowledgment of a row's input, None if there is none.

    The input positions are those of the load, not of the row: a wrong row must not hide a lost acknowledgment.
    """
    for row in written:
        place = evidence.places.get(row.line) if row.line is not None else None
        if place is None:
            continue
        cursor = evidence.cursors.get(place.segment)
        if cursor is None or state_of(cursor, place.position) is not AckState.DELETED:
            return f"line {row.line} is in {row.output}, but its input at {place.position} is not acknowledged"
    return None

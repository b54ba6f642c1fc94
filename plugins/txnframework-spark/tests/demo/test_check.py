"""The judgment can fail: every defect, planted alone into evidence that is whole, is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from txnframework.model.cursor import Cursor
from txnframework.model.partial_entries import PartialEntries
from txnframework.model.positions import Position
from txnframework_spark.demo.input import ALERTS, ENRICHED, Value
from txnframework_spark.demo.verdict import Evidence, InputPosition, OutputRow, OutputVerdict, judge_outputs

SEGMENT = "segment://public/demo/input/0000-ffff-0"
LINES = range(1, 7)
"""Two transactions: lines 1 to 3 and 4 to 6; lines 2 and 5 are alerts."""


def place_of(line: int) -> InputPosition:
    return InputPosition(SEGMENT, Position(0, (line - 1) // 3, (line - 1) % 3))


def row(output: str, line: int) -> OutputRow:
    return OutputRow(output, "a" if line <= 3 else "b", line, place_of(line), {"line": line, "to": output})


def whole() -> Evidence:
    expected: dict[str, dict[int, Value]] = {
        ENRICHED: {line: {"line": line, "to": ENRICHED} for line in LINES},
        ALERTS: {line: {"line": line, "to": ALERTS} for line in (2, 5)},
    }
    return Evidence(
        expected=expected,
        found=tuple(row(output, line) for output, lines in expected.items() for line in lines),
        places={line: place_of(line) for line in LINES},
        cursors={SEGMENT: Cursor(1, Position(0, 1))},
        outcomes={"a": "COMMITTED", "b": "COMMITTED"},
    )


def changed(output: str, at: int, /, **fields: object) -> Evidence:
    """Whole evidence but for one row."""
    evidence = whole()
    found = tuple(
        replace(found, **fields) if (found.output, found.line) == (output, at) else found  # type: ignore[arg-type]
        for found in evidence.found
    )
    return replace(evidence, found=found)


def without(*gone: tuple[str, int]) -> Evidence:
    evidence = whole()
    return replace(evidence, found=tuple(row for row in evidence.found if (row.output, row.line) not in gone))


def counts(verdict: OutputVerdict) -> dict[str, int]:
    """What was found, without what was not."""
    every = {name: getattr(verdict, name) for name in ("duplicates", "lost", "wrong", "torn")}
    return {name: count for name, count in every.items() if count}


def test_whole_evidence_has_no_finding() -> None:
    """Otherwise the other tests would show nothing."""
    verdict = judge_outputs(whole())
    assert counts(verdict) == {}
    assert verdict.exactly_once
    assert verdict.findings == ()
    assert (verdict.rows_in, verdict.rows_out, verdict.transactions) == (6, {ENRICHED: 6, ALERTS: 2}, 2)


def test_a_row_that_stands_twice_is_a_duplicate() -> None:
    """Also in the same transaction."""
    evidence = whole()
    verdict = judge_outputs(replace(evidence, found=(*evidence.found, row(ENRICHED, 1))))
    assert counts(verdict) == {"duplicates": 1}
    assert not verdict.exactly_once


def test_a_batch_written_again_in_another_transaction_is_duplicates_only() -> None:
    """Each of its rows counts; both transactions are whole in themselves."""
    evidence = whole()
    again = tuple(replace(found, txn="c") for found in evidence.found if found.txn == "a")
    outcomes = {**evidence.outcomes, "c": "COMMITTED"}
    assert counts(judge_outputs(replace(evidence, found=evidence.found + again, outcomes=outcomes))) == {
        "duplicates": 4
    }


def test_a_row_that_is_missing_is_lost() -> None:
    """Where its alert is not missing with it, the transaction is torn as well."""
    assert counts(judge_outputs(without((ENRICHED, 1)))) == {"lost": 1}
    assert counts(judge_outputs(without((ENRICHED, 2)))) == {"lost": 1, "torn": 1}


def test_a_transaction_that_is_missing_whole_is_lost_and_not_torn() -> None:
    """Acknowledged input without its output."""
    gone = tuple((found.output, found.line) for found in whole().found if found.txn == "b" and found.line)
    assert counts(judge_outputs(without(*gone))) == {"lost": 4}


def test_a_transaction_visible_in_one_output_only_is_torn() -> None:
    """Whichever of the two it is."""
    assert counts(judge_outputs(without((ALERTS, 2)))) == {"lost": 1, "torn": 1}
    assert counts(judge_outputs(without(*((ENRICHED, line) for line in (4, 5, 6))))) == {"lost": 3, "torn": 1}


def test_an_alert_under_another_transaction_than_its_row_is_torn() -> None:
    """All rows are there, once; still neither of the two transactions is whole."""
    assert counts(judge_outputs(changed(ALERTS, 5, txn="a"))) == {"torn": 2}


def test_a_row_outside_of_any_transaction_is_torn() -> None:
    """And so is the transaction that it is missing from."""
    assert counts(judge_outputs(changed(ALERTS, 5, txn=None))) == {"torn": 2}
    assert counts(judge_outputs(changed(ENRICHED, 1, txn=None))) == {"torn": 1}


@pytest.mark.parametrize(
    "cursors",
    [
        {},
        {SEGMENT: Cursor(1, Position(0, 0))},
        {SEGMENT: Cursor(1, Position(0, 0), partial=PartialEntries.of({Position(0, 1): frozenset({0})}))},
    ],
)
def test_a_visible_transaction_whose_input_is_not_acknowledged_is_torn(cursors: dict[str, Cursor]) -> None:
    """The input of line 4 and later is at or before no cursor."""
    verdict = judge_outputs(replace(whole(), cursors=cursors))
    assert counts(verdict) == {"torn": 1 if cursors else 2}


def test_a_wrong_place_in_a_row_does_not_hide_that_its_input_is_not_acknowledged() -> None:
    """The cursor is held against where the line was loaded to."""
    evidence = replace(changed(ENRICHED, 6, place=place_of(1)), cursors={SEGMENT: Cursor(1, Position(0, 0))})
    assert counts(judge_outputs(evidence)) == {"wrong": 1, "torn": 1}


def test_a_visible_transaction_that_is_not_committed_is_torn() -> None:
    """Aborted, or nowhere to be found."""
    assert counts(judge_outputs(replace(whole(), outcomes={"a": "COMMITTED", "b": "ABORTED"}))) == {"torn": 1}
    assert counts(judge_outputs(replace(whole(), outcomes={"a": "COMMITTED"}))) == {"torn": 1}


def test_a_wrong_value_is_wrong() -> None:
    """And nothing else: the row is there."""
    verdict = judge_outputs(changed(ENRICHED, 3, value={"line": 3, "to": "elsewhere"}))
    assert counts(verdict) == {"wrong": 1}
    assert "line 3 in enriched" in verdict.findings[0].text


def test_a_wrong_place_is_wrong() -> None:
    """A row says where its input stands."""
    assert counts(judge_outputs(changed(ENRICHED, 3, place=place_of(4)))) == {"wrong": 1}
    assert counts(judge_outputs(changed(ENRICHED, 3, place=None))) == {"wrong": 1}


def test_a_row_that_cannot_be_read_is_wrong_and_what_it_stood_for_lost() -> None:
    """It says no line."""
    assert counts(judge_outputs(changed(ENRICHED, 3, line=None, place=None))) == {"wrong": 1, "lost": 1}


def test_a_row_that_nobody_expects_is_wrong() -> None:
    """An alert for a row that is none tears its transaction too, if it is not in enriched under the same."""
    evidence = whole()
    assert counts(judge_outputs(replace(evidence, found=(*evidence.found, row(ALERTS, 1))))) == {"wrong": 1}
    assert counts(judge_outputs(replace(evidence, found=(*evidence.found, row(ENRICHED, 99))))) == {"wrong": 1}


def test_findings_name_each_defect() -> None:
    """So that a person can look."""
    verdict = judge_outputs(without((ALERTS, 2)))
    assert [(finding.kind, finding.text) for finding in verdict.findings] == [
        ("lost", "line 2 in alerts"),
        ("torn", "transaction a: line 2 is in enriched, but its alert is not in alerts"),
    ]

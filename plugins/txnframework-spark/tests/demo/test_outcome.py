"""The end of the demo, for people and for programs."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from txnframework_spark.demo.report import KillOutcome, Outcome, SplitOutcome
from txnframework_spark.demo.verdict import Finding, OutputVerdict
from txnframework_spark.microbatch.pause import COMMITTED, MID_WRITE

WHOLE = OutputVerdict(6, {"enriched": 6, "alerts": 2}, 2, 0, 0, 0, 0, ())
OUTCOME = Outcome(
    source="ratings.txt",
    verdict=WHOLE,
    expected={"enriched": 6, "alerts": 2},
    discarded=3,
    starts=2,
    seconds=12.34,
    kills=(KillOutcome(COMMITTED, 0, 1, hit=True, transaction="ab", python=7, jvm=(8,)),),
    splits=(SplitOutcome("segment://public/demo/enriched/0000-ffff-0", (1, 2), "ab", written=True),),
    checkpoint_losses=1,
)
MISSED = KillOutcome(MID_WRITE, 3, 2, hit=False, reason="its transaction is ABORTED")


def printed(outcome: Outcome) -> str:
    file = io.StringIO()
    outcome.print_to(Console(file=file, width=160, color_system=None))
    return file.getvalue()


def test_json_is_one_object_on_one_line() -> None:
    """With everything that was asked for at the top."""
    text = OUTCOME.to_json()
    assert "\n" not in text
    found = json.loads(text)
    assert found["ok"] is True
    assert {name: found[name] for name in ("rows_in", "rows_out", "duplicates", "lost", "torn", "wrong")} == {
        "rows_in": 6,
        "rows_out": 6,
        "duplicates": 0,
        "lost": 0,
        "torn": 0,
        "wrong": 0,
    }
    assert [(kill["point"], kill["batch"], kill["hit"]) for kill in found["kills"]] == [("committed", 0, True)]
    assert (found["splits"], found["checkpoint_losses"], found["seconds"]) == (1, 1, 12.3)


@pytest.mark.parametrize(
    "outcome",
    [
        replace(OUTCOME, kills=(*OUTCOME.kills, MISSED)),
        replace(OUTCOME, errors=("the pipeline failed",)),
        replace(OUTCOME, verdict=replace(WHOLE, duplicates=1)),
        replace(OUTCOME, verdict=replace(WHOLE, lost=1)),
        replace(OUTCOME, verdict=replace(WHOLE, wrong=1)),
        replace(OUTCOME, verdict=replace(WHOLE, torn=1)),
    ],
)
def test_any_defect_and_any_missed_kill_is_not_ok(outcome: Outcome) -> None:
    """The exit status follows this."""
    assert not outcome.ok
    assert json.loads(outcome.to_json())["ok"] is False
    assert "Exactly once:" not in printed(outcome)


def test_the_table_says_what_was_done_and_what_came_of_it() -> None:
    """In words for people."""
    text = printed(OUTCOME)
    assert "the transaction COMMITTED, Spark's commits/N absent" in text
    assert "rows in alerts" in text
    assert text.rstrip().endswith(
        "Exactly once: no loss, no duplicates, no partial transactions (12 s, 2 starts of Spark)."
    )


def test_findings_are_named_but_not_without_end() -> None:
    """Some of each kind: many lost rows must not hide the one transaction that is torn."""
    lost = tuple(Finding("lost", f"line {line} in enriched") for line in range(50))
    findings = (*lost, Finding("torn", "transaction a: line 3"))
    outcome = replace(OUTCOME, verdict=replace(WHOLE, lost=50, torn=1, findings=findings))
    text = printed(outcome)
    assert "lost: line 7 in enriched" in text
    assert "line 8 in enriched" not in text
    assert "torn: transaction a: line 3" in text
    assert "and 42 more" in text
    assert len(json.loads(outcome.to_json())["findings"]) == 9


def test_a_missed_kill_says_why() -> None:
    """In its row."""
    assert "no: its transaction is ABORTED" in printed(replace(OUTCOME, kills=(MISSED,)))

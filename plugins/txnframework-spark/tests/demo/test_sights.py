"""Whether a kill hits its point is decided by what the records say, not by what the pipeline says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from txnframework_spark.demo.faults import (
    POINT_MEANINGS,
    BatchRecords,
    PauseReport,
    find_contradiction,
    find_report,
    release,
)
from txnframework_spark.microbatch.pause import ACKS_PUT, COMMITTED, MID_WRITE, PLANNED, Pauses

SEGMENT = "segment://public/demo/enriched/0000-ffff-0"
AT: dict[str, BatchRecords] = {
    PLANNED: BatchRecords(planned=True, known_to_spark=False, registered=False),
    MID_WRITE: BatchRecords(True, False, True, "OPEN", (SEGMENT,)),
    ACKS_PUT: BatchRecords(True, False, True, "OPEN", (SEGMENT,), 2),
    COMMITTED: BatchRecords(True, False, True, "COMMITTED", (SEGMENT,), 2),
}


@pytest.mark.parametrize("point", POINT_MEANINGS)
def test_what_should_be_true_at_a_point_is_a_hit(point: str) -> None:
    """Also when the operations of a committed transaction are settled already."""
    assert find_contradiction(point, AT[point]) is None
    assert find_contradiction(COMMITTED, replace(AT[COMMITTED], writes=(), acks=0)) is None


@pytest.mark.parametrize("point", POINT_MEANINGS)
def test_what_is_true_at_another_point_is_a_miss(point: str) -> None:
    """No two points are the same moment."""
    for other in POINT_MEANINGS:
        if other != point:
            assert find_contradiction(point, AT[other]) is not None


@pytest.mark.parametrize("point", POINT_MEANINGS)
def test_a_batch_that_spark_has_not_planned_or_knows_as_done_is_a_miss(point: str) -> None:
    """Before offsets/N and after commits/N there is nothing to hit."""
    assert find_contradiction(point, replace(AT[point], planned=False)) == "Spark has not planned the batch"
    known = find_contradiction(point, replace(AT[point], known_to_spark=True))
    assert known == "Spark has already recorded the batch as committed"


@pytest.mark.parametrize("state", ["ABORTED", None])
def test_a_transaction_that_has_ended_otherwise_is_a_miss(state: str | None) -> None:
    """Aborted, or unknown."""
    for point in (MID_WRITE, ACKS_PUT, COMMITTED):
        assert find_contradiction(point, replace(AT[point], state=state)) == f"its transaction is {state}"


def test_a_report_is_found_by_point_and_batch(tmp_path: Path) -> None:
    """As the pipeline's processes write them; a released point does not hold them."""
    pauses = Pauses.parse(f"{MID_WRITE}@3;{tmp_path}")
    release(tmp_path, MID_WRITE, 3)
    pauses.reach(MID_WRITE, 3, run="r", txn="ab", query="q")
    found = find_report(tmp_path, MID_WRITE, 3)
    assert found is not None
    assert found == PauseReport(MID_WRITE, 3, found.pid, "r", "ab")
    assert find_report(tmp_path, MID_WRITE, 33) is None
    assert find_report(tmp_path, PLANNED, 3) is None

"""What a query's progress says, also where Spark leaves things out."""

from __future__ import annotations

import json
from typing import Any

import pytest

import txnframework_spark
from txnframework_spark.progress import StateProgress, lag, state, unacknowledged

OFFSET = {"format": 1, "topics": {}, "lag": {"messages": 4, "topics": {}}}


def progress(*offsets: Any, **changed: Any) -> dict[str, Any]:
    return {"sources": [{"latestOffset": offset} for offset in offsets], **changed}


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (None, None),  # query.lastProgress before the first one
        (progress(json.dumps(OFFSET)), 4),
        (progress(json.dumps(OFFSET), OFFSET), 8),
        (progress(None), None),  # the first batch after a start that runs one again
        (progress("null"), None),
        (progress(""), None),
        (progress("17"), None),
        (progress(json.dumps({"format": 1, "topics": {}})), None),
        (progress(json.dumps(OFFSET), None), None),
        (progress(), None),
        ({"sources": [{}]}, None),
    ],
)
def test_the_lag_is_a_number_or_none(told: dict[str, Any] | None, found: int | None) -> None:
    """The documented expression raises nowhere."""
    assert lag(told) == found
    assert txnframework_spark.lag is lag


def test_the_state_is_that_of_all_operators() -> None:
    one = {"numRowsDroppedByWatermark": 2, "numRowsTotal": 10, "memoryUsedBytes": 100}
    told = progress(stateOperators=[one, one], eventTime={"watermark": "2026-01-01T00:00:00.000Z"})
    assert state(told) == StateProgress("2026-01-01T00:00:00.000Z", 4, 20, 200)
    assert state(progress(stateOperators=[one])) == StateProgress(None, 2, 10, 100)
    assert state(progress(stateOperators=[])) is None
    assert state(progress()) is None


def test_what_nobody_acknowledged_is_told() -> None:
    assert unacknowledged(progress(json.dumps({**OFFSET, "unacknowledged": {"topic://a": 2}}), None)) == {
        "topic://a": 2
    }

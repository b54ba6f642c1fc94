"""Filters of a batch read: those that are claimed are applied wholly, the others go back to Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from txnframework.model.positions import EARLIEST, Position
from txnframework_spark.source.filters import entry_conditions, match_mask, may_match, narrow_range, split_filters

TOPIC = "topic://public/default/in"
LEDGER, ENTRY, INDEX = ("offset", "ledger"), ("offset", "entry"), ("offset", "index")
TIMES_MS = np.array([2_000, 1_000, 3_000, 2_000], dtype=np.int64)


def at(milliseconds: int, microseconds: int = 0) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).replace(
        microsecond=milliseconds % 1000 * 1000 + microseconds
    )


def kept(*filters: Filter) -> list[int]:
    conditions, left = split_filters(filters)
    assert left == []
    found = match_mask(entry_conditions(conditions), Position(3, 7), len(TIMES_MS), memoryview(TIMES_MS))
    return list(range(len(TIMES_MS))) if found is None else np.nonzero(found)[0].tolist()


@pytest.mark.parametrize(
    "given",
    [
        EqualTo(("key",), b"k"),
        EqualTo(("value",), b"v"),
        EqualTo(("topic",), None),
        In(("topic",), ("a", None)),
        Not(In(("segment",), (1, None))),
        EqualTo(("segment",), True),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),
        GreaterThan(("timestamp",), "2026"),
        IsNotNull(("key",)),
        IsNull(("__txn",)),
        StringContains(("headers", "key"), "a"),
        EqualTo(("offset", "other"), 1),
    ],
)
def test_what_cannot_be_applied_wholly_is_left_to_spark(given: Filter) -> None:
    """By reference: Spark looks for the very objects."""
    conditions, left = split_filters([IsNotNull(("topic",)), given])
    assert conditions == ()
    assert left == [given]
    assert left[0] is given


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (EqualTo(("topic",), TOPIC), True),
        (EqualTo(("topic",), "in"), False),
        (Not(EqualTo(("topic",), TOPIC)), False),
        (EqualNullSafe(("topic",), TOPIC), True),
        (In(("topic",), ("a", TOPIC)), True),
        (StringStartsWith(("topic",), "topic://public"), True),
        (StringEndsWith(("topic",), "out"), False),
        (Not(StringContains(("topic",), "/default/")), False),
        (LessThan(("topic",), "u"), True),
        (In(("segment",), (1, 2)), False),
        (GreaterThanOrEqual(("segment",), 5), True),
        (IsNull(("topic",)), False),
        (Not(IsNull(("value",))), True),
        (IsNull(("timestamp",)), False),
    ],
)
def test_segments_that_can_have_nothing_are_not_read(given: Filter, expected: bool) -> None:
    assert may_match(split_filters([given])[0], TOPIC, 5) is expected


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(LEDGER, 4)], (Position(4, -1), Position(5, -1))),
        ([GreaterThan(LEDGER, 4)], (Position(5, -1), Position(9, 3))),
        ([GreaterThanOrEqual(LEDGER, 4), LessThan(LEDGER, 6)], (Position(4, -1), Position(6, -1))),
        ([LessThanOrEqual(LEDGER, 40)], (EARLIEST, Position(9, 3))),
        ([Not(EqualTo(LEDGER, 4)), EqualTo(ENTRY, 1)], (EARLIEST, Position(9, 3))),
    ],
)
def test_ledgers_narrow_the_range(filters: list[Filter], expected: tuple[Position, Position]) -> None:
    assert narrow_range(split_filters(filters)[0], EARLIEST, Position(9, 3)) == expected


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([GreaterThan(("timestamp",), at(2_000))], [2]),
        ([GreaterThanOrEqual(("timestamp",), at(2_000))], [0, 2, 3]),
        ([GreaterThan(("timestamp",), at(1_999, 999))], [0, 2, 3]),
        ([EqualTo(("timestamp",), at(2_000, 1))], []),
        ([Not(In(("timestamp",), (at(1_000), at(3_000))))], [0, 3]),
        ([LessThan(INDEX, 2)], [0, 1]),
        ([LessThan(INDEX, 3), GreaterThanOrEqual(("timestamp",), at(2_000))], [0, 2]),
        ([EqualTo(ENTRY, 7), EqualTo(LEDGER, 3)], [0, 1, 2, 3]),
        ([Not(EqualTo(ENTRY, 7))], []),
        ([In(LEDGER, (4, 5))], []),
        ([], [0, 1, 2, 3]),
    ],
)
def test_each_message_is_judged_by_its_own_time_and_place(filters: list[Any], expected: list[int]) -> None:
    """Times need not grow from message to message."""
    assert kept(*filters) == expected

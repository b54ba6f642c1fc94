from __future__ import annotations

from txnframework.broker.dispatch.durable_counts import RecoveredCounts, highest, recovered
from txnframework.model import Position
from txnframework.model.cursor import Cursor
from txnframework.model.records import DeliveryCountsRecord

CURSOR = Cursor(3, Position(1, 1))
DONE, FIRST, SECOND = Position(1, 1, 0), Position(1, 2, 0), Position(1, 3, 0)


def _record(dispatch: str, *handed_out: Position, alone: bool = False, incarnation: int = 3) -> DeliveryCountsRecord:
    counts = {str(DONE): 5, str(FIRST): 2}
    return DeliveryCountsRecord(
        incarnation=incarnation,
        dispatch=dispatch,
        counts=counts,
        handed_out=[str(one) for one in handed_out],
        alone=alone,
    )


def test_a_dispatch_that_ended_by_itself() -> None:
    """The counts of messages that are not acknowledged; nothing is a suspect."""
    assert recovered(None, CURSOR) == RecoveredCounts({})
    assert recovered(_record(""), CURSOR) == RecoveredCounts({FIRST: 2})


def test_a_dispatch_that_did_not() -> None:
    """What it had handed out is suspect, and counts if it was alone."""
    assert recovered(_record("one"), CURSOR) == RecoveredCounts({FIRST: 2}, is_watched=True)
    both = recovered(_record("one", DONE, FIRST, SECOND), CURSOR)
    assert both == RecoveredCounts({FIRST: 2}, frozenset({FIRST, SECOND}), is_watched=True)
    assert recovered(_record("one", SECOND, alone=True), CURSOR).counts == {FIRST: 2, SECOND: 1}
    assert recovered(_record("one", FIRST, alone=True), CURSOR).counts == {FIRST: 3}
    assert recovered(_record("one", DONE, alone=True), CURSOR).counts == {FIRST: 2}


def test_a_subscription_that_was_moved() -> None:
    """Its messages are delivered as if for the first time; what ended a process may come again all the same."""
    assert recovered(_record("", incarnation=2), CURSOR) == RecoveredCounts({})
    assert recovered(_record("one", FIRST, alone=True, incarnation=2), CURSOR) == RecoveredCounts({}, is_watched=True)


def test_the_highest_counts_are_kept() -> None:
    """The record is bounded."""
    counts = {FIRST: 1, SECOND: 3, DONE: 3}
    assert highest(counts, 2) == {str(DONE): 3, str(SECOND): 3}

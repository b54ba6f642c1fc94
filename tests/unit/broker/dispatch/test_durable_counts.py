from __future__ import annotations

import asyncio
from typing import Any, cast

from txnframework.broker import DurableCounts
from txnframework.broker.dispatch.deliveries import Deliveries
from txnframework.broker.dispatch.durable_counts import RecoveredCounts, highest, recovered
from txnframework.errors import VersionMismatch
from txnframework.model import Key, Position, Put, Record
from txnframework.model.cursor import Cursor
from txnframework.model.records import DeliveryCountsRecord, decode

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


class SlowRecord:
    """A store of one record, whose writes wait while ``is_slow``."""

    def __init__(self) -> None:
        self.record: Record | None = None
        self.is_slow = False
        self.go_on = asyncio.Event()

    async def get(self, _: Key) -> Record | None:
        return self.record

    async def put(self, write: Put) -> int:
        if self.is_slow:
            self.is_slow = False
            await self.go_on.wait()
        version = 0 if self.record is None else self.record.version
        if self.record is not None and write.expected != version:
            raise VersionMismatch(write.key, version)
        self.record = Record(write.key, write.value, version + 1)
        return version + 1


def test_a_write_that_is_delayed() -> None:
    """Two consumers of one process record deliveries: the counts of the later one stay, whichever write is slower."""

    async def work() -> None:
        store, deliveries = SlowRecord(), Deliveries(lambda _: None, delays=False)
        counting = DurableCounts(cast("Any", store), "segment", "subscription", "one", deliveries)
        await counting.begin(CURSOR)
        deliveries.remember({FIRST: 1})
        store.is_slow = True
        delayed = asyncio.ensure_future(counting.record(3, [(FIRST, 1)], alone=False))
        await asyncio.sleep(0)
        deliveries.remember({FIRST: 2})
        later = asyncio.ensure_future(counting.record(3, [(SECOND, 2)], alone=False))
        for _ in range(10):
            await asyncio.sleep(0)
        store.go_on.set()
        await asyncio.gather(delayed, later)
        assert store.record is not None
        assert decode(DeliveryCountsRecord, store.record).counts == {str(FIRST): 2}

    asyncio.run(work())

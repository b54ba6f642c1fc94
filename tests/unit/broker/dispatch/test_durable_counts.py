from __future__ import annotations

import asyncio
from typing import Any, cast

from txnframework.broker import DurableCounts
from txnframework.broker.dispatch.deliveries import Deliveries
from txnframework.broker.dispatch.durable_counts import PRESUMED_MAX, RecoveredCounts, highest, recovered
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
    """The record has the counts of unacknowledged messages, and no suspects."""
    assert recovered(None, CURSOR) == RecoveredCounts({})
    assert recovered(_record(""), CURSOR) == RecoveredCounts({FIRST: 2})


def test_a_dispatch_that_did_not() -> None:
    """The delivered messages are suspects; a single one is presumed to have ended its process."""
    assert recovered(_record("one"), CURSOR) == RecoveredCounts({FIRST: 2}, watched="one")
    both = recovered(_record("one", DONE, FIRST, SECOND), CURSOR)
    assert both == RecoveredCounts({FIRST: 2}, {}, frozenset({FIRST, SECOND}), "one")
    alone = recovered(_record("one", SECOND, alone=True), CURSOR)
    assert alone == RecoveredCounts({FIRST: 2}, {"one": SECOND}, frozenset({SECOND}), "one")
    assert alone.counts == {FIRST: 2}, "it may live, and has not had time to say so"
    assert not recovered(_record("one", DONE, alone=True), CURSOR).presumed


def test_a_presumed_death() -> None:
    """The death counts from the second dispatch after it, until the message is finished.

    The number of deaths is limited.
    """
    later = _record("two", FIRST, alone=True)
    later.presumed = {"one": str(FIRST), "zero": str(DONE)}
    assert recovered(later, CURSOR).presumed == {"one": FIRST, "two": FIRST}
    assert recovered(later, CURSOR).counts == {FIRST: 3}
    later.dispatch, later.handed_out, later.alone = "", [], False
    assert recovered(later, CURSOR).counts == {FIRST: 3}
    later.presumed = {f"{number}": str(SECOND) for number in range(PRESUMED_MAX + 2)}
    found = recovered(later, CURSOR)
    assert (len(found.presumed), found.settled[SECOND]) == (PRESUMED_MAX, 2)
    assert found.counts == {FIRST: 2, SECOND: PRESUMED_MAX + 2}


def test_a_subscription_that_was_moved() -> None:
    """Its messages start with a count of zero; presumed deaths may be repeated."""
    assert recovered(_record("", incarnation=2), CURSOR) == RecoveredCounts({})
    assert recovered(_record("one", FIRST, alone=True, incarnation=2), CURSOR) == RecoveredCounts({}, watched="one")


def test_the_highest_counts_are_kept() -> None:
    """The record keeps the highest counts within its limit."""
    counts = {FIRST: 1, SECOND: 3, DONE: 3}
    assert highest(counts, 2) == {str(DONE): 3, str(SECOND): 3}


class OneRecord:
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

    async def delete(self, key: Key, expected: int) -> None:
        if self.record is None or expected != self.record.version:
            raise VersionMismatch(key, None if self.record is None else self.record.version)
        self.record = None


def _dispatch(store: OneRecord, token: str) -> tuple[DurableCounts, Deliveries]:
    deliveries = Deliveries(lambda _: None, delays=False)
    return DurableCounts(cast("Any", store), "segment", "subscription", token, deliveries), deliveries


async def test_a_process_that_lives_is_not_counted() -> None:
    """
    The process notices the loss of its lease late. It removes the presumed deaths of its messages, and nothing else.

    A dispatch that has begun in between does not store the presumption again, whatever it stores.
    """
    store = OneRecord()
    dispatches = {token: _dispatch(store, token) for token in ("one", "two", "three", "four")}
    counts = {}
    for token, (counting, deliveries) in dispatches.items():
        counts[token] = await counting.begin(CURSOR)
        deliveries.remember(counts[token])
        if token == "four":
            await dispatches["one"][0].end(3, {})
        await counting.record(3, [(FIRST, 1)], alone=True)
    assert counts == {"one": {}, "two": {}, "three": {FIRST: 1}, "four": {FIRST: 2}}
    (counting, deliveries) = dispatches["four"]
    await dispatches["three"][0].end(3, {})
    await counting.record(3, [(FIRST, 1)], alone=True)
    assert store.record is not None
    assert decode(DeliveryCountsRecord, store.record).presumed == {"two": str(FIRST)}
    await counting.end(3, deliveries.redeliveries())
    counting, deliveries = _dispatch(store, "five")
    assert await counting.begin(CURSOR) == {FIRST: 1}, "of the process that died"
    deliveries.remember({FIRST: 2})  # its handler failed once
    counting.finished([SECOND])
    await counting.end(3, deliveries.redeliveries())
    await dispatches["two"][0].end(3, {})
    counting, deliveries = _dispatch(store, "six")
    assert await counting.begin(CURSOR) == {FIRST: 1}, "of the handler that failed"
    counting.finished([FIRST])
    await counting.end(3, {})
    assert store.record is None


async def test_a_write_that_is_delayed() -> None:
    """Two consumers of one process record deliveries: the counts of the later one stay, whichever write is slower."""
    store, deliveries = OneRecord(), Deliveries(lambda _: None, delays=False)
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

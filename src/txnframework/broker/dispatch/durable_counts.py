"""
Delivery counts that survive the process, and the detection of messages that end it.

The record of a subscription on a segment holds the counts of its unacknowledged messages. It is not written for every
delivery. It is written

* when a dispatch begins and ends. A dispatch that finds the mark of another one knows that this one did not end by
  itself: its process died, or lost its lease.
* before a message is received that was received before, and before a *suspect* is received.
* before each of the next messages is received, after a dispatch that did not end by itself. So if the process dies
  again, the next dispatch knows what it was handling. These messages are its suspects, and are received one at a time.

A process that dies counts for a message only if this was the only message that its consumer had. So a message that
ends every process is counted from its third delivery on at the latest, and its neighbours never are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from txnframework.broker.coordination import expected_version, update_record
from txnframework.broker.dispatch.deliveries import DETACHED, Deliveries, HeldMessage, MessageState
from txnframework.interfaces import IMetadataStore
from txnframework.model import paths, records
from txnframework.model.acks import AckState
from txnframework.model.cursor import Cursor, state_of
from txnframework.model.metadata import Put, Record
from txnframework.model.positions import Position
from txnframework.model.records import DeliveryCountsRecord

COUNTS_MAX = 1_000
"""The number of messages whose counts are stored; the highest counts are kept."""
WATCHED_MAX = 1_000
"""The number of messages that are recorded after a dispatch that did not end by itself."""

NumberedDelivery = tuple[Position, int]
"""A message's position and the number of its delivery."""


@dataclass(frozen=True, slots=True)
class RecoveredCounts:
    """What a dispatch takes over from the one before it; ``is_watched``: that one did not end by itself."""

    counts: Mapping[Position, int]
    suspects: frozenset[Position] = frozenset()
    is_watched: bool = False


def recovered(record: DeliveryCountsRecord | None, cursor: Cursor) -> RecoveredCounts:
    """Return what a record says about messages that are not acknowledged yet."""
    if record is None:
        return RecoveredCounts({})
    is_watched = bool(record.dispatch)
    if record.incarnation != cursor.incarnation:
        return RecoveredCounts({}, is_watched=is_watched)
    counts = _left({Position.parse(at): count for at, count in record.counts.items()}, cursor)
    if not is_watched:
        return RecoveredCounts(counts)
    suspects = frozenset(_left(dict.fromkeys(map(Position.parse, record.handed_out), 0), cursor))
    if record.alone:
        counts |= {at: counts.get(at, 0) + 1 for at in suspects}
    return RecoveredCounts(counts, suspects, is_watched=True)


def _left(counts: dict[Position, int], cursor: Cursor) -> dict[Position, int]:
    return {at: count for at, count in counts.items() if state_of(cursor, at) is not AckState.DELETED}


def highest(counts: Mapping[Position, int], messages_max: int = COUNTS_MAX) -> dict[str, int]:
    """Return the counts to store: the highest ones, by position."""
    kept = sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:messages_max]
    return {str(at): count for at, count in sorted(kept)}


class DurableCounts:
    """
    The record of one dispatch, which its ``token`` identifies.

    A write is refused once another dispatch has begun. This dispatch has then lost its lease, and counts in memory
    only.
    """

    def __init__(
        self, store: IMetadataStore, segment: str, subscription: str, token: str, deliveries: Deliveries
    ) -> None:
        self.suspects: set[Position] = set()
        """Messages that may have ended an earlier process, and are not finished."""
        self._store = store
        self._key = paths.delivery_counts_key(segment, subscription)
        self._token = token
        self._deliveries = deliveries
        self._watched_left = 0
        self._is_replaced = False
        self._recording = asyncio.Lock()
        # The messages that the record names as handed out, each with the number of that delivery.
        self._recorded: dict[Position, int] = {}

    async def begin(self, cursor: Cursor) -> Mapping[Position, int]:
        """
        Mark the record with this dispatch, and return the counts of earlier ones.

        What an earlier dispatch left is written with its counts raised, in the same write. So it counts once, even if
        this process dies at once.
        """
        found = RecoveredCounts({})

        async def mark(record: Record | None) -> Put | None:
            nonlocal found
            stored = None if record is None else _decoded(record)
            if stored is not None and stored.dispatch == self._token:
                return None  # the outcome of the write was unknown, and it was applied
            found = recovered(stored, cursor)
            after = self._document(cursor.incarnation, found.counts, found.suspects)
            return Put(self._key, records.encode(after), expected_version(record))

        await update_record(self._store, self._key, mark)
        self.suspects = set(found.suspects)
        self._watched_left = WATCHED_MAX if found.is_watched else 0
        return found.counts

    def must_record(self, position: Position, delivery: int) -> bool:
        """Return whether a delivery must be recorded before the user receives it."""
        held = self._deliveries.messages.get(position)
        if held is None or held.delivery != delivery or self._recorded.get(position) == delivery or self._is_replaced:
            return False
        return held.redeliveries > 0 or position in self.suspects or self._watched_left > 0

    async def record(self, incarnation: int, deliveries: Iterable[NumberedDelivery], *, alone: bool) -> None:
        """
        Record deliveries; ``alone``: the consumer has no other message.

        :raises Unavailable: nothing is recorded.
        :raises OutcomeUnknown: the deliveries may be recorded; record them again.
        """
        # Without this order, a write that is delayed would replace the counts of a later one with its own, older ones.
        async with self._recording:
            await self._record(incarnation, dict(deliveries), alone)

    async def _record(self, incarnation: int, new: dict[Position, int], alone: bool) -> None:
        given = self._given()
        handed_out = {at: number for at, number in self._recorded.items() if at in given} | new
        is_alone = alone and len(new) == 1 and not given - set(new)
        after = self._document(incarnation, self._deliveries.redeliveries(), handed_out, alone=is_alone)

        async def replaced(record: Record | None) -> Put | None:
            if record is None or _decoded(record).dispatch != self._token:
                self._is_replaced = True
                return None
            return Put(self._key, records.encode(after), record.version)

        await update_record(self._store, self._key, replaced)
        self._recorded = handed_out
        self._watched_left = max(0, self._watched_left - len(new))

    def finished(self, positions: Iterable[Position]) -> None:
        """Note that messages are acknowledged."""
        self.suspects.difference_update(positions)

    async def end(self, incarnation: int, counts: Mapping[Position, int]) -> None:
        """Remove the mark of this dispatch, and store the counts for the next one."""
        record = await self._store.get(self._key)
        if record is None or _decoded(record).dispatch != self._token:
            return
        if counts:
            after = DeliveryCountsRecord(incarnation=incarnation, counts=highest(counts))
            await self._store.put(Put(self._key, records.encode(after), record.version))
        else:
            await self._store.delete(self._key, record.version)

    def given(self, consumer_id: int) -> int:
        """Return the number of messages that a consumer's user has received and not finished."""
        return sum(one.given_to == consumer_id and _is_received(one) for one in self._deliveries.messages.values())

    def _given(self) -> set[Position]:
        return {one.position for one in self._deliveries.messages.values() if _is_received(one)}

    def _document(
        self, incarnation: int, counts: Mapping[Position, int], handed_out: Iterable[Position], *, alone: bool = False
    ) -> DeliveryCountsRecord:
        last = sorted(handed_out)[:COUNTS_MAX]
        return DeliveryCountsRecord(
            incarnation=incarnation,
            dispatch=self._token,
            counts=highest(counts),
            handed_out=[str(at) for at in last],
            alone=alone,
        )


def _is_received(held: HeldMessage) -> bool:
    """Return whether a user has received the latest delivery of a message, and has not finished it."""
    return held.state is MessageState.DELIVERED and held.received == held.delivery and held.given_to != DETACHED


def _decoded(record: Record) -> DeliveryCountsRecord:
    return records.decode(DeliveryCountsRecord, record)

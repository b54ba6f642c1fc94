"""
Delivery counts that survive the process, and the detection of messages that end it.

The record of a subscription on a segment holds the counts of its unacknowledged messages. It is not written for every
delivery. It is written

* when a dispatch begins and ends. A dispatch that finds the mark of another one knows that this one did not end by
  itself: its process died, or lost its lease and may live.
* before a message is received that was received before, and before a *suspect* is received.
* before each of the next messages is received, after a dispatch that did not end by itself. So if the process dies
  again, the next dispatch knows what it was handling. These messages are its suspects, and are received one at a time.

A process that dies counts for a message only if this was the only message that its consumer had. So the neighbours of
a message that ends every process never count. The death of a process looks like the loss of its lease at first. So it
is *presumed*, and counts from the next dispatch but one on. A process that lives learns that it lost its lease,
and then removes the presumption, also from later dispatches. So a message that ends every process counts from its
fourth delivery on at the latest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from txnframework.broker.coordination import expected_version, update_record
from txnframework.broker.dispatch.deliveries import DETACHED, Deliveries, HeldMessage, MessageState
from txnframework.errors import VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model import paths, records
from txnframework.model.acks import AckState
from txnframework.model.cursor import Cursor, state_of
from txnframework.model.metadata import Put, Record
from txnframework.model.positions import Position
from txnframework.model.records import DeliveryCountsRecord

COUNTS_MAX = 1_000
"""The number of messages whose counts are stored; the highest counts are kept."""
PRESUMED_MAX = 100
"""The number of presumed deaths that are stored; of older ones only the count is kept."""
WATCHED_MAX = 1_000
"""The number of messages that are recorded after a dispatch that did not end by itself."""

NumberedDelivery = tuple[Position, int]
"""A message's position and the number of its delivery."""


@dataclass(frozen=True, slots=True)
class RecoveredCounts:
    """
    What a dispatch takes over from earlier ones.

    * ``settled``: the counts without presumed deaths.
    * ``presumed``: by the token of a dispatch that did not end by itself, the message that its consumer had alone.
    * ``suspects``: the messages that the dispatch before this one may have been handling.
    * ``watched``: the token of the dispatch before this one, if that one did not end by itself.
    """

    settled: Mapping[Position, int]
    presumed: Mapping[str, Position] = field(default_factory=dict)
    suspects: frozenset[Position] = frozenset()
    watched: str = ""

    @property
    def charged(self) -> Counter[Position]:
        """The presumed deaths that count: the process before this one has not had time yet to say that it lives."""
        return Counter(at for token, at in self.presumed.items() if token != self.watched)

    @property
    def counts(self) -> dict[Position, int]:
        """The counts with which the messages are delivered."""
        return dict(Counter(self.settled) + self.charged)


def recovered(record: DeliveryCountsRecord | None, cursor: Cursor) -> RecoveredCounts:
    """Return what a record says about messages that are not acknowledged yet."""
    if record is None:
        return RecoveredCounts({})
    if record.incarnation != cursor.incarnation:
        return RecoveredCounts({}, watched=record.dispatch)
    settled = Counter(_left({Position.parse(at): count for at, count in record.counts.items()}, cursor))
    handed_out = map(Position.parse, record.handed_out)
    suspects = frozenset(_left(dict.fromkeys(handed_out, 0), cursor)) if record.dispatch else frozenset[Position]()
    presumed = {token: at for token, at in _presumed(record).items() if state_of(cursor, at) is not AckState.DELETED}
    if record.alone and suspects:
        presumed[record.dispatch] = min(suspects)  # there is one
    for token in tuple(presumed)[:-PRESUMED_MAX]:
        settled[presumed.pop(token)] += 1
    return RecoveredCounts(settled, presumed, suspects, record.dispatch)


def _presumed(record: DeliveryCountsRecord) -> dict[str, Position]:
    stored = {} if record.presumed is msgspec.UNSET else record.presumed
    return {token: Position.parse(at) for token, at in stored.items()}


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
        self._charged: Counter[Position] = Counter()
        self._watched_left = 0
        self._is_replaced = False
        self._recording = asyncio.Lock()
        # The messages that the record names as handed out, each with the number of that delivery.
        self._recorded: dict[Position, int] = {}

    async def begin(self, cursor: Cursor) -> Mapping[Position, int]:
        """
        Mark the record with this dispatch, and return the counts of earlier ones.

        What earlier dispatches left is written with its counts raised, in the same write. So it counts once, even if
        this process dies at once.
        """
        found = RecoveredCounts({})

        async def mark(record: Record | None) -> Put | None:
            nonlocal found
            stored = None if record is None else _decoded(record)
            if stored is not None and stored.dispatch == self._token:
                return None  # the outcome of the write was unknown, and it was applied
            found = recovered(stored, cursor)
            after = self._document(cursor.incarnation, found.settled, found.suspects, found.presumed)
            return Put(self._key, records.encode(after), expected_version(record))

        await update_record(self._store, self._key, mark)
        self.suspects, self._charged = set(found.suspects), found.charged
        self._watched_left = WATCHED_MAX if found.watched else 0
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
        counts = self._settled(self._deliveries.redeliveries())

        async def replaced(record: Record | None) -> Put | None:
            stored = None if record is None else _decoded(record)
            if record is None or stored is None or stored.dispatch != self._token:
                self._is_replaced = True
                return None
            after = self._document(incarnation, counts, handed_out, self._still_presumed(stored), alone=is_alone)
            return Put(self._key, records.encode(after), record.version)

        await update_record(self._store, self._key, replaced)
        self._recorded = handed_out
        self._watched_left = max(0, self._watched_left - len(new))

    def finished(self, positions: Iterable[Position]) -> None:
        """Note that messages are acknowledged."""
        for position in positions:
            self.suspects.discard(position)
            self._charged.pop(position, None)

    async def end(self, incarnation: int, counts: Mapping[Position, int]) -> None:
        """
        Remove the mark of this dispatch, and store the counts for the next one.

        If another dispatch has begun and presumes that the process of this one died, remove that: it lives.
        """
        record = await self._store.get(self._key)
        if record is not None and _decoded(record).dispatch == self._token:
            presumed = self._still_presumed(_decoded(record))
            after = self._document(incarnation, self._settled(counts), (), presumed, token="")
            with suppress(VersionMismatch):
                if after.counts or presumed:
                    await self._store.put(Put(self._key, records.encode(after), record.version))
                else:
                    await self._store.delete(self._key, record.version)
                return
        await update_record(self._store, self._key, self._without_own)

    async def _without_own(self, record: Record | None) -> Put | None:
        """Return the record without the presumption that the process of this dispatch died."""
        stored = None if record is None else _decoded(record)
        presumed = {} if stored is None else _presumed(stored)
        if record is None or stored is None or presumed.pop(self._token, None) is None:
            return None
        after = msgspec.structs.replace(stored, presumed=_as_text(presumed))
        return Put(self._key, records.encode(after), record.version)

    def _still_presumed(self, stored: DeliveryCountsRecord) -> dict[str, Position]:
        """Return what the record presumes now about messages that are not finished."""
        found = _presumed(stored)
        return {token: at for token, at in found.items() if at in self.suspects or at in self._charged}

    def _settled(self, counts: Mapping[Position, int]) -> dict[Position, int]:
        """Return counts without the presumed deaths, which are stored by themselves."""
        return dict(Counter(counts) - self._charged)

    def given(self, consumer_id: int) -> int:
        """Return the number of messages that a consumer's user has received and not finished."""
        return sum(one.given_to == consumer_id and _is_received(one) for one in self._deliveries.messages.values())

    def _given(self) -> set[Position]:
        return {one.position for one in self._deliveries.messages.values() if _is_received(one)}

    def _document(
        self,
        incarnation: int,
        counts: Mapping[Position, int],
        handed_out: Iterable[Position],
        presumed: Mapping[str, Position],
        *,
        alone: bool = False,
        token: str | None = None,
    ) -> DeliveryCountsRecord:
        last = sorted(handed_out)[:COUNTS_MAX]
        return DeliveryCountsRecord(
            incarnation=incarnation,
            dispatch=self._token if token is None else token,
            counts=highest(counts),
            handed_out=[str(at) for at in last],
            alone=alone,
            presumed=_as_text(presumed),
        )


def _as_text(presumed: Mapping[str, Position]) -> dict[str, str] | msgspec.UnsetType:
    return {token: str(at) for token, at in presumed.items()} or msgspec.UNSET


def _is_received(held: HeldMessage) -> bool:
    """Return whether a user has received the latest delivery of a message, and has not finished it."""
    return held.state is MessageState.DELIVERED and held.received == held.delivery and held.given_to != DETACHED


def _decoded(record: Record) -> DeliveryCountsRecord:
    return records.decode(DeliveryCountsRecord, record)

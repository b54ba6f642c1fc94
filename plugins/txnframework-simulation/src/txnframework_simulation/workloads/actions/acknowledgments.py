"""Actions that acknowledge messages in conflicting ways: from several processes, and in several transactions."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from txnframework.client import Message, Transaction
from txnframework_simulation.workloads.actions.base import ActorBase, SubscriptionOptions, full
from txnframework_simulation.workloads.actions.consumers import ORDERED
from txnframework_simulation.workloads.recorded_client import RecordedConsumer

ROUNDS_MAX = 12
RECEIVED_MAX = 5
PATIENCE_MS = 100
STEP_MS = 500
"""
All actors continue at multiples of this time, which is longer than a receive and shorter than a transaction's timeout.
"""
REDELIVERY_SHARE = 0.1
"""Probability that a consumer requests redelivery in a round."""
GIVE_UP_SHARE = 0.6
"""Probability that a refused consumer starts again with the redelivered messages."""
OLDEST_COUNT = 3
STANDBY_TYPE = "failover"
"""The type whose consumers continue when other consumers take over their received messages."""


class Contending(ActorBase):
    """Actions on messages that other actors may also have received."""

    async def contend(self) -> None:
        """
        Join a subscription and acknowledge messages in transactions, although others may have taken them over.

        All actors acknowledge their oldest message, and end their transaction, at the same moments. So two processes
        perform a step at the same time, or one ends its transaction while the other acknowledges. With
        ``ends_at_once``, a transaction may end while the other has read and is still writing. With ``ranges``, some
        actors acknowledge cumulatively. A refused actor often requests redelivery, and other actors sometimes do.
        """
        standing_by = [one for one in self.options.subscriptions if one.type == STANDBY_TYPE]
        if not standing_by:
            return
        chosen = self.chance.choice(standing_by)
        consumer = await self.recorded.consumer(full(chosen.topic), chosen.name, type=chosen.type)
        came: deque[Message] = deque()
        try:
            for _ in range(self.chance.randint(ROUNDS_MAX // 2, ROUNDS_MAX)):
                if self.options.ranges and self.context.likely(REDELIVERY_SHARE):
                    await consumer.redeliver_unacknowledged()
                came.extend(await consumer.receive(RECEIVED_MAX, PATIENCE_MS))
                await self.context.wait_for_step(STEP_MS)
                if came:
                    await self._contend_for(chosen, consumer, came)
        finally:
            await consumer.close()

    async def _contend_for(self, chosen: SubscriptionOptions, consumer: RecordedConsumer, came: deque[Message]) -> None:
        if self.options.at_once and self.context.likely(self.options.at_once):
            acks = [(consumer, (self._one_of(came),))]
            await self.context.attempt(lambda: self.recorded.transact(acks=acks))
            return
        domain = "persistent" if full(chosen.topic).startswith("persistent:") else "segment"
        txn = await self.begin(domain)
        if self.options.ranges and self.context.likely(self.options.ranges):
            last = self.chance.choice(came)
            acknowledged = await self.context.attempt(lambda: consumer.ack_cumulative(last, txn))
            while came and came.popleft() is not last:
                pass
        else:
            message = self._one_of(came)
            acknowledged = await self.context.attempt(lambda: consumer.ack(message, txn=txn))
            if not acknowledged and self.options.ranges and message not in came:
                came.appendleft(message)
        if not acknowledged and self.options.ranges and self.context.likely(GIVE_UP_SHARE):
            await consumer.redeliver_unacknowledged()
            came.clear()
        if not self.context.likely(self.options.ends_at_once):
            await self.context.wait_for_step(STEP_MS)
        await self.context.attempt(lambda: self.end(txn) if acknowledged else self.recorded.abort(txn))

    def _one_of(self, came: deque[Message]) -> Message:
        """
        Remove and return the oldest message.

        If ranges are acknowledged too, return one of the oldest messages. It is sometimes kept, so that a range may
        contain it.
        """
        if not self.options.ranges:
            return came.popleft()
        message = self.chance.choice(list(came)[:OLDEST_COUNT])
        if self.context.likely(0.6):
            came.remove(message)
        return message


BATCH_MAX = 5
MIXED_RECEIVED_MAX = 6
MIXED_PATIENCE_MS = 200
STEPS_MAX = 18
OPEN_MAX = 3
REPEATED_SHARE = 0.25
"""The share of acknowledgments of messages that the same consumer has acknowledged before."""


class Juggling(ActorBase):
    """Actions that send batches and acknowledge their messages in all possible ways."""

    async def send_batch(self) -> None:
        """
        Send messages of one key in one call, in a transaction or outside.

        The messages share an entry.
        """
        domain = self.any_domain()
        txn = await self.begin(domain) if self.context.likely(0.3) else None
        producer = await self.recorded.producer(self.chance.choice(self.domains[domain]))
        values = [self.recorded.unique() for _ in range(self.chance.randint(2, BATCH_MAX))]
        await producer.send_many(values, key=self.key(), txn=txn)
        if txn is not None:
            await self.end(txn)

    async def juggle(self) -> None:
        """
        Join a subscription and acknowledge messages, in several open transactions or outside, singly and in ranges.

        Messages are kept and acknowledged later, even if other consumers have taken them over. Some are acknowledged
        twice: singly again, within a range, or as the end of a range.
        """
        if not self.options.subscriptions:
            return
        chosen = self.chance.choice(self.options.subscriptions)
        called = chosen.name if self.context.likely(self.options.twins) else None
        consumer = await self.recorded.consumer(full(chosen.topic), chosen.name, type=chosen.type, called=called)
        hand = _Hand(self, chosen, consumer)
        try:
            for _ in range(self.chance.randint(STEPS_MAX // 2, STEPS_MAX)):
                await self.context.attempt(hand.draw())
            for txn in hand.open:
                await self.context.attempt(partial(hand.end, txn))
        finally:
            await consumer.close()


class _Hand:
    """The received messages and the open transactions of one consumer."""

    def __init__(self, actor: Juggling, chosen: SubscriptionOptions, consumer: RecordedConsumer) -> None:
        self.open: list[Transaction] = []
        self._actor = actor
        self._chance = actor.chance
        self._consumer = consumer
        self._domain = "persistent" if full(chosen.topic).startswith("persistent:") else "segment"
        self._came: list[Message] = []
        self._acked: list[Message] = []
        self._spoilt: set[Transaction] = set()
        self._steps: dict[Callable[[], Awaitable[object]], float] = {
            self._receive: 3,
            self._begin: 1.5,
            self._ack: 4,
            self._end_one: 1.5,
            self._return: 0.5,
            actor.hesitate: 0.5,
        }
        if chosen.type in ORDERED:
            self._steps[self._ack_range] = 3

    def draw(self) -> Callable[[], Awaitable[object]]:
        """Draw the next step."""
        (step,) = self._chance.choices(list(self._steps), list(self._steps.values()))
        return step

    async def end(self, txn: Transaction) -> None:
        """
        Commit or abort a transaction, or leave it to its timeout.

        A transaction with a failed operation is mostly aborted.
        """
        if txn in self._spoilt and self._actor.context.likely(0.7):
            await self._actor.recorded.abort(txn)
        else:
            await self._actor.end(txn)

    async def _receive(self) -> None:
        self._came += await self._consumer.receive(self._chance.randint(1, MIXED_RECEIVED_MAX), MIXED_PATIENCE_MS)

    async def _begin(self) -> None:
        if len(self.open) < OPEN_MAX:
            self.open.append(await self._actor.begin(self._domain))

    async def _ack(self) -> None:
        if messages := self._messages():
            some = self._chance.sample(messages, self._chance.randint(1, min(3, len(messages))))
            await self._in_some(lambda txn: self._consumer.ack(*some, txn=txn))
            self._forget(some)

    async def _ack_range(self) -> None:
        if messages := self._messages():
            last = self._chance.choice(messages)
            await self._in_some(lambda txn: self._consumer.ack_cumulative(last, txn))
            self._forget([one for one in self._came if one.id.segment == last.id.segment and one.id <= last.id])

    def _messages(self) -> list[Message]:
        """Return the messages to acknowledge, or sometimes those that were already acknowledged."""
        return self._acked if self._acked and self._actor.context.likely(REPEATED_SHARE) else self._came

    async def _in_some(self, ack: Callable[[Transaction | None], Awaitable[None]]) -> None:
        """Acknowledge in one of the open transactions or outside."""
        txn = None if not self.open or self._actor.context.likely(0.25) else self._chance.choice(self.open)
        if not await self._actor.context.attempt(lambda: ack(txn)) and txn is not None:
            self._spoilt.add(txn)

    def _forget(self, some: list[Message]) -> None:
        """Move the acknowledged messages out of the received ones."""
        self._came = [one for one in self._came if one not in some]
        self._acked += [one for one in some if one not in self._acked]

    async def _end_one(self) -> None:
        if self.open:
            await self.end(self.open.pop(self._chance.randrange(len(self.open))))

    async def _return(self) -> None:
        if self._actor.context.likely(0.3):
            await self._consumer.redeliver_unacknowledged()
        elif self._came:
            await self._consumer.nack(self._chance.choice(self._came))

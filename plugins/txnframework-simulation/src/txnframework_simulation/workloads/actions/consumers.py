"""Actions that consume and read, acknowledge, and leave messages to their dead-letter topic."""

from __future__ import annotations

from functools import partial

from txnframework.client import Message
from txnframework.model.names import topic_of
from txnframework_simulation.workloads.actions.base import ActorBase, SubscriptionOptions, full
from txnframework_simulation.workloads.oracles import AUDIT
from txnframework_simulation.workloads.recorded_client import RecordedConsumer

RECEIVED_MAX = 5
PATIENCE_MS = 400
ORDERED = ("exclusive", "failover")
"""Types whose consumers may acknowledge cumulatively."""


class Consuming(ActorBase):
    """Actions that receive and read."""

    async def consume(self) -> None:
        """Join a subscription, acknowledge some messages outside transactions, and leave."""
        await self._consume(transactional=False)

    async def consume_in_transaction(self) -> None:
        """Join a subscription, acknowledge some messages in transactions, and leave."""
        await self._consume(transactional=True)

    async def consume_segment(self) -> None:
        """
        Join a subscription on one segment, which may be split or merged in the meantime, and acknowledge some messages.
        """
        await self._consume(transactional=self.context.likely(0.5), by_segment=True)

    async def read(self) -> None:
        """Read a topic to its end."""
        await self.recorded.read(self.topic())

    async def snapshot(self) -> None:
        """Read all topics in one snapshot, which begins with any of them."""
        await self.recorded.read_snapshot(self.chance.sample(self.topics, len(self.topics)))

    async def audit(self) -> None:
        """Read every topic to its end, one after the other, in random order, to add up all accounts."""
        audit = self.recorded.unique()
        for number, topic in enumerate(self.chance.sample(self.topics, len(self.topics))):
            await self.recorded.read(topic, f"{audit}{AUDIT}{number}")

    async def ask_ack(self) -> None:
        """Ask whether a message is acknowledged on a subscription of its topic."""
        seen = [
            (one, chosen.name)
            for one in self.shared.messages
            for chosen in self.options.subscriptions
            if str(topic_of(one.segment)) == full(chosen.topic)
        ]
        if seen:
            message, subscription = self.chance.choice(seen)
            await self.recorded.ask_ack(subscription, message)

    async def _consume(self, transactional: bool, by_segment: bool = False) -> None:
        if not self.options.subscriptions:
            return
        chosen = self.chance.choice(self.options.subscriptions)
        topic, segment = full(chosen.topic), None
        if by_segment:
            layout = await self.recorded.client.layout(topic)
            # A segment without parents: a consumer of a later segment would receive it before its ancestors.
            segment = str(layout.name_of(self.chance.choice([one.id for one in layout.in_order() if not one.parents])))
        consumer = await self.recorded.consumer(topic, chosen.name, type=chosen.type, segment=segment)
        try:
            for _ in range(self.chance.randint(1, 3)):
                received = await consumer.receive(self.chance.randint(1, RECEIVED_MAX), PATIENCE_MS)
                if not received:
                    return
                self.shared.messages.extend(message.id for message in received)
                if transactional:
                    await self._acknowledge_in_transaction(chosen, consumer, received)
                else:
                    await self._acknowledge(chosen, consumer, received)
                if self.context.likely(0.2):
                    await consumer.nack(*received)
        finally:
            await consumer.close()

    async def _acknowledge(
        self, chosen: SubscriptionOptions, consumer: RecordedConsumer, received: tuple[Message, ...]
    ) -> None:
        if chosen.type in ORDERED and self.context.likely(0.5):
            await consumer.ack_cumulative(self.chance.choice(received))
        else:
            await consumer.ack(*self._some(received))

    async def _acknowledge_in_transaction(
        self, chosen: SubscriptionOptions, consumer: RecordedConsumer, received: tuple[Message, ...]
    ) -> None:
        domain = "persistent" if full(chosen.topic).startswith("persistent:") else "segment"
        await self.hesitate()
        txn = await self.begin(domain)
        if chosen.type in ORDERED and self.context.likely(0.5):
            await consumer.ack_cumulative(self.chance.choice(received), txn)
        else:
            for message in self._some(received):
                await consumer.ack(message, txn=txn)
        if self.context.likely(0.2):
            await self.recorded.ask_ack(chosen.name, self.chance.choice(received).id)
        if self.context.likely(0.5):
            producer = await self.recorded.producer(self.chance.choice(self.domains[domain]))
            await producer.send(self.recorded.unique(), key=self.key(), txn=txn)
        await self.hesitate()
        await self.end(txn)

    def _some(self, received: tuple[Message, ...]) -> tuple[Message, ...]:
        return tuple(self.chance.sample(received, self.chance.randint(1, len(received))))


REFUSED_MAX = 4
REFUSAL_PATIENCE_MS = 600
ROUNDS_MAX = 8


class Refusing(ActorBase):
    """Actions that fail to process the received messages."""

    async def refuse(self) -> None:
        """Join a subscription with a dead-letter topic, receive messages, and have most of them redelivered."""
        having = [one for one in self.options.subscriptions if one.letters is not None]
        if not having:
            return
        chosen = self.chance.choice(having)
        domain = "persistent" if full(chosen.topic).startswith("persistent:") else "segment"
        consumer = await self.recorded.consumer(
            full(chosen.topic), chosen.name, type=chosen.type, dead_letter=chosen.dead_letter()
        )
        try:
            for _ in range(self.chance.randint(ROUNDS_MAX // 2, ROUNDS_MAX)):
                received = await consumer.receive(self.chance.randint(1, REFUSED_MAX), REFUSAL_PATIENCE_MS)
                for message in received:
                    await self.context.attempt(partial(self._refuse, consumer, message, domain))
        finally:
            await consumer.close()

    async def _refuse(self, consumer: RecordedConsumer, message: Message, domain: str) -> None:
        drawn = self.chance.random()
        if drawn < 0.45:
            await consumer.nack(message)
        elif drawn < 0.75:
            txn = await self.begin(domain)
            await self.context.attempt(lambda: consumer.ack(message, txn=txn))
            await self.recorded.abort(txn)
        elif drawn < 0.85:
            txn = await self.begin(domain)
            await consumer.ack(message, txn=txn)
            await self.end(txn)
        elif drawn < 0.95:
            await consumer.redeliver_unacknowledged()
        else:
            await consumer.ack(message)

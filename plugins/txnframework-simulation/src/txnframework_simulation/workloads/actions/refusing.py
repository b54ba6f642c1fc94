"""Refusing: consumers that do not take what comes, until it lies among the dead letters."""

from __future__ import annotations

from functools import partial

from txnframework.client import Message
from txnframework_simulation.workloads.actions.surroundings import Surroundings, full
from txnframework_simulation.workloads.recorded import RecordedConsumer

RECEIVED_MAX = 4
PATIENCE_MS = 600
ROUNDS_MAX = 8


class Refusing(Surroundings):
    """What an actor does that fails to process what it receives."""

    async def refuse(self) -> None:
        """Join a subscription that has dead letters, take some messages, and let most of them come again."""
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
                received = await consumer.receive(self.chance.randint(1, RECEIVED_MAX), PATIENCE_MS)
                for message in received:
                    await self.part.attempt(partial(self._refuse, consumer, message, domain))
        finally:
            await consumer.close()

    async def _refuse(self, consumer: RecordedConsumer, message: Message, domain: str) -> None:
        drawn = self.chance.random()
        if drawn < 0.45:
            await consumer.nack(message)
        elif drawn < 0.75:
            txn = await self.begin(domain)
            await self.part.attempt(lambda: consumer.ack(message, txn=txn))
            await self.recorded.abort(txn)
        elif drawn < 0.85:
            txn = await self.begin(domain)
            await consumer.ack(message, txn=txn)
            await self.end(txn)
        elif drawn < 0.95:
            await consumer.redeliver_unacknowledged()
        else:
            await consumer.ack(message)

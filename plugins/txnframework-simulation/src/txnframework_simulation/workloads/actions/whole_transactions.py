"""Actions that perform a whole transaction in one call."""

from __future__ import annotations

from functools import partial

from txnframework_simulation.workloads.actions.base import TIMEOUTS_MS, ActorBase, full
from txnframework_simulation.workloads.oracles import TRANSFER
from txnframework_simulation.workloads.recorded_client import RecordedProducer

MESSAGES_MAX = 4
RECEIVED_MAX = 4
ROUNDS_MAX = 4
AMOUNT_MAX = 9
PATIENCE_MS = 400


class Transacting(ActorBase):
    """Actions whose operations are known before the transaction begins."""

    async def transact(self) -> None:
        """Send to several topics in one call."""
        domain = self.any_domain()
        await self._transact([await self._message(domain) for _ in range(self.chance.randint(1, MESSAGES_MAX))])

    async def transfer_at_once(self) -> None:
        """Transfer an amount from one account to another in one call."""
        domain = self.any_domain()
        amount, transfer = self.chance.randint(1, AMOUNT_MAX), self.recorded.unique()
        await self._transact(
            [
                (
                    await self.recorded.producer(self.chance.choice(self.domains[domain])),
                    f"{transfer}{TRANSFER}{leg}",
                    key,
                )
                for leg, key in ((-amount, self.key()), (amount, self.key()))
            ]
        )

    async def transact_received(self) -> None:
        """Join a subscription, acknowledge messages and send others in one call, several times, and leave."""
        if not self.options.subscriptions:
            return
        chosen = self.chance.choice(self.options.subscriptions)
        domain = "persistent" if full(chosen.topic).startswith("persistent:") else "segment"
        consumer = await self.recorded.consumer(full(chosen.topic), chosen.name, type=chosen.type)
        try:
            for _ in range(self.chance.randint(1, ROUNDS_MAX)):
                received = await consumer.receive(self.chance.randint(1, RECEIVED_MAX), PATIENCE_MS)
                if not received:
                    return
                self.shared.messages.extend(message.id for message in received)
                await self.hesitate()
                sends = [await self._message(domain) for _ in range(self.chance.randrange(MESSAGES_MAX))]
                groups = [received] if self.context.likely(0.7) else [(one,) for one in received]
                acks = [(consumer, some) for some in groups]
                timeout_ms = self.chance.choice(TIMEOUTS_MS)
                await self.context.attempt(partial(self.recorded.transact, sends, acks, timeout_ms))
        finally:
            await consumer.close()

    async def _message(self, domain: str) -> tuple[RecordedProducer, str, str]:
        producer = await self.recorded.producer(self.chance.choice(self.domains[domain]))
        return producer, self.recorded.unique(), self.key()

    async def _transact(self, sends: list[tuple[RecordedProducer, str, str]]) -> None:
        self.shared.messages.extend(await self.recorded.transact(sends, timeout_ms=self.chance.choice(TIMEOUTS_MS)))

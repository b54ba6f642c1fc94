"""Contending: several processes acknowledge the same messages, in the same moment."""

from __future__ import annotations

from collections import deque

from txnframework.client import Message
from txnframework_simulation.workloads.actions.surroundings import SubscriptionOptions, Surroundings, full
from txnframework_simulation.workloads.recorded import RecordedConsumer

ROUNDS_MAX = 12
RECEIVED_MAX = 5
PATIENCE_MS = 100
STEP_MS = 500
"""In what moments everybody goes on: it takes longer than receiving, and less than a transaction may."""
AGAIN = 0.1
"""How often somebody asks for everything again, in a round."""
GIVING_UP = 0.6
"""How often whoever is refused begins anew with what comes again."""
OLDEST = 3
STANDING_BY = "failover"
"""The type whose consumers go on when others take over what they received."""


class Contending(Surroundings):
    """What an actor does about messages that others may have, too."""

    async def contend(self) -> None:
        """
        Join a subscription and acknowledge what came in transactions, though others may have taken it over since.

        Everybody acknowledges its oldest message, and ends its transaction, in the same moments: two processes are in
        the middle of it at once, or the one ends as the other acknowledges. Whoever ends it at once, as the option
        ``ends_at_once`` has it, may be over while the other has looked and is still writing. With the option ``ranges``
        some acknowledge all up to some message instead; whoever is refused asks for everything again, and so does
        somebody else now and then, who goes on with what it has.
        """
        standing_by = [one for one in self.options.subscriptions if one.type == STANDING_BY]
        if not standing_by:
            return
        chosen = self.chance.choice(standing_by)
        consumer = await self.recorded.consumer(full(chosen.topic), chosen.name, type=chosen.type)
        came: deque[Message] = deque()
        try:
            for _ in range(self.chance.randint(ROUNDS_MAX // 2, ROUNDS_MAX)):
                if self.options.ranges and self.part.likely(AGAIN):
                    await consumer.redeliver_unacknowledged()
                came.extend(await consumer.receive(RECEIVED_MAX, PATIENCE_MS))
                await self.part.wait_for_step(STEP_MS)
                if came:
                    await self._contend_for(chosen, consumer, came)
        finally:
            await consumer.close()

    async def _contend_for(self, chosen: SubscriptionOptions, consumer: RecordedConsumer, came: deque[Message]) -> None:
        domain = "persistent" if full(chosen.topic).startswith("persistent:") else "segment"
        txn = await self.begin(domain)
        if self.options.ranges and self.part.likely(self.options.ranges):
            last = self.chance.choice(came)
            acknowledged = await self.part.attempt(lambda: consumer.ack_cumulative(last, txn))
            while came and came.popleft() is not last:
                pass
        else:
            message = self._one_of(came)
            acknowledged = await self.part.attempt(lambda: consumer.ack(message, txn=txn))
            if not acknowledged and self.options.ranges and message not in came:
                came.appendleft(message)
        if not acknowledged and self.options.ranges and self.part.likely(GIVING_UP):
            await consumer.redeliver_unacknowledged()
            came.clear()
        if not self.part.likely(self.options.ends_at_once):
            await self.part.wait_for_step(STEP_MS)
        await self.part.attempt(lambda: self.end(txn) if acknowledged else self.recorded.abort(txn))

    def _one_of(self, came: deque[Message]) -> Message:
        """
        Remove and return the oldest message.

        Where ranges are acknowledged as well, one of the oldest, which is kept now and then: a range may come to name
        it.
        """
        if not self.options.ranges:
            return came.popleft()
        message = self.chance.choice(list(came)[:OLDEST])
        if self.part.likely(0.6):
            came.remove(message)
        return message

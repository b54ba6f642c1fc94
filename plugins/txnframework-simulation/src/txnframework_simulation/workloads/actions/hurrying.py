"""Programs in a hurry: they commit while sends are under way, after some were given up, and send again what failed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count

from txnframework.errors import TxnFrameworkError
from txnframework_simulation.workloads.actions.surroundings import Surroundings

AT_ONCE_MAX = 4
REPEATS_MAX = 4


class Hurrying(Surroundings):
    """What an actor does that does not wait, or does not look."""

    async def send_in_a_hurry(self) -> None:
        """Begin several sends of one transaction, give some of them up, and end it while others are under way."""
        domain = self.any_domain()
        txn = await self.begin(domain)
        producers = [
            await self.recorded.producer(self.chance.choice(self.domains[domain]))
            for _ in range(self.chance.randint(1, AT_ONCE_MAX))
        ]
        sends = [
            asyncio.ensure_future(producer.send(self.recorded.unique(), key=self.key(), txn=txn))
            for producer in producers
        ]
        await asyncio.sleep(0)
        if self.part.likely(0.3):
            sends[0].cancel()
            await asyncio.wait(sends[:1])
        try:
            await self.end(txn)
        finally:
            await asyncio.gather(*sends, return_exceptions=True)

    async def send_again_in_transactions(self) -> None:
        """Send a message in one transaction after the other, under one sequence id, until one was committed."""
        domain = self.any_domain()
        topic, name, key = self.chance.choice(self.domains[domain]), self.recorded.unique(), self.key()
        sequence = self.chance.randrange(100)
        for attempt in count(1):
            with suppress(TxnFrameworkError):
                txn = await self.begin(domain)
                # Another producer of this name, as another life of a program has it.
                producer = await self.recorded.producer(topic, name)
                await producer.send(f"{name}-{sequence}", key=key, sequence=sequence, txn=txn)
                if await self.end(txn):
                    return
            if attempt == REPEATS_MAX:
                return
            await self.part.wait(1_000)

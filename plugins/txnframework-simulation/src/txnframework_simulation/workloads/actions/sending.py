"""Sending: alone, in transactions, as transfers between accounts, and again under the same sequence id."""

from __future__ import annotations

from itertools import count

from txnframework.errors import TxnFrameworkError
from txnframework_simulation.workloads.accounts import TRANSFER
from txnframework_simulation.workloads.actions.surroundings import Surroundings

MESSAGES_MAX = 3
AMOUNT_MAX = 9
REPEATS_MAX = 4


class Sending(Surroundings):
    """What an actor sends."""

    async def send(self) -> None:
        """Send a few messages outside transactions."""
        producer = await self.recorded.producer(self.topic())
        for _ in range(self.chance.randint(1, MESSAGES_MAX)):
            self.shared.messages.append(await producer.send(self.recorded.unique(), key=self.key()))

    async def send_in_transaction(self) -> None:
        """Send to several topics in one transaction."""
        domain = self.any_domain()
        txn = await self.begin(domain)
        for _ in range(self.chance.randint(1, MESSAGES_MAX)):
            producer = await self.recorded.producer(self.chance.choice(self.domains[domain]))
            await producer.send(self.recorded.unique(), key=self.key(), txn=txn)
        await self.hesitate()
        await self.end(txn)

    async def transfer(self) -> None:
        """Take from one account what another gets: each is a key of a topic."""
        domain = self.any_domain()
        txn = await self.begin(domain)
        amount = self.chance.randint(1, AMOUNT_MAX)
        transfer = self.recorded.unique()
        for leg in (-amount, amount):
            producer = await self.recorded.producer(self.chance.choice(self.domains[domain]))
            await producer.send(f"{transfer}{TRANSFER}{leg}", key=self.key(), txn=txn)
        await self.end(txn)

    async def send_again(self) -> None:
        """Send some messages, and each again under its sequence id until it is confirmed, and once more."""
        topic = self.topic()
        name = self.recorded.unique()
        sequences = count(self.chance.randrange(100), self.chance.randint(1, 3))
        for _, sequence in zip(range(self.chance.randint(1, MESSAGES_MAX)), sequences, strict=False):
            if not await self._until_sent(topic, name, sequence):
                return  # what comes later must not overtake it

    async def _until_sent(self, topic: str, name: str, sequence: int) -> bool:
        value, key = f"{name}-{sequence}", self.key()
        confirmed = 0
        for _ in range(REPEATS_MAX):
            # Another producer of this name, as another life of a program has it.
            producer = await self.recorded.producer(topic, name)
            try:
                await producer.send(value, key=key, sequence=sequence)
            except TxnFrameworkError:
                await self.part.wait(1_000)
                continue
            confirmed += 1
            if confirmed == 2 or self.part.likely(0.5):
                break
        return confirmed > 0

    async def ask_outcome(self) -> None:
        """Ask what became of a transaction of this process."""
        if self.shared.transactions:
            await self.recorded.outcome(self.chance.choice(list(self.shared.transactions)))

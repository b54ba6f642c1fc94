"""Actions that send: alone, in transactions, in branches, in batches, repeatedly, and without waiting."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count

from txnframework.client import JoinedTransaction, Transaction
from txnframework.errors import TxnFrameworkError
from txnframework_simulation.workloads.actions.base import ActorBase
from txnframework_simulation.workloads.oracles import TRANSFER
from txnframework_simulation.workloads.recorded_client import RecordedProducer

MESSAGES_MAX = 3
AMOUNT_MAX = 9
REPEATS_MAX = 4


class Sending(ActorBase):
    """Actions that send without branches."""

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
        """Transfer an amount from one account to another; an account is a key of a topic."""
        domain = self.any_domain()
        txn = await self.begin(domain)
        amount = self.chance.randint(1, AMOUNT_MAX)
        transfer = self.recorded.unique()
        for leg in (-amount, amount):
            producer = await self.recorded.producer(self.chance.choice(self.domains[domain]))
            await producer.send(f"{transfer}{TRANSFER}{leg}", key=self.key(), txn=txn)
        await self.end(txn)

    async def send_again(self) -> None:
        """Send messages, and repeat each under its sequence id until it is confirmed, and sometimes once more."""
        topic = self.topic()
        name = self.recorded.unique()
        sequences = count(self.chance.randrange(100), self.chance.randint(1, 3))
        for _, sequence in zip(range(self.chance.randint(1, MESSAGES_MAX)), sequences, strict=False):
            if not await self._until_sent(topic, name, sequence):
                return  # later messages must not overtake this one

    async def _until_sent(self, topic: str, name: str, sequence: int) -> bool:
        value, key = f"{name}-{sequence}", self.key()
        confirmed = 0
        for _ in range(REPEATS_MAX):
            # Another producer of this name, as another life of a program has it.
            producer = await self.recorded.producer(topic, name)
            try:
                await producer.send(value, key=key, sequence=sequence)
            except TxnFrameworkError:
                await self.context.wait(1_000)
                continue
            confirmed += 1
            if confirmed == 2 or self.context.likely(0.5):
                break
        return confirmed > 0

    async def ask_outcome(self) -> None:
        """Ask for the outcome of a transaction of this process."""
        if self.shared.transactions:
            await self.recorded.outcome(self.chance.choice(list(self.shared.transactions)))


ATTEMPTS_MAX = 3
ATTEMPT = "/"
"""Separates, in a value, the piece of work, the number of the attempt, and the rest."""


class Branching(ActorBase):
    """
    Actions in branches.

    They use no topics of the log-driven family, which has no branches.
    """

    async def branches(self) -> None:
        """
        Let several attempts write the same piece of work.

        At most one counts, and some attempts write even after the end.
        """
        if "segment" not in self.domains:
            return
        txn = await self.begin("segment")
        work = self.recorded.unique()
        finished: list[int] = []
        attempts: list[JoinedTransaction] = []
        for number in range(self.chance.randint(1, ATTEMPTS_MAX)):
            attempt = await self.recorded.join(str(txn.id))
            attempts.append(attempt)
            with suppress(TxnFrameworkError):
                await self._attempt(f"{work}{ATTEMPT}{number}", attempt)
                if self.context.likely(0.7):
                    finished.append(await attempt.finish())
        await self.end(txn, tuple(self.chance.sample(finished, min(1, len(finished)))))
        for number, attempt in enumerate(attempts):
            if self.context.likely(0.3):
                with suppress(TxnFrameworkError):
                    await self._attempt(f"{work}{ATTEMPT}{number}{ATTEMPT}late", attempt)

    async def _attempt(self, work: str, attempt: JoinedTransaction) -> None:
        for number in range(self.chance.randint(1, 2)):
            producer = await self.recorded.producer(self.chance.choice(self.domains["segment"]))
            await producer.send(f"{work}{ATTEMPT}{number}", key=self.key(), txn=attempt)


AT_ONCE_MAX = 4
UNTIL_COMMITTED_MS_MAX = 100
UNTIL_REFUSED_MAX = 12
BETWEEN_SENDS_MS = 20
REPEATS_MAX = 4


class Hurrying(ActorBase):
    """Actions that do not wait for replies, or ignore them."""

    async def send_in_a_hurry(self) -> None:
        """
        Begin several sends of one transaction, cancel some of them, and end the transaction while others are running.
        """
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
        if self.context.likely(0.3):
            sends[0].cancel()
            await asyncio.wait(sends[:1])
        try:
            await self.end(txn)
        finally:
            await asyncio.gather(*sends, return_exceptions=True)

    async def commit_by_id(self) -> None:
        """Commit a transaction by its id while its owner sends, who goes on until a send is refused."""
        domain = self.any_domain()
        txn = await self.begin(domain)
        producer = await self.recorded.producer(self.chance.choice(self.domains[domain]))
        sending = asyncio.ensure_future(self._send_until_refused(producer, txn))
        try:
            await self.context.wait(self.chance.randrange(1, UNTIL_COMMITTED_MS_MAX))
            await self.recorded.commit_by_id(str(txn.id))
        finally:
            await asyncio.gather(sending, return_exceptions=True)

    async def _send_until_refused(self, producer: RecordedProducer, txn: Transaction) -> None:
        for _ in range(UNTIL_REFUSED_MAX):
            await producer.send(self.recorded.unique(), key=self.key(), txn=txn)
            await self.context.wait(BETWEEN_SENDS_MS)

    async def send_again_in_transactions(self) -> None:
        """Send a message under one sequence id, in one transaction after the other, until one is committed."""
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
            await self.context.wait(1_000)

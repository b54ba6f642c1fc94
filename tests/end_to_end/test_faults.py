"""Lost replies and lost connections while messages are transformed and the topic changes: exactly once all the same."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from txnframework import Client, Consumer, DeadLetter, Message, Producer, State
from txnframework.errors import (
    InvalidTransactionState,
    LayoutConflict,
    OutcomeUnknown,
    ReceiveTimeout,
    TransactionConflict,
    TransactionHasFailedOperations,
    Unavailable,
)
from txnframework.model import TopicName
from txnframework.testing.clock import VirtualEnvironment

if TYPE_CHECKING:
    from conftest import Stores

MESSAGES = 40
T = TypeVar("T")


class Run:
    """One run with a seed: who sends, who transforms, and who cuts connections."""

    def __init__(self, seed: int, clock: VirtualEnvironment, first: Client, second: Client) -> None:
        self.random = random.Random(seed)
        self.clock = clock
        self.clients = (first, second)
        self.committed: Counter[bytes] = Counter()
        self.over = False

    async def until_it_works(self, operation: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await operation()
            except (Unavailable, OutcomeUnknown):
                await self.steps(3)

    async def steps(self, most: int) -> None:
        for _ in range(self.random.randrange(most + 1)):
            await asyncio.sleep(0)

    async def let_time_pass(self) -> None:
        while not self.over:
            await self.clock.advance(20)

    async def cut_connections(self) -> None:
        while not self.over:
            await self.steps(400)
            host = self.random.choice(self.clients).host
            backend: Any = self.random.choice((host.metadata, host.ledgers))
            backend.cut()
            await self.steps(40)
            backend.restore()

    async def send(self, producer: Producer) -> None:
        for number in range(MESSAGES):
            value, key = b"%d" % number, b"key %d" % (number % 5)
            await self.until_it_works(lambda: producer.send(value, key=key, sequence_id=number))  # noqa: B023
            if self.random.random() < 0.15:
                await self.change_layout()

    async def change_layout(self) -> None:
        client = self.clients[0]
        try:
            active = (await client.topics.layout(TopicName.parse("in"))).active()
            if len(active) < 4:
                await client.split("in", self.random.choice(active).id)
            else:
                await client.merge("in", active[0].id, active[1].id)
        except (LayoutConflict, Unavailable, OutcomeUnknown):
            return  # any process that finds it finishes it

    async def transform(self, consumer: Consumer, producer: Producer) -> None:
        while sum(self.committed.values()) < MESSAGES:
            try:
                messages = await consumer.receive_many(messages_max=self.random.randint(1, 4), timeout_ms=2_000)
            except ReceiveTimeout:
                # What belongs to a transaction that failed before it acknowledged comes again when it is asked for.
                await self.until_it_works(consumer.redeliver_unacknowledged)
                continue
            if await self.transform_some(consumer, producer, messages):
                self.committed.update(message.value for message in messages)

    async def transform_some(self, consumer: Consumer, producer: Producer, messages: tuple[Message, ...]) -> bool:
        """Return whether it was committed."""
        txn = self.clients[1].transaction()
        await self.until_it_works(txn.begin)
        try:
            for message in messages:
                await producer.send(message.value, key=message.key, txn=txn)
            await consumer.ack(*messages, txn=txn)
            if self.random.random() < 0.7:
                await txn.commit()
                return True
        except (TransactionConflict, TransactionHasFailedOperations, Unavailable, OutcomeUnknown):
            pass
        try:
            await self.until_it_works(txn.abort)
        except InvalidTransactionState as ended:
            return ended.actual is State.COMMITTED
        return False


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
@pytest.mark.parametrize("seed", range(4))
async def test_exactly_once_under_faults(memory: Stores, seed: int, kind: str) -> None:
    """No loss, no duplicates, order by key; at the end, no work is pending."""
    clock = VirtualEnvironment(seed)
    memory.environment = clock
    async with memory.open() as first, memory.open() as second:
        await first.create_topic("in")
        await first.create_topic("out", segments=2)
        run = Run(seed, clock, first, second)
        consumer = await second.consumer("in", "transform", start="earliest", type=kind)
        source, target = await first.producer("in", name="source"), await second.producer("out")
        noise = [asyncio.ensure_future(one()) for one in (run.let_time_pass, run.cut_connections)]
        workers = (run.transform(consumer, target) for _ in range(2))
        await asyncio.gather(run.send(source), *workers)
        run.over = True
        await asyncio.gather(*noise)
        expected = [b"%d" % number for number in range(MESSAGES)]
        assert sorted(await memory.read(first, "out")) == sorted(expected)
        async with await first.reader("in") as reader:
            sent = [message async for message in reader]
        assert sorted(message.value for message in sent) == sorted(expected)
        for key in {message.key for message in sent}:
            numbers = [int(message.value) for message in sent if message.key == key]
            assert numbers == sorted(numbers)
        await consumer.close()


LETTERS = "in-transform-DLQ"


class Judging(Run):
    """A run in which odd numbers are never accepted."""

    async def judge(self, memory: Stores, consumer: Consumer, producer: Producer) -> None:
        while not await self.until_it_works(lambda: self.all_are_somewhere(memory)):
            try:
                messages = await consumer.receive_many(messages_max=1, timeout_ms=500)
            except ReceiveTimeout:
                await self.until_it_works(consumer.redeliver_unacknowledged)
                continue
            if int(messages[0].value) % 2:
                await self.until_it_works(lambda: consumer.nack(*messages))  # noqa: B023
            else:
                await self.transform_some(consumer, producer, messages)

    async def all_are_somewhere(self, memory: Stores) -> bool:
        client = self.clients[0]
        return len(await memory.read(client, "out")) + len(await memory.read(client, LETTERS)) >= MESSAGES


@pytest.mark.parametrize("kind", ["failover", "key_shared"])
@pytest.mark.parametrize("seed", range(3))
async def test_dead_letters_under_faults(memory: Stores, seed: int, kind: str) -> None:
    """Each message is either accepted once or becomes one dead letter."""
    clock = VirtualEnvironment(seed)
    memory.environment = clock
    async with memory.open() as first, memory.open() as second:
        await first.create_topic("in")
        await first.create_topic("out", segments=2)
        await first.create_topic(LETTERS)
        run = Judging(seed, clock, first, second)
        rule = DeadLetter(redeliveries_max=2)
        consumer = await second.consumer("in", "transform", start="earliest", type=kind, dead_letter=rule)
        source, target = await first.producer("in", name="source"), await second.producer("out")
        noise = [asyncio.ensure_future(one()) for one in (run.let_time_pass, run.cut_connections)]
        await asyncio.gather(run.send(source), run.judge(memory, consumer, target))
        await consumer.close()
        run.over = True
        await asyncio.gather(*noise)
        accepted, given_up = await memory.read(first, "out"), await memory.read(first, LETTERS)
        assert sorted(accepted + given_up) == sorted(b"%d" % number for number in range(MESSAGES))
        assert not [value for value in accepted if int(value) % 2]

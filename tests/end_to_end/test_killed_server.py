"""The database is killed during transactions of its brokers, which recover without help."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import pytest

from txnframework import Client, Message, State, Transaction
from txnframework.errors import (
    Conflict,
    InvalidTransactionState,
    NotFound,
    OutcomeUnknown,
    ReceiveTimeout,
    Unavailable,
)

if TYPE_CHECKING:
    from conftest import ServerStores

T = TypeVar("T")

MESSAGES = 200
AT_ONCE = 3
DEEDS = 3
KILLS = 2
STEPS_BETWEEN_DEEDS = 8
PAUSE_S = 0.02
TIMEOUT_MS = 500
PATIENCE_S = 240


class Progress:
    """How far the transforming clients have come."""

    def __init__(self) -> None:
        self.committed: list[bytes] = []
        self._steps = asyncio.Semaphore(0)

    def commit(self, values: list[bytes]) -> None:
        """Note what was confirmed."""
        self.committed += values
        self._steps.release()

    async def more(self, steps: int) -> None:
        """Return when so many more transactions were confirmed."""
        while not self._steps.locked():
            await self._steps.acquire()
        for _ in range(steps):
            await self._steps.acquire()


async def until_answered(work: Callable[[], Awaitable[T]]) -> T:
    """Retry until there is a server again; repeating the calls is harmless."""
    while True:
        try:
            return await work()
        except ReceiveTimeout:
            raise
        except (Unavailable, OutcomeUnknown):
            await asyncio.sleep(PAUSE_S)


async def transform(client: Client, progress: Progress) -> None:
    """Move every message to two topics, each in a transaction with its acknowledgment."""
    consumer = await client.consumer("in", "transform", start="earliest", stand_by=True)
    left, right = await client.producer("left"), await client.producer("right")
    while True:
        try:
            messages = await until_answered(lambda: consumer.receive_many(messages_max=AT_ONCE, timeout_ms=TIMEOUT_MS))
        except ReceiveTimeout:
            # However long the server is gone: there is more until nothing is left.
            if (await until_answered(lambda: client.lag("in", "transform"))).messages == 0:
                return
            continue
        try:
            async with client.transaction() as txn:
                for message in messages:
                    await left.send(message.value, txn=txn)
                    await right.send(message.value, txn=txn)
                await consumer.ack(*messages, txn=txn)
        except (Conflict, NotFound, Unavailable, OutcomeUnknown):
            # What was done after all does not come again.
            await until_answered(consumer.redeliver_unacknowledged)
        else:
            progress.commit([message.value for message in messages])


@pytest.mark.parametrize("deed", ["kill", "disconnect"])
async def test_transactions(postgresql: ServerStores, deed: str) -> None:
    """Every message is in both topics once, so no transaction is partial; all confirmed messages are included."""
    stores = postgresql
    stores.options = {"session_ttl_ms": 1_500}
    expected = sorted(b"%d" % number for number in range(MESSAGES))

    async def disturb(progress: Progress) -> None:
        for _ in range(DEEDS):
            await progress.more(STEPS_BETWEEN_DEEDS)
            await asyncio.to_thread(stores.restart if deed == "kill" else stores.disconnect)

    async def test() -> None:
        async with stores.open() as client:
            for topic in ("in", "left", "right"):
                await client.create_topic(topic, segments=2)
            await (await client.producer("in")).send_many([b"%d" % number for number in range(MESSAGES)])
        progress = Progress()
        async with stores.open() as one, stores.open() as two, asyncio.TaskGroup() as group:
            group.create_task(transform(one, progress))
            group.create_task(transform(two, progress))
            group.create_task(disturb(progress))
        async with stores.open() as fresh:
            assert sorted(await stores.read(fresh, "left")) == expected
            assert sorted(await stores.read(fresh, "right")) == expected
        assert {*progress.committed} <= {*expected}
        assert len(progress.committed) == len({*progress.committed})

    async with asyncio.timeout(PATIENCE_S):
        await test()


async def send_pairs(client: Client, progress: Progress, is_over: asyncio.Event) -> None:
    """Send each number to two topics in a transaction, until it is known to be committed."""
    orders, audit = await client.producer("orders"), await client.producer("audit")
    while not is_over.is_set():
        value = b"%d" % len(progress.committed)
        txn = client.transaction()
        try:
            await until_answered(txn.begin)
            await orders.send(value, txn=txn)
            await audit.send(value, txn=txn)
            await txn.commit()
        except (Conflict, Unavailable, OutcomeUnknown):
            try:
                await until_answered(txn.abort)
                continue
            except InvalidTransactionState as ended:
                if ended.actual is not State.COMMITTED:
                    continue
        progress.commit([value])


def test_a_handler_loop(postgresql: ServerStores) -> None:
    """Confirmed messages are in both topics, with one result each, although no handler catches errors."""
    stores = postgresql

    async def test() -> None:
        async with stores.open() as client:
            for topic in ("orders", "audit", "invoices"):
                await client.create_topic(topic)
        sent, handled, is_over = Progress(), Progress(), asyncio.Event()
        async with stores.open() as one, stores.open() as two:
            consumer = await two.consumer("orders", "billing", start="earliest")
            invoices = await two.producer("invoices")

            async def bill(order: Message, txn: Transaction) -> None:
                await invoices.send(order.value, txn=txn)
                handled.commit([order.value])

            async with asyncio.TaskGroup() as group:
                sending = group.create_task(send_pairs(one, sent, is_over))
                running = group.create_task(consumer.run(bill))
                for _ in range(KILLS):
                    await sent.more(STEPS_BETWEEN_DEEDS)
                    await handled.more(STEPS_BETWEEN_DEEDS)
                    await asyncio.to_thread(stores.restart)
                await handled.more(STEPS_BETWEEN_DEEDS)
                is_over.set()
                await sending
                while (await two.lag("orders", "billing")).messages:  # noqa: ASYNC110 - it sets no event
                    await asyncio.sleep(PAUSE_S)
                consumer.stop()
                await running
            await consumer.close()
        async with stores.open() as fresh:
            for topic in ("orders", "audit", "invoices"):
                assert sorted(await stores.read(fresh, topic)) == sorted(sent.committed)

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(bounded())


@pytest.mark.parametrize("kind", ["exclusive", "shared", "key_shared"])
async def test_away_for_longer_than_a_session(postgresql: ServerStores, kind: str) -> None:
    """A consumer without the option to stand by takes its lease again, and gets its unacknowledged messages again."""
    stores = postgresql
    stores.options = {"session_ttl_ms": 1_500}

    async def test() -> None:
        async with stores.open() as client:
            await client.create_topic("orders")
            producer = await client.producer("orders")
            await producer.send_many([b"1", b"2"])
            consumer = await client.consumer("orders", "billing", type=kind, start="earliest")
            await consumer.ack(await consumer.receive())
            assert (await consumer.receive()).value == b"2"
            (feed,) = consumer._segments.feeds.values()
            assert feed.attached is not None
            lease = feed.attached.dispatch._lease
            await asyncio.to_thread(stores._server.kill)
            await lease.lost()
            await asyncio.to_thread(stores._server.start)
            assert (await consumer.receive(timeout_ms=60_000)).value == b"2"
            await until_answered(lambda: producer.send(b"3", sequence_id=2))
            assert (await consumer.receive(timeout_ms=60_000)).value == b"3"
            await consumer.close()

    async with asyncio.timeout(PATIENCE_S):
        await test()

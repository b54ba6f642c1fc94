"""Producers are refused while a subscription of their topic is too far behind, and accepted when it has caught up."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client, DeadLetter, Message, Transaction
from txnframework.client._dead_letters import DeadLetters
from txnframework.errors import BacklogQuotaExceeded, TransactionHasFailedOperations
from txnframework.testing.clock import VirtualEnvironment, run_ready

if TYPE_CHECKING:
    from conftest import Stores

ORDERS = "topic://public/default/orders"
LETTERS = "orders-billing-DLQ"
INTERVAL_MS = 1_000
HOUR_MS = 3_600_000


@pytest.fixture
def clock(memory: Stores) -> VirtualEnvironment:
    """The time of every process of the test."""
    memory.environment = VirtualEnvironment()
    return memory.environment


def limited(**quota: int) -> dict[str, Any]:
    return {"backlog_quota": {"interval_ms": INTERVAL_MS, **quota}, "transactions": {"sweep": False}}


async def prepared(client: Client) -> None:
    await client.create_topic("orders", segments=2)
    await client.subscribe("orders", "billing", start="earliest")


async def test_by_messages(memory: Stores, clock: VirtualEnvironment) -> None:
    """The quota holds for each subscription; nothing of a refused call is stored, and later calls are accepted."""
    async with memory.open(**limited(messages=3)) as client:
        await prepared(client)
        orders = await client.producer("orders")
        await orders.send_many([b"1", b"2", b"3", b"4"])
        await orders.send(b"5")  # the measurement is younger than the interval
        await clock.advance(INTERVAL_MS)
        for _ in range(2):
            with pytest.raises(BacklogQuotaExceeded) as refused:
                await orders.send(b"6")
        assert (refused.value.topic, refused.value.subscription) == (ORDERS, "billing")
        assert (refused.value.backlog[0], refused.value.quota) == (5, (3, -1))
        said = f"the backlog quota of {ORDERS} is exceeded: subscription billing is 5 messages"
        assert str(refused.value).startswith(said)
        assert (await client.lag("orders", "billing")).messages == 5
        await client.seek("orders", "billing", "latest")
        with pytest.raises(BacklogQuotaExceeded):
            await orders.send(b"6")
        await clock.advance(INTERVAL_MS)
        await orders.send(b"6")
        # A topic without subscriptions has no backlog.
        await client.create_topic("log")
        await (await client.producer("log")).send_many([b"x"] * 10)
        await clock.advance(INTERVAL_MS)
        await (await client.producer("log")).send(b"x")


def test_it_is_logged(memory: Stores, clock: VirtualEnvironment, caplog: pytest.LogCaptureFixture) -> None:
    """Refusals are logged once when they begin and once when they end, with the subscription."""
    caplog.set_level(logging.INFO, "txnframework.events")

    async def work() -> None:
        async with memory.open(**limited(messages=1)) as client:
            await prepared(client)
            orders = await client.producer("orders")
            await orders.send(b"1")
            for _ in range(3):
                await clock.advance(INTERVAL_MS)
                with pytest.raises(BacklogQuotaExceeded):
                    await orders.send(b"2")
            await client.seek("orders", "billing", "latest")
            await clock.advance(INTERVAL_MS)
            await orders.send(b"2")

    memory.run(work())
    events = [(vars(one)["event"], vars(one)["facts"]) for one in caplog.records if one.name == "txnframework.events"]
    quota = [(event, facts["topic"], facts["subscription"]) for event, facts in events if event.startswith("producers")]
    assert quota == [("producers_refused", ORDERS, "billing"), ("producers_accepted", ORDERS, "billing")]


async def test_by_bytes(memory: Stores, clock: VirtualEnvironment) -> None:
    """Sizes are computed from the average size of the remaining messages."""
    async with memory.open(**limited(bytes=1_000_000)) as client:
        await prepared(client)
        orders = await client.producer("orders")
        await orders.send(b"x" * 600_000)
        await clock.advance(INTERVAL_MS)
        await orders.send(b"x" * 600_000)
        await clock.advance(INTERVAL_MS)
        with pytest.raises(BacklogQuotaExceeded) as refused:
            await orders.send(b"x")
        messages, size = refused.value.backlog
        assert messages == 2
        assert 1_200_000 <= size <= 1_300_000
        assert refused.value.quota == (-1, 1_000_000)


async def test_in_transactions(memory: Stores, clock: VirtualEnvironment) -> None:
    """Messages that wait for an open transaction count; a transaction with a refused message cannot be committed."""
    async with memory.open(**limited(messages=2)) as client:
        await prepared(client)
        orders = await client.producer("orders")
        txn = client.transaction()
        await txn.begin()
        await orders.send_many([b"1", b"2"], txn=txn)
        await clock.advance(INTERVAL_MS)
        with pytest.raises(BacklogQuotaExceeded):
            await orders.send(b"3", txn=txn)
        with pytest.raises(TransactionHasFailedOperations):
            await txn.commit()
        await txn.abort()
        await clock.advance(INTERVAL_MS)
        with pytest.raises(BacklogQuotaExceeded):
            # Aborted messages are counted until the subscription has passed them, as for the lag.
            await orders.send(b"3")
        await client.seek("orders", "billing", "latest")
        await clock.advance(INTERVAL_MS)
        await orders.send(b"3")


async def test_of_a_namespace(memory: Stores, clock: VirtualEnvironment) -> None:
    """A namespace may have another quota, or none; producers of one topic share a measurement."""
    config = limited(messages=1) | {"namespaces": {"public/free": {"backlog_quota": {"messages": -1}}}}
    async with memory.open(**config) as client:
        await prepared(client)
        first, second = [await client.producer("orders") for _ in range(2)]
        await first.send(b"x")
        await clock.advance(INTERVAL_MS)
        for orders in (first, second):
            with pytest.raises(BacklogQuotaExceeded):
                await orders.send(b"x")
        assert client.host.backlog_quotas.of((await client.layout("orders")).topic) is not None
        free = "topic://public/free/orders"
        await client.create_topic(free)
        await client.subscribe(free, "billing", start="earliest")
        async with await client.producer(free) as orders:
            await orders.send_many([b"x"] * 10)
            await clock.advance(INTERVAL_MS)
            await orders.send(b"x")
        assert client.host.backlog_quotas.of((await client.layout(free)).topic) is None


async def test_dead_letters_wait(memory: Stores, clock: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """While their topic accepts none, a letter is tried again after a delay, and it is moved in the end."""
    tried: list[bytes | None] = []
    move = DeadLetters._move

    async def note(letters: DeadLetters, message: Message) -> None:
        tried.append(message.value)
        await move(letters, message)

    monkeypatch.setattr(DeadLetters, "_move", note)

    async with memory.open(**limited(messages=1)) as client:
        await prepared(client)
        await client.create_topic(LETTERS)
        await client.subscribe(LETTERS, "audit", start="earliest")
        await (await client.producer("orders")).send_many([b"1", b"2"])
        await (await client.producer(LETTERS)).send(b"earlier letter")
        await clock.advance(INTERVAL_MS)
        rule = DeadLetter(redeliveries_max=0)
        consumer = await client.consumer("orders", "billing", type="shared", dead_letter=rule)
        await consumer.nack(await consumer.receive())
        other = await consumer.receive()
        waiting = asyncio.ensure_future(consumer.receive())
        await run_ready(1_000)
        assert len(tried) == 1
        await client.seek(LETTERS, "audit", "latest")
        for _ in range(10):
            await clock.advance(INTERVAL_MS)
            await run_ready()
        async with await client.reader(LETTERS) as reader:
            assert [message.value async for message in reader] == [b"earlier letter", tried[0]]
        assert tried[0] != other.value
        waiting.cancel()


async def test_handlers_wait(memory: Stores, clock: VirtualEnvironment) -> None:
    """While the topic of the results is full, a message is handled repeatedly and never becomes a dead letter."""
    async with memory.open(**limited(messages=1)) as client:
        await prepared(client)
        await client.create_topic("bills")
        await client.subscribe("bills", "audit", start="earliest")
        await (await client.producer("orders")).send(b"1")
        bills = await client.producer("bills")
        await bills.send(b"earlier bill")
        await clock.advance(INTERVAL_MS)
        counts: list[int] = []

        async def bill(order: Message, txn: Transaction) -> None:
            counts.append(order.redelivery_count)
            await bills.send(b"bill", txn=txn)
            consumer.stop()

        consumer = await client.consumer("orders", "billing", dead_letter=DeadLetter(redeliveries_max=0))
        running = asyncio.ensure_future(consumer.run(bill, retries_max=2))
        for _ in range(20):
            await run_ready()
            await clock.advance(HOUR_MS // 20)
        assert len(counts) > 5
        await client.seek("bills", "audit", "latest")
        while not running.done():
            await clock.advance(INTERVAL_MS)
            await run_ready()
        await running
        assert {*counts} == {0}
        async with await client.reader("bills") as reader:
            assert [message.value async for message in reader] == [b"earlier bill", b"bill"]

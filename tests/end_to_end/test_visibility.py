"""Behaviours 1 to 3, 6, 7 and 9: what is sent in transactions, and when it can be read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Isolation, State, TopicName, TxnID
from txnframework.errors import InvalidInput, TransactionConflict
from txnframework.testing.clock import run_ready

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.families


async def test_a_plain_message_is_delivered_at_once(stores: Stores) -> None:
    """Messages outside transactions need nothing else to be delivered."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing")
        await producer.send(b"one", key=b"k", headers={"a": b"1"})
        message = await consumer.receive(timeout_ms=60_000)
        assert (message.value, message.key, dict(message.headers)) == (b"one", b"k", {"a": b"1"})
        orders = str(TopicName.parse("orders"))
        assert (message.topic, message.txn_id, message.committed) == (orders, None, True)
        assert message.redelivery_count == 0
        await consumer.close()


async def test_a_transaction_is_invisible_before_commit_and_whole_after(stores: Stores) -> None:
    """Over several topics, of several namespaces: all or nothing; an aborted one leaves nothing."""
    async with stores.open() as client:
        topics = ["topic://public/default/a", "topic://shop/sales/b"]
        for topic in topics:
            await client.create_topic(topic, segments=2)
        producers = [await client.producer(topic) for topic in topics]
        async with client.transaction() as txn:
            for producer in producers:
                await producer.send_many([b"1", b"2", b"3", b"4"], txn=txn)
            for topic in topics:
                assert await stores.read(client, topic) == []
            assert txn.state is State.OPEN
        for topic in topics:
            assert sorted(await stores.read(client, topic)) == [b"1", b"2", b"3", b"4"]
        async with client.transaction() as txn:
            for producer in producers:
                await producer.send(b"never", txn=txn)
            await txn.abort()
        for topic in topics:
            assert len(await stores.read(client, topic)) == 4
        assert await client.outcome(txn.id) is State.ABORTED


async def test_two_interleaved_transactions_are_delivered_in_position_order(stores: Stores) -> None:
    """The order of positions counts, not that of commits; nothing behind an open transaction is delivered."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing")
        first, second = client.transaction(), client.transaction()
        await first.begin()
        await second.begin()
        await producer.send(b"first-1", txn=first)
        await producer.send(b"second-1", txn=second)
        await producer.send(b"first-2", txn=first)
        await second.commit()
        await producer.send(b"plain")
        assert await stores.read(client, "orders") == []
        await first.commit()
        assert await stores.receive(consumer, 4) == [b"first-1", b"second-1", b"first-2", b"plain"]
        await consumer.close()


async def test_no_path_shows_what_is_open_or_aborted(stores: Stores) -> None:
    """No path shows open or aborted messages: subscription, reader, redelivery, seek.

    With read_uncommitted, they are returned and marked.
    """
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "old", start="earliest")
        await producer.send(b"one")
        async with client.transaction() as txn:
            await producer.send(b"aborted", txn=txn)
            await txn.abort()
        await producer.send(b"two")
        open_one = client.transaction()
        await open_one.begin()
        await producer.send(b"open", txn=open_one)
        await producer.send(b"behind")

        assert await stores.receive(consumer, 2) == [b"one", b"two"]
        await consumer.redeliver_unacknowledged()
        assert await stores.receive(consumer, 2) == [b"one", b"two"]
        fresh = await client.consumer("orders", "new", start="earliest")
        assert await stores.receive(fresh, 2) == [b"one", b"two"]
        assert await stores.read(client, "orders") == [b"one", b"two"]
        everything = await client.reader("orders", isolation=Isolation.READ_UNCOMMITTED)
        shown = [(message.value, message.committed) async for message in everything]
        assert shown[:2] == [(b"one", True), (b"aborted", False)]
        assert shown[2:] == [(b"two", True), (b"open", False), (b"behind", True)]

        await open_one.abort()
        assert await stores.receive(consumer, 1) == [b"behind"]
        assert await stores.receive(fresh, 1) == [b"behind"]
        await consumer.close()
        await fresh.close()


async def test_what_is_no_message_is_refused(memory: Stores) -> None:
    """Values and keys must be bytes, headers text and bytes; the error says so, and other messages are unaffected."""
    async with memory.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        wrong: list[dict[str, Any]] = [{"value": "text"}, {"key": 7}, {"headers": {"a": 1}}, {"sequence_id": -1}]
        sends = [producer.send(**{"value": b"", **one}) for one in wrong]
        results = await asyncio.gather(producer.send(b"good"), *sends, return_exceptions=True)
        assert [type(result) for result in results[1:]] == [InvalidInput] * 4
        assert await memory.read(client, "orders") == [b"good"]


async def test_an_exception_aborts_and_is_raised_again(stores: Stores) -> None:
    """Leaving the block by an exception aborts."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        txn = client.transaction()

        async def fail() -> None:
            async with txn:
                await producer.send(b"never", txn=txn)
                raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await fail()
        assert await client.outcome(txn.id) is State.ABORTED
        with pytest.raises(TransactionConflict):
            await producer.send(b"late", txn=txn)
        assert await stores.read(client, "orders") == []


async def test_many_small_transactions_keep_their_order(memory: Stores) -> None:
    """1000 transactions one after the other are read in the order of their commits."""
    async with memory.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        sent = [b"%d" % number for number in range(1_000)]
        for value in sent:
            async with client.transaction() as txn:
                await producer.send(value, txn=txn)
        assert await memory.read(client, "orders") == sent


async def test_what_takes_effect_at_the_same_time_is_bounded(memory: Stores) -> None:
    """The configured number of settlements run at once, as many wait, and a sweep does the rest."""
    bounds: dict[str, object] = {
        "settling_delay_ms": 0,
        "settling_max": 2,
        "settling_waiting_max": 1,
        "sweep": False,
    }
    async with memory.open(transactions=bounds) as client:
        coordinator: Any = await client.host.coordinator()
        settled: list[TxnID] = []
        gate = asyncio.Event()

        async def settle(txn_id: TxnID) -> None:
            settled.append(txn_id)
            await gate.wait()

        coordinator.settle = settle
        txns = [TxnID(0, number) for number in range(4)]
        for txn_id in txns:
            client.host.own_transactions.settle_soon(txn_id)
        await run_ready()
        assert settled == txns[:2]
        gate.set()
        await run_ready()
        assert settled == txns[:3]


async def test_concurrent_first_sends_lose_nothing(stores: Stores) -> None:
    """Behaviours 7 and 9: several transactions and plain sends meet a fresh segment at once; order is that of calls."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")

        async def one(number: int) -> None:
            async with client.transaction() as txn:
                await producer.send(b"txn %d" % number, txn=txn)

        plain = [producer.send(b"plain %d" % number) for number in range(20)]
        await asyncio.gather(*(one(number) for number in range(10)), *plain)
        found = await stores.read(client, "orders")
        assert sorted(found) == sorted(
            [b"txn %d" % number for number in range(10)] + [b"plain %d" % number for number in range(20)]
        )
        assert [one for one in found if one.startswith(b"plain")] == [b"plain %d" % n for n in range(20)]

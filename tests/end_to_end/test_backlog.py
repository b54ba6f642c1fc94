"""Lag and peek show the messages that a subscription has yet to receive, without undecided and aborted ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from txnframework.errors import InvalidInput, SubscriptionNotFound, TopicNotFound

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.families


@pytest.mark.metadata_family("it looks at exact figures")
async def test_lag_follows_acknowledgments(stores: Stores) -> None:
    """Lag counts acks outside transactions and in committed ones: whole batches, parts of them, and ranges
    after a gap.
    """
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic("orders")
        consumer = await client.consumer("orders", "billing", start="earliest", type="shared")
        producer = await client.producer("orders")
        await producer.send_many([b"%d" % number for number in range(5)])
        await producer.send(b"5")
        await producer.send(b"6")
        lag = await elsewhere.lag("orders", "billing")
        assert (lag.messages, lag.exact) == (7, True)
        messages = [await consumer.receive() for _ in range(7)]
        await consumer.ack(messages[1], messages[5])
        assert (await elsewhere.lag("orders", "billing")).messages == 5
        async with client.transaction() as txn:
            await consumer.ack(messages[0], messages[2], messages[6], txn=txn)
            assert (await elsewhere.lag("orders", "billing")).messages == 5
        await (await client.host.coordinator()).settle(txn.id)
        assert (await elsewhere.lag("orders", "billing")).messages == 2
        assert [one.value for one in await elsewhere.peek("orders", "billing", 10)] == [b"3", b"4"]
        assert [one.value for one in await elsewhere.peek("orders", "billing")] == [b"3"]
        await consumer.ack(messages[3], messages[4])
        assert (await elsewhere.lag("orders", "billing")).messages == 0
        assert await elsewhere.peek("orders", "billing", 10) == ()
        await consumer.close()


@pytest.mark.metadata_family("it looks at exact figures")
async def test_what_is_undecided_or_aborted(stores: Stores) -> None:
    """Open transactions hold back later messages.

    Aborted messages are never shown, and the lag is marked as inexact.
    """
    async with stores.open() as client:
        await client.create_topic("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await consumer.close()
        producer = await client.producer("orders")
        await producer.send(b"1")
        lost, kept = client.transaction(), client.transaction()
        for txn, value in ((lost, b"lost"), (kept, b"kept")):
            await txn.begin()
            await producer.send(value, txn=txn)
        await producer.send(b"2")
        assert (await client.lag("orders", "billing")).messages == 1
        assert [one.value for one in await client.peek("orders", "billing", 10)] == [b"1"]
        await lost.abort()
        await kept.commit()
        for _ in range(2):
            lag = await client.lag("orders", "billing")
            assert (lag.messages, lag.exact) == (4, False)
            peeked = await client.peek("orders", "billing", 10)
            assert [one.value for one in peeked] == [b"1", b"kept", b"2"]
            await (await client.host.coordinator()).settle(lost.id)
        consumer = await client.consumer("orders", "billing")
        messages = await stores.receive(consumer, 3)
        assert messages == [b"1", b"kept", b"2"]
        await consumer.ack_cumulative(peeked[-1])
        lag = await client.lag("orders", "billing")
        assert (lag.messages, lag.exact) == (0, True)
        await consumer.close()


@pytest.mark.metadata_family("it splits or merges topics, and a sealed one takes no markers")
async def test_by_segment(stores: Stores) -> None:
    """Parents before children, and what was trimmed is not counted."""
    async with stores.open(retention={"backlog_time_ms": 0}) as client:
        await client.create_topic("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await consumer.close()
        producer = await client.producer("orders")
        sent = await producer.send(b"gone", key=b"a")
        await (await client.host.segment(sent.segment)).ledger.roll()
        await producer.send(b"old", key=b"a")
        assert (await client.lag("orders", "billing")).messages == 2
        await client.host.maintenance.round()
        await client.split("orders", 0)
        for number in range(4):
            await producer.send(b"new", key=b"%d" % number)
        lag = await client.lag("orders", "billing")
        assert (lag.segments[0].messages, lag.messages, lag.exact) == (1, 5, True)
        assert [one.segment for one in lag.segments] == [
            str((await client.layout("orders")).name_of(number)) for number in range(3)
        ]
        peeked = [one.value for one in await client.peek("orders", "billing", 10)]
        assert peeked == [b"old", b"new", b"new", b"new", b"new"]


def test_what_is_not_there(memory: Stores) -> None:
    """A missing topic or subscription raises a clear error; the blocking facade has both calls."""

    async def work() -> None:
        async with memory.open() as client:
            await client.create_topic("orders")
            for look in (client.lag, client.peek):
                with pytest.raises(SubscriptionNotFound):
                    await look("orders", "nobody")
                with pytest.raises(TopicNotFound):
                    await look("invoices", "nobody")
            with pytest.raises(InvalidInput):
                await client.peek("orders", "nobody", 0)

    memory.run(work())
    with memory.open_blocking() as client:
        client.create_topic("invoices")
        client.consumer("invoices", "billing", start="earliest").close()
        client.producer("invoices").send(b"1")
        assert client.lag("invoices", "billing").messages == 1
        assert [one.value for one in client.peek("invoices", "billing")] == [b"1"]
        client.delete_topic("invoices", force=True)
        client.delete_namespace("public/default")
        with pytest.raises(InvalidInput, match="tenant/namespace"):
            client.delete_namespace("public")

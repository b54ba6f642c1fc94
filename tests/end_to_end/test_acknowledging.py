"""Behaviours 17 to 27: acknowledging in transactions and outside of them, and what is delivered again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from txnframework import AckState, Message, State
from txnframework.errors import (
    Closed,
    ConsumerBusy,
    InvalidInput,
    ReceiveTimeout,
    SubscriptionOwnedElsewhere,
    TransactionConflict,
    TransactionHasFailedOperations,
)

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]


async def test_acked_in_a_transaction(stores: Stores) -> None:
    """A message acked in an open transaction is delivered to no consumer.

    After the commit, it is never delivered again.
    """
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await producer.send_many([b"1", b"2", b"3"])
        one, two, three = [await consumer.receive(timeout_ms=60_000) for _ in range(3)]
        async with client.transaction() as txn:
            await consumer.ack(one, txn=txn)
            await consumer.ack(two, txn=txn)
            await consumer.redeliver_unacknowledged()
            again = await consumer.receive(timeout_ms=60_000)
            assert (again.id, again.redelivery_count) == (three.id, 1)
            await consumer.close()
            consumer = await client.consumer("orders", "billing")
            assert await stores.receive(consumer, 1) == [b"3"]
        await producer.send(b"4")
        assert await stores.receive(consumer, 1) == [b"4"]
        await consumer.close()
    async with stores.open() as client:
        consumer = await client.consumer("orders", "billing")
        assert await stores.receive(consumer, 2) == [b"3", b"4"]
        await consumer.close()


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_an_abort_gives_acked_messages_back(stores: Stores, kind: str) -> None:
    """Redelivered messages have the same ids and a higher redelivery count; single messages and parts of batches."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest", type=kind)
        await producer.send(b"single")
        await producer.send_many([b"1", b"2", b"3"])
        received = [await consumer.receive(timeout_ms=60_000) for _ in range(4)]
        async with client.transaction() as txn:
            await consumer.ack(received[0], received[2], txn=txn)
            await txn.abort()
        again = [await consumer.receive(timeout_ms=60_000) for _ in range(2)]
        assert [one.id for one in again] == [received[0].id, received[2].id]
        assert [one.redelivery_count for one in again] == [1, 1]
        async with client.transaction() as txn:
            await consumer.ack(*again, txn=txn)
        await consumer.ack(received[1], received[3])
        await consumer.close()
        await producer.send(b"after")
        consumer = await client.consumer("orders", "billing", type=kind)
        assert await stores.receive(consumer, 1) == [b"after"]
        await consumer.close()


async def test_two_transactions_on_one_message_conflict(stores: Stores) -> None:
    """The second transaction gets a conflict and is poisoned.

    Acks of disjoint parts of one batch are both committed.
    """
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await producer.send_many([b"1", b"2", b"3"])
        one, two, three = [await consumer.receive(timeout_ms=60_000) for _ in range(3)]
        first, second, third = (client.transaction() for _ in range(3))
        for txn in (first, second, third):
            await txn.begin()
        await consumer.ack(one, txn=first)
        await consumer.ack(two, txn=second)
        with pytest.raises(TransactionConflict):
            await consumer.ack(one, three, txn=third)
        with pytest.raises(TransactionHasFailedOperations):
            await third.commit()
        await first.commit()
        await second.commit()
        await consumer.close()
        consumer = await client.consumer("orders", "billing")
        assert await stores.receive(consumer, 1) == [b"3"]
        again = client.transaction()
        await again.begin()
        with pytest.raises(TransactionConflict):
            await consumer.ack(one, txn=again)
        await again.abort()
        await consumer.close()


async def test_a_plain_ack_of_a_pending_message_is_dropped(stores: Stores) -> None:
    """While a transaction holds a message, a plain ack of that message has no effect."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await producer.send(b"one")
        message = await consumer.receive(timeout_ms=60_000)
        async with client.transaction() as txn:
            await consumer.ack(message, txn=txn)
            await consumer.ack(message)
            await txn.abort()
        assert (await consumer.receive(timeout_ms=60_000)).redelivery_count == 1
        await consumer.close()


async def test_cumulative_acks(stores: Stores) -> None:
    """In a transaction, cumulative acks only move forward; after an abort, redelivery on request keeps the order."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        for number in range(5):
            await producer.send(b"%d" % number)
        received = [await consumer.receive(timeout_ms=60_000) for _ in range(5)]
        async with client.transaction() as txn:
            await consumer.ack_cumulative(received[1], txn=txn)
            await consumer.ack_cumulative(received[2], txn=txn)
            other = client.transaction()
            await other.begin()
            with pytest.raises(TransactionConflict):
                await consumer.ack_cumulative(received[3], txn=other)
            await other.abort()
            await txn.abort()
        await consumer.redeliver_unacknowledged()
        assert await stores.receive(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]
        async with client.transaction() as txn:
            await consumer.ack_cumulative(received[2], txn=txn)
        await consumer.ack_cumulative(received[3])
        await consumer.close()
        consumer = await client.consumer("orders", "billing")
        assert await stores.receive(consumer, 1) == [b"4"]
        await consumer.close()
        shared = await client.consumer("orders", "other", type="shared")
        with pytest.raises(InvalidInput, match="no order"):
            await shared.ack_cumulative(received[0])
        await shared.close()


async def test_two_subscriptions_in_one_transaction(stores: Stores) -> None:
    """Behaviour 22: each subscription is a separate participant, and both follow the one decision."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        names = ("billing", "shipping")
        consumers = [await client.consumer("orders", name, start="earliest") for name in names]
        await producer.send(b"one")
        for action in ("abort", "commit"):
            async with client.transaction() as txn:
                for consumer in consumers:
                    await consumer.ack(await consumer.receive(timeout_ms=60_000), txn=txn)
                if action == "abort":
                    await txn.abort()
        await producer.send(b"two")
        for consumer in consumers:
            assert await stores.receive(consumer, 1) == [b"two"]
            await consumer.close()


async def test_a_consumer_of_another_subscription_is_refused(stores: Stores) -> None:
    """Acknowledging a message that another subscription received is refused."""
    async with stores.open() as client:
        await client.create_topic("orders")
        await (await client.producer("orders")).send(b"one")
        async with (
            client.consumer("orders", "billing", start="earliest") as billing,
            client.consumer("orders", "shipping", start="earliest") as shipping,
        ):
            message = await billing.receive(timeout_ms=60_000)
            (peeked,) = await client.peek("orders", "billing")
            async with client.transaction() as txn:
                for wrong in (message, peeked):
                    for call in (
                        lambda: shipping.ack(wrong),  # noqa: B023
                        lambda: shipping.ack(wrong, txn=txn),  # noqa: B023
                        lambda: shipping.ack_cumulative(wrong),  # noqa: B023
                        lambda: shipping.nack(wrong),  # noqa: B023
                        lambda: client.transact(shipping.acknowledging(wrong)),  # noqa: B023
                    ):
                        with pytest.raises(InvalidInput, match=r"subscription billing, .* of shipping"):
                            await call()
                await txn.abort()
            lags = [(await client.lag("orders", name)).messages for name in ("billing", "shipping")]
            assert lags == [1, 1]
            async with client.reader("orders") as reader:
                read = await anext(aiter(reader))
            assert (message.subscription, peeked.subscription, read.subscription) == ("billing", "billing", "")
            await billing.ack(message)
            await shipping.ack(message.id)  # an id is the same in every subscription
            lags = [(await client.lag("orders", name)).messages for name in ("billing", "shipping")]
            assert lags == [0, 0]


async def test_a_message_of_a_reader_is_acknowledged_as_its_id(stores: Stores) -> None:
    """A reader has no subscription, so any consumer may acknowledge its messages, in a transaction and outside."""
    async with stores.open() as client:
        await client.create_topic("orders")
        await client.subscribe("orders", "billing", start="earliest")
        async with client.producer("orders") as producer, client.consumer("orders", "billing") as consumer:
            await producer.send_many([b"1", b"2"])
            await producer.send_many([b"3", b"4"])
            async with client.reader("orders") as reader:
                one, two, three, four = [message async for message in reader]
            await consumer.receive_many(messages_max=4, timeout_ms=60_000)
            await consumer.ack(one)
            async with client.transaction() as txn:
                await consumer.ack(two, txn=txn)
            await client.transact(consumer.acknowledging(three))
            for ack in (one, two, three):
                assert (await client.ack_status("billing", ack.id)).state is AckState.DELETED
            assert (await client.ack_status("billing", four.id)).state is AckState.PENDING
            await consumer.ack_cumulative(four)
            assert (await client.ack_status("billing", four.id)).state is AckState.DELETED


async def test_shared_consumers_divide_the_messages(stores: Stores) -> None:
    """Each message goes to one consumer; unacknowledged messages of a closed consumer go to the other."""
    async with stores.open(client={"receive_messages_max": 3}) as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        first = await client.consumer("orders", "billing", type="shared", start="earliest")
        second = await client.consumer("orders", "billing", type="shared")
        for number in range(6):
            await producer.send(b"%d" % number)
        left = await stores.receive(first, 3)
        right = await stores.receive(second, 3)
        assert sorted(left + right) == [b"%d" % number for number in range(6)]
        await first.close()
        assert sorted(await stores.receive(second, 3)) == sorted(left)
        await second.close()


@pytest.mark.metadata_family("its topics have several segments")
async def test_exclusive_takes_one_consumer(stores: Stores) -> None:
    """A second exclusive consumer is refused; in another process, the error names the process that dispatches."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic("orders", segments=2)
        consumer = await client.consumer("orders", "billing", name="the-first")
        with pytest.raises(ConsumerBusy, match="the-first"):
            await client.consumer("orders", "billing")
        with pytest.raises(SubscriptionOwnedElsewhere) as refused:
            await elsewhere.consumer("orders", "billing")
        assert "stand_by=True" in str(refused.value)
        assert "'failover'" in str(refused.value)
        place = f"{client.host.environment.process_name()} in {client.host.metadata.session}"
        assert refused.value.holder == f"the-first on {place} as exclusive"
        await consumer.close()
        consumer = await elsewhere.consumer("orders", "billing")
        await consumer.close()


async def test_a_nack_is_delivered_again(stores: Stores) -> None:
    """A nacked message returns with a higher redelivery count; an acknowledged message is not delivered again."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await producer.send_many([b"1", b"2"])
        one, two = [await consumer.receive(timeout_ms=60_000) for _ in range(2)]
        await consumer.ack(one)
        await consumer.nack(one, two)
        again = await consumer.receive(timeout_ms=60_000)
        assert (again.id, again.redelivery_count) == (two.id, 1)
        await consumer.close()
        with pytest.raises(Closed):
            await consumer.ack(two)
        with pytest.raises(Closed):
            await consumer.receive()


async def test_receive_times_out(stores: Stores) -> None:
    """A receive with a timeout ends in time, and later messages are not lost."""
    async with stores.open() as client:
        await client.create_topic("orders")
        consumer = await client.consumer("orders", "billing")
        with pytest.raises(ReceiveTimeout):
            await consumer.receive(timeout_ms=1)
        waiting = asyncio.ensure_future(consumer.receive())
        await (await client.producer("orders")).send(b"one")
        assert (await waiting).value == b"one"
        await consumer.close()


async def test_acknowledging_by_id_and_after_a_seek(stores: Stores) -> None:
    """A message id is enough to acknowledge; ids received before a seek acknowledge nothing after the seek."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        for number in range(3):
            await producer.send(b"%d" % number)
        received = [await consumer.receive(timeout_ms=60_000) for _ in range(3)]
        await consumer.ack(*(one.id for one in received))
        await consumer.seek(received[1].id)
        again = [await consumer.receive(timeout_ms=60_000) for _ in range(2)]
        assert [one.id for one in again] == [received[1].id, received[2].id]
        await consumer.ack(received[1])  # received before the seek
        await consumer.redeliver_unacknowledged()
        assert await stores.receive(consumer, 2) == [b"1", b"2"]
        async with client.transaction() as txn:
            with pytest.raises(TransactionConflict):
                await consumer.ack(received[1], txn=txn)
            await txn.abort()
        assert txn.state is State.ABORTED
        await consumer.ack(*again)
        await consumer.close()


async def test_aborted_entries_do_not_hold_the_cursor_back(stores: Stores) -> None:
    """The cursor of a subscription passes aborted entries, even when nothing else is acknowledged."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        async with client.transaction() as txn:
            last = await producer.send(b"never", txn=txn)
            await txn.abort()
        await producer.send(b"one")
        message: Message = await consumer.receive(timeout_ms=60_000)
        await consumer.ack(message)
        subscribed = await client.host.subscription(message.topic, "billing", message.id.segment)
        cursor = await subscribed.cursor.load()
        assert (cursor.mark_delete, tuple(cursor.deleted)) == (message.id.position.entry, ())
        assert last.position.entry < cursor.mark_delete
        await consumer.close()

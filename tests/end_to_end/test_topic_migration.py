"""A topic migrates from the log family to the metadata family while producers, consumers and readers use it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from migrating import BOTH, NEW, OLD, SOON_MS, migrate, values

from txnframework.errors import (
    InvalidTransactionState,
    MigrationRefused,
    ReceiveTimeout,
    TopicExists,
    TopicInUse,
    TopicNotFound,
    TransactionConflict,
    TransactionDomainMismatch,
    TransactionHasFailedOperations,
)
from txnframework.model.names import TopicName
from txnframework.model.topic_migration import MigrationStep

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.log_family


async def test_outcomes_stay(stores: Stores) -> None:
    """Committed messages are read from the new topic, in their order; aborted and open ones are not, and no marker."""
    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        await client.create_topic(OLD)
        sender = await client.producer(OLD)
        await sender.send(b"plain")
        kept, dropped, left = (client.transaction(domain="persistent") for _ in range(3))
        for txn, value in ((kept, b"kept"), (dropped, b"dropped"), (left, b"left open")):
            await txn.begin()
            await sender.send(value, txn=txn)
        await kept.commit()
        await dropped.abort()
        await sender.send(b"last")
        assert await values(elsewhere, OLD) == [b"plain", b"kept"]

        await migrate(client)

        for one in (client, elsewhere):
            for topic in (OLD, NEW):
                assert await values(one, topic) == [b"plain", b"kept", b"last"]
        with pytest.raises((InvalidTransactionState, TransactionHasFailedOperations)):
            await left.commit()
        await sender.send(b"after")
        assert await values(elsewhere, NEW) == [b"plain", b"kept", b"last", b"after"]
        assert [str(one) for one in await client.topics.list()] == [NEW]


async def test_producers_and_consumers_follow(stores: Stores) -> None:
    """An open producer, consumer and reader go on over the migration; acknowledgments are kept, in both directions."""
    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        await client.create_topic(OLD)
        sender = await client.producer(OLD)
        consumer = await elsewhere.consumer(OLD, "billing", start="earliest")
        reader = await elsewhere.reader(OLD, follow=True)
        follow = aiter(reader)
        await sender.send_many([b"1", b"2", b"3"])
        first, second, third = [await consumer.receive(timeout_ms=SOON_MS) for _ in range(3)]
        assert [(await anext(follow)).value for _ in range(3)] == [b"1", b"2", b"3"]
        async with elsewhere.transaction(domain="persistent") as txn:
            await consumer.ack(first, txn=txn)
        held = elsewhere.transaction(domain="persistent")
        await held.begin()
        await consumer.ack(second, txn=held)

        await migrate(client)
        await sender.send(b"4")

        assert (await anext(follow)).value == b"4"
        again = {(await consumer.receive(timeout_ms=SOON_MS)).value: one for one in range(2)}
        assert set(again) == {b"2", b"3"}
        with pytest.raises((InvalidTransactionState, TransactionHasFailedOperations)):
            await held.commit()
        with pytest.raises((TransactionDomainMismatch, TransactionConflict)):
            async with elsewhere.transaction(domain="persistent") as old_family:
                await consumer.ack(third, txn=old_family)
        assert await elsewhere.transaction_domain(OLD) == "segment"
        async with elsewhere.transaction(domain=await elsewhere.transaction_domain(OLD)) as txn:
            await consumer.ack(second, third, txn=txn)
            await (await elsewhere.producer(OLD)).send(b"5", txn=txn)
        rest = [(await consumer.receive(timeout_ms=SOON_MS)).value for _ in range(2)]
        assert rest == [b"4", b"5"]
        assert [(await anext(follow)).value] == [b"5"]
        await reader.close()


async def test_withdrawing(stores: Stores) -> None:
    """A planned migration reserves the new name, changes nothing for users, and can be withdrawn and planned again."""
    async with stores.open(**BOTH) as client:
        await client.create_topic(OLD)
        sender = await client.producer(OLD)
        migrations, old, new = client.topics.migrations, TopicName.parse(OLD), TopicName.parse(NEW)
        for _ in range(2):
            assert await migrations.plan(old, new)
            assert (await migrations.describe(old, new)).step is MigrationStep.PLANNED
            with pytest.raises(TopicExists):
                await client.create_topic(NEW)
            with pytest.raises(TopicInUse):
                await client.delete_topic(OLD)
            with pytest.raises(MigrationRefused):
                await migrations.plan(old, TopicName.parse(f"{NEW}-2"))
            async with client.transaction(domain="persistent") as txn:
                await sender.send(b"1", txn=txn)
            assert await migrations.withdraw(old)
            assert not await migrations.withdraw(old)
        assert (await migrations.describe(old, new)).step is None
        assert await values(client, OLD) == [b"1", b"1"]
        await client.create_topic(NEW)
        with pytest.raises(TopicExists):
            await migrations.migrate(old, new)
        await client.delete_topic(NEW)
        await migrate(client)
        assert not await migrations.plan(old, new)
        assert await values(client, NEW) == [b"1", b"1"]


async def test_deleting_what_has_migrated(stores: Stores) -> None:
    """A topic that has migrated is deleted with the messages of the former one, and both names can be used again."""
    async with stores.open(**BOTH) as client:
        for value in (b"1", b"2"):
            await client.create_topic(OLD)
            await client.subscribe(OLD, "billing", start="earliest")
            sender = await client.producer(OLD)
            async with client.transaction(domain="persistent") as txn:
                await sender.send(value, txn=txn)
            await migrate(client)
            with pytest.raises(TopicExists):
                await client.create_topic(OLD)
            assert await values(client, NEW) == [value]
            async with await client.consumer(OLD, "billing") as consumer:
                received = await consumer.receive(timeout_ms=SOON_MS)
                assert received.value == value
                await consumer.ack(received)
            await client.delete_topic(OLD if value == b"1" else NEW, force=True)
            for topic in (OLD, NEW):
                with pytest.raises(TopicNotFound):
                    await client.describe_topic(topic)
        assert await client.topics.list() == ()
        await client.create_topic(NEW)
        assert await values(client, NEW) == []


async def test_splitting_what_has_migrated(stores: Stores) -> None:
    """The new topic is split; a consumer reads the former topic's messages, then the child's, then its children's."""
    async with stores.open(**BOTH) as client:
        await client.create_topic(OLD)
        sender = await client.producer(OLD)
        await client.subscribe(OLD, "billing", start="earliest")
        await sender.send(b"1", key=b"k")
        await migrate(client)
        await sender.send(b"2", key=b"k")
        await client.split(NEW, 1)
        await sender.send(b"3", key=b"k")
        async with await client.consumer(NEW, "billing") as consumer:
            for expected in (b"1", b"2", b"3"):
                message = await consumer.receive(timeout_ms=SOON_MS)
                assert message.value == expected
                await consumer.ack(message)
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=20)


async def test_waiting_for_open_transactions(stores: Stores) -> None:
    """A transaction that commits while the migration waits for it is kept whole."""
    async with stores.open(**BOTH) as client:
        await client.create_topic(OLD)
        sender = await client.producer(OLD)
        txn = client.transaction(domain="persistent")
        await txn.begin()
        await sender.send(b"1", txn=txn)
        waiting = asyncio.Event()

        def show(step: str, done: int, total: int) -> None:
            if step == "wait for open transactions":
                waiting.set()

        migrating = asyncio.ensure_future(migrate(client, wait_ms=SOON_MS, progress=show))
        await waiting.wait()
        await sender.send(b"2", txn=txn)
        await txn.commit()
        await migrating
        assert await values(client, NEW) == [b"1", b"2"]


async def test_processes_that_share_a_subscription(stores: Stores) -> None:
    """Two processes divide the subscription before and after; what one of them leaves goes to the other."""
    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        await client.create_topic(OLD)
        sender = await client.producer(OLD)
        first = await client.consumer(OLD, "billing", type="shared", start="earliest")
        second = await elsewhere.consumer(OLD, "billing", type="shared", start="earliest")
        before, after = ([b"%d" % number for number in numbers] for numbers in (range(10), range(10, 20)))
        await sender.send_many(before)
        taken = await first.receive_many(messages_max=3, timeout_ms=SOON_MS)
        await first.ack(*taken)

        await migrate(elsewhere)
        await sender.send_many(after)
        await first.close()

        received = [message.value for message in taken]
        while len(received) < 20:
            found = await second.receive_many(messages_max=20, timeout_ms=SOON_MS)
            await second.ack(*found)
            received += [message.value for message in found]
        assert sorted(received) == sorted(before + after)
        with pytest.raises(ReceiveTimeout):
            await second.receive(timeout_ms=20)

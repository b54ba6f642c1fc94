"""A topic migrates from the metadata family to the log family, and there and back, while it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from migrating import BOTH, NEW, OLD, SOON_MS, migrate, take, values

from txnframework.errors import (
    Conflict,
    InvalidTransactionState,
    MigrationRefused,
    ReceiveTimeout,
    TopicExists,
    TopicNotFound,
    TransactionConflict,
    TransactionDomainMismatch,
    TransactionHasFailedOperations,
)
from txnframework.model import PutSequential, Step, index_keys, paths
from txnframework.model.indexes import WRITES_BY_SEGMENT
from txnframework.model.metadata import IndexEntry
from txnframework.model.names import TopicName
from txnframework.model.records import WriteOperation, encode

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.log_family

SCALABLE, LOGGED = "topic://public/default/orders", "persistent://public/default/orders"
ELSEWHERE = "persistent://public/default/elsewhere"


async def back(client: Any, wait_ms: int = 0) -> None:
    await migrate(client, SCALABLE, LOGGED, wait_ms)


def test_outcomes_stay(stores: Stores) -> None:
    """Committed messages are read from the persistent topic, in their order; aborted and open ones are not."""

    async def work() -> None:
        async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
            await client.create_topic(SCALABLE)
            sender = await client.producer(SCALABLE)
            await sender.send(b"plain")
            kept, dropped, left = (client.transaction() for _ in range(3))
            for txn, value in ((kept, b"kept"), (dropped, b"dropped"), (left, b"left open")):
                await txn.begin()
                await sender.send(value, txn=txn)
            await kept.commit()
            await dropped.abort()
            await sender.send(b"last")
            assert await values(elsewhere, SCALABLE) == [b"plain", b"kept"]

            await back(client)

            for one in (client, elsewhere):
                for topic in (SCALABLE, LOGGED):
                    assert await values(one, topic) == [b"plain", b"kept", b"last"]
            with pytest.raises((InvalidTransactionState, TransactionHasFailedOperations)):
                await left.commit()
            await sender.send(b"after")
            async with client.transaction(domain="persistent") as txn:
                await sender.send(b"in the log family", txn=txn)
            with pytest.raises((TransactionDomainMismatch, TransactionConflict)):
                async with client.transaction() as txn:
                    await sender.send(b"in the metadata family", txn=txn)
            dropped = client.transaction(domain="persistent")
            await dropped.begin()
            await sender.send(b"dropped, too", txn=dropped)
            await dropped.abort()
            expected = [b"plain", b"kept", b"last", b"after", b"in the log family"]
            assert await values(elsewhere, LOGGED) == await values(elsewhere, SCALABLE) == expected
            assert [str(one) for one in await client.topics.list()] == [LOGGED]
            async with stores.open(**BOTH) as fresh:
                assert await values(fresh, LOGGED) == expected

    stores.run(work())


def test_a_transaction_that_announced_a_write_and_wrote_nothing(stores: Stores) -> None:
    """It is aborted like one that wrote, so that it does not hold back readers of the former segment."""

    async def work() -> None:
        async with stores.open(**BOTH) as client:
            await client.create_topic(SCALABLE)
            await client.create_topic("topic://public/default/notes")
            announced = client.transaction()
            await announced.begin()
            notes = await client.producer("topic://public/default/notes")
            await notes.send(b"stores the header", txn=announced)
            segment = str((await client.layout(SCALABLE)).name_of(0))
            tail = await (await client.host.segment(segment)).ledger.tail()
            write = WriteOperation(0, segment, tail.open_ledger_id, str(tail.last_confirmed))
            listed = IndexEntry(WRITES_BY_SEGMENT, index_keys.encode(segment, str(announced.id)))
            prefix = paths.operations_prefix(announced.id)
            await client.host.metadata.apply(Step(puts=(PutSequential(prefix, encode(write), (listed,)),)))
            await (await client.producer(SCALABLE)).send(b"plain")
            assert await values(client, SCALABLE) == []

            await back(client)

            assert await values(client, LOGGED) == [b"plain"]
            with pytest.raises(InvalidTransactionState):
                await announced.commit()

    stores.run(work())


def test_producers_and_consumers_follow(stores: Stores) -> None:
    """An open producer, consumer and reader go on over the migration; acknowledgments are kept, in both directions."""

    async def work() -> None:
        async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
            await client.create_topic(SCALABLE)
            sender = await client.producer(SCALABLE)
            consumer = await elsewhere.consumer(SCALABLE, "billing", start="earliest")
            reader = await elsewhere.reader(SCALABLE, follow=True)
            follow = aiter(reader)
            await sender.send_many([b"1", b"2", b"3"])
            first, second, third = [await consumer.receive(timeout_ms=SOON_MS) for _ in range(3)]
            assert [(await anext(follow)).value for _ in range(3)] == [b"1", b"2", b"3"]
            async with elsewhere.transaction() as txn:
                await consumer.ack(first, txn=txn)
            held = elsewhere.transaction()
            await held.begin()
            await consumer.ack(second, txn=held)

            await back(client)
            await sender.send(b"4")

            assert (await anext(follow)).value == b"4"
            with pytest.raises((InvalidTransactionState, TransactionHasFailedOperations)):
                await held.commit()
            with pytest.raises((TransactionDomainMismatch, TransactionConflict)):
                async with elsewhere.transaction() as old_family:
                    await consumer.ack(third, txn=old_family)
            assert await elsewhere.transaction_domain(SCALABLE) == "persistent"
            assert await take(elsewhere, consumer, SCALABLE, 3) == [b"2", b"3", b"4"]
            async with elsewhere.transaction(domain=await elsewhere.transaction_domain(SCALABLE)) as txn:
                await (await elsewhere.producer(SCALABLE)).send(b"5", txn=txn)
            assert [(await anext(follow)).value] == [b"5"]
            assert await take(elsewhere, consumer, SCALABLE, 1) == [b"5"]
            await reader.close()
            await consumer.close()
            async with stores.open(**BOTH) as fresh, await fresh.consumer(LOGGED, "billing") as last:
                with pytest.raises(ReceiveTimeout):
                    await last.receive(timeout_ms=20)

    stores.run(work())


def test_there_and_back(stores: Stores) -> None:
    """A topic migrates three times each way, between its two names; open users and new ones see everything once."""

    async def work() -> None:
        async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
            await client.create_topic(OLD)
            sender = await client.producer(OLD)
            consumer = await elsewhere.consumer(OLD, "billing", start="earliest")
            expected: list[bytes] = []
            received: list[bytes | None] = []
            for number in range(6):
                domain = await client.transaction_domain(OLD)
                kept, dropped, held = (elsewhere.transaction(domain=domain) for _ in range(3))
                for txn, value in ((kept, b"kept %d" % number), (dropped, b"dropped %d" % number)):
                    await txn.begin()
                    await sender.send(value, txn=txn)
                await held.begin()
                await sender.send(b"plain %d" % number)
                await dropped.abort()
                await kept.commit()
                expected += [b"kept %d" % number, b"plain %d" % number]
                message = await consumer.receive(timeout_ms=SOON_MS)
                other = await consumer.receive(timeout_ms=SOON_MS)
                async with elsewhere.transaction(domain=domain) as txn:
                    await consumer.ack(message, txn=txn)
                received.append(message.value)
                await consumer.ack(other, txn=held)

                await migrate(client, *((OLD, NEW) if number % 2 == 0 else (NEW, OLD)))

                with pytest.raises((InvalidTransactionState, TransactionHasFailedOperations)):
                    await held.commit()
                assert await elsewhere.transaction_domain(OLD) == ("segment" if number % 2 == 0 else "persistent")
                received += await take(elsewhere, consumer, OLD, 1)
                async with stores.open(**BOTH) as fresh:
                    for one in (client, elsewhere, fresh):
                        for topic in (OLD, NEW):
                            assert await values(one, topic) == expected
            assert received == expected
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=20)
            await consumer.close()
            await client.delete_topic(OLD, force=True)
            for topic in (OLD, NEW):
                with pytest.raises(TopicNotFound):
                    await client.describe_topic(topic)
                await client.create_topic(topic)
                assert await values(client, topic) == []

    stores.run(work())


def test_several_segments_are_merged_first(stores: Stores) -> None:
    """A topic of several segments is refused until they are merged; a topic that was split keeps its messages."""

    async def work() -> None:
        async with stores.open(**BOTH) as client:
            await client.create_topic(SCALABLE)
            sender = await client.producer(SCALABLE)
            await client.subscribe(SCALABLE, "billing", start="earliest")
            await sender.send(b"1", key=b"k")
            low, high = await client.split(SCALABLE, 0)
            await sender.send(b"2", key=b"k")
            with pytest.raises(MigrationRefused, match="merge its segments 1, 2 first"):
                await back(client)
            await client.merge(SCALABLE, low, high)
            await sender.send(b"3", key=b"k")
            await back(client)
            await sender.send(b"4", key=b"k")
            with pytest.raises(Conflict):
                await client.split(LOGGED, 4)
            async with await client.consumer(LOGGED, "billing") as consumer:
                for expected in (b"1", b"2", b"3", b"4"):
                    message = await consumer.receive(timeout_ms=SOON_MS)
                    assert message.value == expected
                    async with client.transaction(domain="persistent") as txn:
                        await consumer.ack(message, txn=txn)
                with pytest.raises(ReceiveTimeout):
                    await consumer.receive(timeout_ms=20)

    stores.run(work())


def test_names(stores: Stores) -> None:
    """A topic may get another name on the way back; all earlier names refer to it, and are free after its deletion."""

    async def work() -> None:
        async with stores.open(**BOTH) as client:
            await client.create_topic(OLD)
            sender = await client.producer(OLD)
            await sender.send(b"1")
            await migrate(client)
            await sender.send(b"2")
            with pytest.raises(TopicExists):
                await client.create_topic(OLD)
            await migrate(client, NEW, ELSEWHERE)
            await sender.send(b"3")
            for topic in (OLD, NEW, ELSEWHERE):
                assert await values(client, topic) == [b"1", b"2", b"3"]
                with pytest.raises(TopicExists):
                    await client.create_topic(topic)
            await client.delete_topic(OLD)
            for topic in (OLD, NEW, ELSEWHERE):
                await client.create_topic(topic)
                assert await values(client, topic) == []

    stores.run(work())


def test_withdrawing(stores: Stores) -> None:
    """A planned way back changes nothing, and the former name refers to the topic all the while."""

    async def work() -> None:
        async with stores.open(**BOTH) as client:
            await client.create_topic(OLD)
            sender = await client.producer(OLD)
            await sender.send(b"1")
            await migrate(client)
            migrations, old, new = client.topics.migrations, *(TopicName.parse(one) for one in (OLD, NEW))
            for _ in range(2):
                assert await migrations.plan(new, old)
                assert await values(client, OLD) == [b"1"]
                with pytest.raises(TopicExists):
                    await client.create_topic(OLD)
                assert await migrations.withdraw(new)
            await migrate(client, NEW, OLD)
            assert await values(client, NEW) == [b"1"]

    stores.run(work())

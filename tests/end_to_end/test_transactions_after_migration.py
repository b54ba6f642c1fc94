"""Programs that were opened before a topic migrated go on with transactions of the family that it has now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from migrating import BOTH, NEW, OLD, SOON_MS, migrate, values

from txnframework import Client, DeadLetter, Message, PlannedSend, Producer, Transaction
from txnframework.errors import TransactionConflict, TransactionDomainMismatch
from txnframework.testing.clock import VirtualEnvironment

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.log_family


MINUTE_MS = 60_000


def outputs(topic: str) -> str:
    return topic.replace("orders", "invoices")


async def migrate_both(client: Client) -> None:
    await migrate(client)
    await migrate(client, outputs(OLD), outputs(NEW))


async def send(client: Client, producer: Producer, topic: str, value: bytes) -> None:
    async with client.transaction(domain=await client.transaction_domain(topic)) as txn:
        await producer.send(value, txn=txn)


async def test_a_producer_that_sends_in_transactions_only(stores: Stores) -> None:
    """It follows the topic, although no send outside of transactions shows it that the segment was sealed."""
    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        await client.create_topic(OLD)
        sender = await elsewhere.producer(OLD)
        await send(elsewhere, sender, OLD, b"1")
        await migrate(client)
        await send(elsewhere, sender, OLD, b"2")
        assert await values(client, OLD) == [b"1", b"2"]


async def test_a_transaction_that_began_before(stores: Stores) -> None:
    """Its send raises a conflict, after which programs begin another transaction; a wrong family is an error."""
    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        await client.create_topic(OLD)
        sender = await elsewhere.producer(OLD)
        domain = await elsewhere.transaction_domain(OLD)
        late = elsewhere.transaction(domain=domain)
        await late.begin()
        await migrate(client)
        with pytest.raises(TransactionConflict, match="migrated"):
            await sender.send(b"late", txn=late)
        await late.abort()
        async with elsewhere.transaction(domain=domain) as wrong:
            with pytest.raises(TransactionDomainMismatch):
                await sender.send(b"wrong", txn=wrong)
            with pytest.raises(TransactionDomainMismatch):
                await (await elsewhere.producer(OLD)).send(b"wrong", txn=wrong)
            await wrong.abort()
        await send(elsewhere, sender, OLD, b"right")
        assert await values(client, OLD) == [b"right"]


async def test_messages_from_before_in_planned_transactions(stores: Stores) -> None:
    """A message that is stored in a segment of the former family is acknowledged with what is sent, in one step."""
    async with stores.open(**BOTH) as client:
        for topic in (OLD, outputs(OLD)):
            await client.create_topic(topic)
        await (await client.producer(OLD)).send_many([b"1", b"2"])
        sender = await client.producer(outputs(OLD))
        await client.subscribe(OLD, "billing", start="earliest")
        await migrate_both(client)
        consumer = await client.consumer(OLD, "billing", type="failover")
        for _ in range(2):
            message = await consumer.receive(timeout_ms=SOON_MS)
            await client.transact(sender.outgoing(message.value), consumer.acknowledging(message))
        assert await values(client, outputs(OLD)) == [b"1", b"2"]
        assert (await client.lag(OLD, "billing")).messages == 0


async def test_handlers_that_return_what_is_sent(stores: Stores) -> None:
    """A handler that runs while both of its topics migrate handles each message once, and none is a dead letter."""
    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        for topic in (OLD, outputs(OLD)):
            await client.create_topic(topic)
        sender = await client.producer(OLD)
        results = await elsewhere.producer(outputs(OLD))
        letters = DeadLetter(redeliveries_max=1)
        consumer = await elsewhere.consumer(OLD, "billing", type="failover", start="earliest", dead_letter=letters)
        reached, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> PlannedSend:
            if message.value == b"2":
                reached.set()
                await go_on.wait()
            if message.value == b"5":
                done.set()
            return results.outgoing(message.value)

        running = asyncio.ensure_future(consumer.run(handle))
        await sender.send_many([b"1", b"2", b"3", b"4"])
        await reached.wait()
        await migrate_both(client)
        await sender.send(b"5")
        go_on.set()
        waiting = asyncio.ensure_future(done.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        consumer.stop()
        await running
        assert await values(client, outputs(OLD)) == [b"1", b"2", b"3", b"4", b"5"]


async def test_dead_letters_from_before(stores: Stores) -> None:
    """A message from before the migration that always fails becomes a dead letter of the topic's present name."""
    async with stores.open(**BOTH) as client:
        letter_topic = f"{NEW}-billing-DLQ"
        for topic in (OLD, letter_topic):
            await client.create_topic(topic)
        await (await client.producer(OLD)).send_many([b"bad", b"good"])
        await client.subscribe(OLD, "billing", start="earliest")
        await migrate(client)
        consumer = await client.consumer(OLD, "billing", type="shared", dead_letter=DeadLetter(redeliveries_max=0))
        bad, good = [await consumer.receive(timeout_ms=SOON_MS) for _ in range(2)]
        await consumer.ack(good)
        await consumer.nack(bad, delay_ms=0)
        letters = await client.consumer(letter_topic, "letters", start="earliest")
        receiving, arriving = (asyncio.ensure_future(one.receive()) for one in (consumer, letters))
        await asyncio.wait({receiving, arriving}, return_when=asyncio.FIRST_COMPLETED)
        receiving.cancel()
        await asyncio.wait({receiving})
        assert receiving.cancelled()
        assert (await arriving).value == b"bad"


@pytest.mark.parametrize("takes_transaction", [True, False])
async def test_a_handler_of_several_topics(stores: Stores, in_memory: None, takes_transaction: bool) -> None:
    """While one topic has migrated and another has not, messages wait; no delivery counts, and the run goes on."""
    clock = stores.environment = VirtualEnvironment()

    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        topics = (OLD, outputs(OLD))
        handled: list[tuple[bytes | None, int]] = []
        for topic in topics:
            await client.create_topic(topic)
        senders = [await client.producer(topic) for topic in topics]

        async def handle(message: Message) -> None:
            handled.append((message.value, message.redelivery_count))

        async def handle_in(message: Message, _txn: Transaction) -> None:
            await handle(message)

        async with elsewhere.consumer(topics, "billing", type="failover", start="earliest") as consumer:
            running = asyncio.ensure_future(consumer.run(handle_in if takes_transaction else handle))
            await clock.advance(MINUTE_MS)
            await migrate(client)
            for number, sender in enumerate(senders):
                await sender.send(b"%d" % number)
            await clock.advance(MINUTE_MS)
            assert not running.done()
            await migrate(client, outputs(OLD), outputs(NEW))
            await clock.advance(MINUTE_MS)
            assert {(b"0", 0), (b"1", 0)} == set(handled)
            assert [(await client.lag(topic, "billing")).messages for topic in topics] == [0, 0]
            consumer.stop()
            await running


@pytest.mark.parametrize("takes_transaction", [True, False])
async def test_outputs_migrate_later(stores: Stores, in_memory: None, takes_transaction: bool) -> None:
    """While the input has migrated and the output has not, messages wait: none becomes a dead letter."""
    clock = stores.environment = VirtualEnvironment()

    async with stores.open(**BOTH) as client, stores.open(**BOTH) as elsewhere:
        for topic in (OLD, outputs(OLD), f"{OLD}-billing-DLQ", f"{NEW}-billing-DLQ"):
            await client.create_topic(topic)
        sender = await client.producer(OLD)
        results = await elsewhere.producer(outputs(OLD))

        async def handle(message: Message) -> PlannedSend:
            return results.outgoing(message.value)

        async def handle_in(message: Message, txn: Transaction) -> None:
            await results.send(message.value, txn=txn)

        rule = DeadLetter(redeliveries_max=2)
        async with elsewhere.consumer(OLD, "billing", type="failover", start="earliest", dead_letter=rule) as consumer:
            running = asyncio.ensure_future(consumer.run(handle_in if takes_transaction else handle))
            await clock.advance(MINUTE_MS)
            await migrate(client)
            await sender.send(b"1")
            await clock.advance(5 * MINUTE_MS)
            await migrate(client, outputs(OLD), outputs(NEW))
            await clock.advance(MINUTE_MS)
            assert await values(client, f"{NEW}-billing-DLQ") == []
            assert await values(client, outputs(OLD)) == [b"1"]
            consumer.stop()
            await running

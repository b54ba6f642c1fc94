"""How far the mark of a subscription's cursor advances, which people and retention read."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client, MessageID
from txnframework.model.cursor import Cursor

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]

MESSAGES = 9


async def cursor_of(client: Client, message: MessageID) -> Cursor:
    """Return the recorded cursor of ``billing`` on a message's segment."""
    layout = await client.layout("orders")
    subscribed = await client.host.subscription(str(layout.topic), "billing", message.segment)
    return await subscribed.cursor.load()


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("left", [0, 4, 8])
@pytest.mark.parametrize("rolls", [False, True])
async def test_all_but_one_are_done(stores: Stores, transactional: bool, left: int, rolls: bool) -> None:
    """The mark ends before the one unfinished message, and the finished ones after it are stored as ranges."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        sent = []
        for number in range(MESSAGES):
            sent.append(await producer.send(b"%d" % number))
            if rolls and number % 3 == 2:
                await (await client.host.segment(sent[-1].segment)).ledger.roll()
        received = [await consumer.receive(timeout_ms=60_000) for _ in sent]
        done = received[:left] + received[left + 1 :]
        random.Random(left).shuffle(done)
        for message in done:
            if not transactional:
                await consumer.ack(message)
                continue
            async with client.transaction() as txn:
                await consumer.ack(message, txn=txn)
            await client.settle(txn.id)
        cursor = await cursor_of(client, sent[0])
        behind: dict[int, list[Any]] = {}
        for message in received[left + 1 :]:
            behind.setdefault(message.id.position.ledger_id, []).append(message.id.position.entry)
        assert tuple(cursor.deleted) == tuple((entries[0], entries[-1]) for entries in behind.values())
        if left:
            assert cursor.mark_delete == received[left - 1].id.position.entry
        await consumer.ack(received[left])
        await consumer.close()
        cursor = await cursor_of(client, sent[0])
        assert (cursor.mark_delete >= sent[-1].position.entry, tuple(cursor.deleted)) == (True, ())


async def test_acknowledged_by_others_than_the_consumer(stores: Stores) -> None:
    """The process that settles a transaction moves the mark, even if no consumer receives."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        sent = [await producer.send(b"1"), await producer.send(b"2")]
        consumer = await client.consumer("orders", "billing", start="earliest")
        first = await consumer.receive(timeout_ms=60_000)
        async with client.transaction() as txn:
            await consumer.ack(first, txn=txn)
            await consumer.close()
        await client.settle(txn.id)
        cursor = await cursor_of(client, sent[0])
        assert (cursor.mark_delete, tuple(cursor.deleted)) == (sent[0].position.entry, ())

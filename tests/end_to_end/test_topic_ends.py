"""The last message of a topic, and the last sequence id of a producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from txnframework.model.layout_changes import plan_split
from txnframework.model.names import TopicName

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.families

TOPIC = TopicName.parse("orders")


async def test_what_does_not_count(stores: Stores) -> None:
    """Messages of aborted and of open transactions do not, however many there are."""
    async with stores.open() as client:
        await client.create_topic("orders")
        assert await client.last_message("orders") is None
        producer = await client.producer("orders")
        last = (await producer.send_many([b"1", b"2"]))[-1]
        for _ in range(20):
            async with client.transaction() as txn:
                await producer.send(b"aborted", txn=txn)
                await txn.abort()
        opened = client.transaction()
        await opened.begin()
        await producer.send(b"open", txn=opened)
        assert await client.last_message("orders") == last
        await opened.abort()
        assert await client.last_message("orders") == last


@pytest.mark.metadata_family("it splits a topic")
async def test_children_that_are_only_planned(stores: Stores) -> None:
    """They have no ledgers yet, so nothing is looked up in them."""
    async with stores.open() as client:
        await client.create_topic("orders")
        sent = await (await client.producer("orders", name="shop")).send(b"1", sequence_id=7)
        layout, version = await client.topics._layouts.load(TOPIC)
        assert await client.topics._layouts.put_if(plan_split(layout, 0), version)
        assert await client.last_message("orders") == sent
        assert await client.last_sequence_id("orders", "shop") == 7
        await client.topics.finish_changes(TOPIC)
        assert await client.last_message("orders") == sent
        assert await client.last_sequence_id("orders", "shop") == 7


@pytest.mark.parametrize("trimmed", [1, 2, 20])
async def test_trimmed_messages(stores: Stores, trimmed: int) -> None:
    """They are no last messages, and hide none."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        for _ in range(trimmed):
            await producer.send(b"old")
        opened = await client.host.segment(str((await client.layout("orders")).name_of(0)))
        await opened.ledger.roll()
        await opened.buffer.trim((await opened.ledger.tail()).open_ledger_id)
        assert [one.entries for one in await opened.ledger.ledgers(-1, 2)] == [0]
        assert await client.last_message("orders") is None
        sent = await producer.send(b"new")
        assert await client.last_message("orders") == sent
        async with client.transaction() as txn:
            await producer.send(b"aborted", txn=txn)
            await txn.abort()
        assert await client.last_message("orders") == sent

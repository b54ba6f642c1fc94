"""Consumers and readers that named a segment go on with what it becomes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from txnframework import Client, Consumer
from txnframework.errors import ConsumerBusy, ReceiveTimeout, SubscriptionOwnedElsewhere
from txnframework.model import SegmentName

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.one_server

KEYS = [b"key %d" % number for number in range(16)]


async def segment(client: Client, number: int) -> SegmentName:
    """Return the full name of a segment of ``orders``, as in ``layout``."""
    name = (await client.layout("orders")).name_of(number)
    assert isinstance(name, SegmentName)
    return name


async def send(client: Client, value: bytes) -> None:
    """Send a message with each of the keys, so that every segment gets some."""
    async with await client.producer("orders") as producer:
        for key in KEYS:
            await producer.send(value, key=key)


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
async def test_a_split(stores: Stores, kind: str) -> None:
    """A consumer receives the whole segment, then its children, and their children."""
    async with stores.open() as client:
        await client.create_topic("orders", segments=2)
        async with await client.consumer(await segment(client, 0), "billing", type=kind, start="earliest") as mine:
            await send(client, b"parent")
            low, _ = await client.split("orders", 0)
            await send(client, b"child")
            await client.split("orders", low)
            await send(client, b"grandchild")
            received = []
            while len(received) < 3 * await messages_of_first_half(client):
                message = await mine.receive(timeout_ms=60_000)
                received.append(message)
                await mine.ack(message)
            with pytest.raises(ReceiveTimeout):
                await mine.receive(timeout_ms=50)
        order = {b"parent": 0, b"child": 1, b"grandchild": 2}
        if kind != "shared":
            for key in KEYS:
                mine_of_key = [order[one.value] for one in received if one.key == key]
                assert mine_of_key in ([], [0, 1, 2])
        assert all(SegmentName.parse(one.id.segment).end <= 0x7FFF for one in received)


async def messages_of_first_half(client: Client) -> int:
    """Return how many of the keys belong to the first half of the hash values."""
    async with await client.reader(await segment(client, 0)) as reader:
        return len([message async for message in reader])


@pytest.mark.parametrize("kind", ["exclusive", "failover", "key_shared"])
async def test_a_merge(stores: Stores, kind: str) -> None:
    """Two segments are merged: one of their consumers receives the child, once both segments are finished."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic("orders", segments=2)
        one = await client.consumer(await segment(client, 0), "billing", type=kind, start="earliest")
        other = await elsewhere.consumer(await segment(client, 1), "billing", type=kind, start="earliest")
        await send(client, b"before")
        await client.merge("orders", 0, 1)
        await send(client, b"after")
        count = await messages_of_first_half(client)
        for message in [await one.receive(timeout_ms=60_000) for _ in range(count)]:
            await one.ack(message)
            assert message.value == b"before"
        with pytest.raises(ReceiveTimeout):
            await one.receive(timeout_ms=50)  # the other one has not finished what comes before
        for message in [await other.receive(timeout_ms=60_000) for _ in range(len(KEYS) - count)]:
            await other.ack(message)
            assert message.value == b"before"
        taken: list[bytes] = []

        async def take(consumer: Consumer) -> None:
            while len(taken) < len(KEYS):
                message = await consumer.receive()
                taken.append(message.value)
                await consumer.ack(message)

        taking = [asyncio.ensure_future(take(consumer)) for consumer in (one, other)]
        await asyncio.wait(taking, return_when=asyncio.FIRST_COMPLETED)
        for task in taking:
            task.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
        assert taken == [b"after"] * len(KEYS)
        await one.close()
        await other.close()


async def test_a_merge_with_a_segment_that_nobody_consumes(stores: Stores) -> None:
    """The unconsumed rest of the other segment is delivered before the child."""
    async with stores.open() as client:
        await client.create_topic("orders", segments=2)
        async with await client.consumer(await segment(client, 0), "billing", start="earliest") as mine:
            await send(client, b"before")
            merged = await client.merge("orders", 0, 1)
            await send(client, b"after")
            received = []
            for _ in range(2 * len(KEYS)):
                message = await mine.receive(timeout_ms=60_000)
                received.append(message)
                await mine.ack(message)
            assert [one.value for one in received] == [b"before"] * len(KEYS) + [b"after"] * len(KEYS)
            assert {SegmentName.parse(one.id.segment).segment_id for one in received} == {0, 1, merged}


async def test_joining_where_somebody_has_what_it_became(stores: Stores) -> None:
    """A consumer of a segment is refused if the segment is taken; if only a child is taken, it waits."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic("orders")
        await send(client, b"parent")
        low, high = await client.split("orders", 0)
        await send(client, b"child")
        has_low = await elsewhere.consumer(await segment(client, low), "billing", start="earliest")
        with pytest.raises(SubscriptionOwnedElsewhere):
            await client.consumer(await segment(client, low), "billing")
        with pytest.raises(ConsumerBusy):
            await elsewhere.consumer(await segment(client, low), "billing")
        async with await client.consumer(await segment(client, 0), "billing") as root:
            received = []
            for _ in KEYS:
                received.append(await root.receive(timeout_ms=60_000))
                await root.ack(received[-1])
            assert {one.value for one in received} == {b"parent"}
            first = await root.receive(timeout_ms=60_000)
            assert first.value == b"child"
            assert SegmentName.parse(first.id.segment).segment_id == high
            await has_low.close()
            left = [await root.receive(timeout_ms=60_000) for _ in KEYS[1:]]
            assert {one.value for one in left} == {b"child"}


async def test_a_reader(stores: Stores) -> None:
    """A following reader continues with the children; another one reads only the segment."""
    async with stores.open() as client:
        await client.create_topic("orders", segments=2)
        name = await segment(client, 0)
        await send(client, b"parent")
        count = await messages_of_first_half(client)
        async with await client.reader(name, follow=True) as following:
            await client.split("orders", 0)
            await send(client, b"child")
            found: list[bytes] = []
            async for message in following:
                found.append(message.value)
                if len(found) == 2 * count:
                    break
            assert found == [b"parent"] * count + [b"child"] * count
        async with await client.reader(str(name)) as alone:
            assert [message.value async for message in alone] == [b"parent"] * count


async def test_names_as_the_layout_tells_them(stores: Stores) -> None:
    """Calls that take a topic or segment name accept names from ``name_of``, also several."""
    async with stores.open() as client:
        await client.create_topic("orders", segments=2)
        layout = await client.layout("orders")
        names = [layout.name_of(one.id) for one in layout.active()]
        async with await client.producer(names[1]) as producer:
            sent = [await producer.send(b"1"), await producer.send(b"2")]
        assert sent[0] < sent[1]
        assert max(sent) == sent[1]
        async with await client.consumer(names, "billing", start="earliest") as consumer:
            assert await stores.receive(consumer, 2) == [b"1", b"2"]
        assert (await client.layout(layout.topic)).epoch >= layout.epoch
        async with await client.reader(names[1], start=sent[0]) as reader:
            assert [message.value async for message in reader] == [b"2"]

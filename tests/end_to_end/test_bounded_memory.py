"""How many bytes of messages a consumer or reader holds, besides how many messages."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client, Consumer, Message
from txnframework.errors import ReceiveTimeout
from txnframework.testing.clock import VirtualEnvironment, run_ready

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.families

KINDS = ("exclusive", "failover", "shared", "key_shared")
SIZE = 1_000


async def send(client: Client, sizes: list[int]) -> None:
    """Send a message of each size, each in an entry of its own."""
    await client.create_topic("orders")
    async with await client.producer("orders") as producer:
        for number, size in enumerate(sizes):
            await producer.send(bytes([number]) * size, key=b"k")


def held_bytes(consumer: Consumer) -> tuple[int, int]:
    """Return how many bytes wait for a consumer, and how many it has."""
    (feed,) = consumer._segments.feeds.values()
    assert feed.attached is not None
    deliveries = feed.attached.dispatch.deliveries
    return deliveries.waiting_bytes, deliveries.delivered_bytes[feed.attached.consumer_id]


def numbers_of(messages: list[Message]) -> list[int]:
    """Return the numbers of messages in the order in which they were sent."""
    return [one.value[0] for one in messages if one.value]


async def come(stores: Stores, consumer: Consumer) -> list[int]:
    """Return the numbers of the messages that are delivered."""
    numbers = []
    while True:
        try:
            receiving = consumer.receive_many(messages_max=100, timeout_ms=1_000)
            numbers += numbers_of(await advanced(stores, receiving))
        except ReceiveTimeout:
            return numbers


async def advanced(stores: Stores, receiving: Coroutine[Any, Any, tuple[Message, ...]]) -> list[Message]:
    """Return what is received, letting time pass."""
    task = asyncio.ensure_future(receiving)
    assert isinstance(stores.environment, VirtualEnvironment)
    await stores.environment.advance(1_000)
    return list(await task)


@pytest.mark.parametrize("kind", KINDS)
async def test_read_ahead(memory: Stores, kind: str) -> None:
    """Reading ahead stops at the byte limit, even below the count limit; in the end, all messages arrive in order."""
    memory.environment = VirtualEnvironment()
    bounds = {"read_bytes_max": 5 * SIZE}
    async with memory.open(subscriptions=bounds, client={"receive_messages_max": 1}) as client:
        await send(client, [SIZE] * 50)
        consumer = await client.consumer("orders", "billing", type=kind, start="earliest")
        numbers = []
        for _ in range(50):
            (message,) = await advanced(memory, consumer.receive_many(messages_max=1))
            waiting, delivered = held_bytes(consumer)
            assert waiting <= 5 * (SIZE + 1)
            assert delivered <= 2 * (SIZE + 1)
            numbers += numbers_of([message])
            await consumer.ack(message)
        assert numbers == list(range(50))
        await consumer.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_not_acknowledged(memory: Stores, kind: str) -> None:
    """A consumer gets only as many bytes as fit. It gets more as it acknowledges, and the same again on redelivery."""
    memory.environment = VirtualEnvironment()
    async with memory.open(subscriptions={"unacknowledged_bytes_max": 3 * SIZE + 500}) as client:
        await send(client, [SIZE] * 8)
        consumer = await client.consumer("orders", "billing", type=kind, start="earliest")
        received = await advanced(memory, consumer.receive_many(messages_max=100))
        assert numbers_of(received) == [0, 1, 2]
        assert await come(memory, consumer) == []
        await consumer.ack(received[0], received[1])
        assert await come(memory, consumer) == [3, 4]
        await consumer.redeliver_unacknowledged()
        assert await come(memory, consumer) == [2, 3, 4]
        await consumer.ack(received[2])
        assert await come(memory, consumer) == [5]
        await consumer.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_larger_than_every_bound(memory: Stores, kind: str) -> None:
    """A message above the limit is delivered alone: after earlier messages are acknowledged, and before later ones."""
    memory.environment = VirtualEnvironment()
    bounds = {"unacknowledged_bytes_max": 2 * SIZE + 500, "read_bytes_max": 2 * SIZE}
    async with memory.open(subscriptions=bounds) as client:
        await send(client, [SIZE, 10 * SIZE, SIZE, SIZE])
        consumer = await client.consumer("orders", "billing", type=kind, start="earliest")
        for expected in ([0], [1], [2, 3]):
            received = await advanced(memory, consumer.receive_many(messages_max=100))
            assert numbers_of(received) == expected
            assert await come(memory, consumer) == []
            await consumer.ack(*received)
        await consumer.close()


@pytest.mark.parametrize("kind", ["failover", "shared", "key_shared"])
async def test_permits_for_what_others_took(memory: Stores, kind: str) -> None:
    """Permits granted for small messages that others received are not used for as many large ones."""
    memory.environment = VirtualEnvironment()
    bounds: dict[str, Any] = {"unacknowledged_bytes_max": 3 * SIZE + 500}
    async with memory.open(subscriptions=bounds, client={"receive_messages_max": 300}) as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        options: dict[str, Any] = {"type": kind, "start": "earliest"}
        consumers = [await client.consumer("orders", "billing", name=name, **options) for name in ("a", "b")]
        for number in range(7):
            await producer.send_many([b""] * 30, key=b"%d" % number)
        await run_ready()
        if kind == "failover":
            # The one that stands by was granted permits for what the active one took; it is active now.
            received = await advanced(memory, consumers[0].receive_many(messages_max=300))
            await consumers[0].ack(*received)
            await consumers.pop(0).close()
        for number in range(20):
            await producer.send(bytes([number]) * SIZE, key=b"%d" % (number % 7))
        numbers: dict[int, list[int]] = {}
        while sum(map(len, numbers.values())) < 20:
            before = sum(map(len, numbers.values()))
            for consumer in consumers:
                await run_ready()
                assert held_bytes(consumer)[1] <= 3 * SIZE + 500
                received = await drained(memory, consumer)
                for one in numbers_of(received):
                    in_order = {"failover": 0, "key_shared": one % 7, "shared": one}[kind]
                    numbers.setdefault(in_order, []).append(one)
                await consumer.ack(*received)
            assert sum(map(len, numbers.values())) > before
        for some in numbers.values():
            assert some == sorted(set(some))
        for consumer in consumers:
            await consumer.close()


async def drained(stores: Stores, consumer: Consumer) -> list[Message]:
    """Return what a consumer has received."""
    try:
        return await advanced(stores, consumer.receive_many(messages_max=300, timeout_ms=1_000))
    except ReceiveTimeout:
        return []


async def test_a_reader(stores: Stores) -> None:
    """A reader holds as many bytes as the limit allows, or one larger entry."""
    async with stores.open(subscriptions={"read_bytes_max": 5 * SIZE}) as client:
        await send(client, [SIZE] * 12 + [20 * SIZE] + [SIZE] * 12)
        async with await client.reader("orders") as reader:
            numbers = []
            async for message in reader:
                numbers += numbers_of([message])
                left = [one for track in reader._tracks.values() for one in track.messages]
                assert sum(len(one.value or b"") for one in left) <= 5 * SIZE
            assert numbers == list(range(25))

"""Producers, consumers and readers are opened by ``await``, or by ``async with``, which also closes them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from txnframework.errors import Closed, TopicNotFound

if TYPE_CHECKING:
    from conftest import Stores

SOON_MS = 60_000


async def test_async_with_opens_and_closes(stores: Stores) -> None:
    """No ``await`` is needed in front; after the block, the object is closed."""
    async with stores.open() as client:
        await client.create_topic("orders")
        async with (
            client.producer("orders") as producer,
            client.consumer("orders", "billing", start="earliest") as consumer,
        ):
            sent = await producer.send(b"order")
            assert (await consumer.receive(timeout_ms=SOON_MS)).id == sent
        with pytest.raises(Closed):
            await producer.send(b"later")
        with pytest.raises(Closed):
            await consumer.receive()
        async with client.reader("orders") as reader:
            assert [message.value async for message in reader] == [b"order"]
        async with (await client.snapshot("orders")).reader("orders") as reader:
            assert [message.value async for message in reader] == [b"order"]


async def test_await_and_tasks(stores: Stores) -> None:
    """The call is a coroutine: it can be awaited, gathered, and made a task; ``async with await`` works as before."""
    async with stores.open() as client:
        await client.create_topic("orders")
        opened = [
            await client.producer("orders"),
            *await asyncio.gather(client.producer("orders"), client.producer("orders")),
            await asyncio.create_task(client.producer("orders")),
            await asyncio.wait_for(client.producer("orders"), 60),
        ]
        for one in opened:
            async with one as producer:
                await producer.send(b"order")
        async with await client.reader("orders") as reader:
            assert len([message async for message in reader]) == len(opened)


async def test_an_opening_that_fails(stores: Stores) -> None:
    """An error of opening is raised at the start of the block; an error in the block is raised unchanged."""
    async with stores.open() as client:
        with pytest.raises(TopicNotFound):
            async with client.producer("orders"):
                pytest.fail("the topic does not exist")
        await client.create_topic("orders")
        with pytest.raises(ZeroDivisionError):
            async with client.producer("orders") as producer:
                raise ZeroDivisionError
        with pytest.raises(Closed):
            await producer.send(b"order")


async def test_a_forgotten_await(stores: Stores) -> None:
    """Using an object before it is opened raises an error that says what to write."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer: Any = client.producer("orders")
        with pytest.raises(TypeError, match=r"the producer has no 'send' until it is opened: write 'await'"):
            await producer.send(b"order")
        producer.close()
        consumer: Any = client.consumer("orders", "billing")
        with pytest.raises(AttributeError, match=r"the consumer has no 'receive' .* before client.consumer"):
            await consumer.receive()
        consumer.close()
        assert (await client.describe_topic("orders")).subscriptions == ()

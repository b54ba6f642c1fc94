"""Messages that are delivered later, and consumers that are paused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from txnframework import DeadLetter
from txnframework.errors import InvalidInput, ReceiveTimeout
from txnframework.testing.clock import START_MS, VirtualEnvironment, run_ready

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]

LONG_MS = 600_000


async def test_shared_consumers_get_a_delayed_message_when_it_is_due(memory: Stores) -> None:
    """Messages behind it are delivered at once, and a restart changes nothing."""
    clock = memory.environment = VirtualEnvironment()

    async with memory.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        await producer.send(b"late", deliver_at_ms=START_MS + LONG_MS)
        await producer.send_many([b"soon", b"soon too"], deliver_after_ms=1_000)
        await producer.send(b"now")
        async with await client.consumer("orders", "billing", type="shared", start="earliest") as consumer:
            assert await memory.receive(consumer, 1) == [b"now"]
            await clock.advance(1_000)
            assert await memory.receive(consumer, 2) == [b"soon", b"soon too"]
    async with memory.open() as client:
        async with await client.consumer("orders", "billing", type="shared") as consumer:
            received = [await consumer.receive() for _ in range(3)]
            assert [one.value for one in received] == [b"soon", b"soon too", b"now"]
            await consumer.ack(*received)
            await clock.advance(LONG_MS - 1_001)
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=0)
            await clock.advance(1)
            await consumer.ack(await consumer.receive(timeout_ms=0))
        assert (await client.lag("orders", "billing")).messages == 0


@pytest.mark.parametrize("kind", ["exclusive", "failover", "key_shared"])
async def test_types_with_an_order_deliver_at_once(memory: Stores, kind: str) -> None:
    """A message that was held back would be overtaken."""
    memory.environment = VirtualEnvironment()

    async with memory.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        await producer.send(b"late", key=b"1", deliver_after_ms=LONG_MS)
        await producer.send(b"now", key=b"1")
        async with await client.consumer("orders", "billing", type=kind, start="earliest") as consumer:
            assert await memory.receive(consumer, 2) == [b"late", b"now"]


async def test_a_delay_in_a_transaction(stores: Stores) -> None:
    """The message is invisible until the commit, and delivered when it is due as well."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        async with client.transaction() as txn:
            await producer.send(b"due", txn=txn, deliver_at_ms=START_MS)
            await producer.send(b"late", txn=txn, deliver_after_ms=LONG_MS)
            await producer.send(b"now", txn=txn)
        async with await client.consumer("orders", "billing", type="shared", start="earliest") as consumer:
            assert await stores.receive(consumer, 2) == [b"due", b"now"]
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=0)


async def test_memory_for_delayed_messages_is_bounded(memory: Stores) -> None:
    """At the limit nothing behind them is read, until one is due."""
    clock = memory.environment = VirtualEnvironment()

    bounds: dict[str, object] = {"delayed_messages_max": 2, "read_entries_max": 1}
    async with memory.open(subscriptions=bounds) as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        for at_ms in (3_000, 2_000, 1_000):
            await producer.send(b"%d" % at_ms, deliver_after_ms=at_ms)
        await producer.send(b"now")
        async with await client.consumer("orders", "billing", type="shared", start="earliest") as consumer:
            await clock.advance(1_999)
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=0)
            await clock.advance(1)
            assert await memory.receive(consumer, 3) == [b"2000", b"1000", b"now"]


async def test_delays_that_are_refused(memory: Stores) -> None:
    """A delay is a time, given in one way."""
    async with memory.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        with pytest.raises(InvalidInput, match="not both"):
            await producer.send(b"1", deliver_at_ms=1, deliver_after_ms=1)
        for wrong in (-1, 2**62, True, 1.5):
            with pytest.raises(InvalidInput, match="deliver_at_ms"):
                await producer.send(b"1", deliver_at_ms=wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match="deliver_after_ms"):
                await producer.send_many([b"1"], deliver_after_ms=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["shared", "key_shared", "failover"])
async def test_a_negative_acknowledgment_with_its_own_delay(memory: Stores, kind: str) -> None:
    """Another one than the configured delay."""
    clock = memory.environment = VirtualEnvironment()

    async with memory.open(subscriptions={"redelivery_delay_ms": 10}) as client:
        await client.create_topic("orders")
        await (await client.producer("orders")).send(b"1")
        async with await client.consumer("orders", "billing", type=kind, start="earliest") as consumer:
            await consumer.nack(await consumer.receive(), delay_ms=5_000)
            await clock.advance(4_999)
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=0)
            await clock.advance(1)
            assert (await consumer.receive(timeout_ms=0)).redelivery_count == 1
            with pytest.raises(InvalidInput, match="delay_ms"):
                await consumer.nack(delay_ms=-1)


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
async def test_a_paused_consumer_receives_nothing(stores: Stores, kind: str) -> None:
    """It keeps its lease and what it received; after resuming it gets everything, in order, and nothing is counted."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        await producer.send_many([b"1", b"2"])
        async with await client.consumer("orders", "billing", type=kind, start="earliest") as consumer:
            first = await consumer.receive()
            consumer.pause()
            consumer.pause()
            await producer.send(b"3")
            await run_ready()
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=0)
            await consumer.ack(first)
            consumer.resume()
            rest = [await consumer.receive() for _ in range(2)]
            assert [(one.value, one.redelivery_count) for one in rest] == [(b"2", 0), (b"3", 0)]


async def test_others_get_what_a_paused_consumer_did_not_receive(memory: Stores) -> None:
    """With a type that permits it; the paused consumer goes on when it is resumed."""
    async with memory.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        paused = await client.consumer("orders", "billing", type="shared", start="earliest")
        await producer.send_many([b"1", b"2", b"3"])
        await run_ready()
        paused.pause()
        async with await client.consumer("orders", "billing", type="shared") as other:
            received = [await other.receive(timeout_ms=1_000) for _ in range(3)]
            assert [(one.value, one.redelivery_count) for one in received] == [(b"1", 0), (b"2", 0), (b"3", 0)]
            await other.ack(*received)
        await producer.send(b"4")
        await run_ready()
        paused.resume()
        assert await memory.receive(paused, 1) == [b"4"]
        await paused.close()


async def test_segments_that_are_attached_during_a_pause(memory: Stores) -> None:
    """They deliver nothing until the consumer is resumed."""
    async with memory.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        rule = DeadLetter(redeliveries_max=1)
        async with await client.consumer("orders", "billing", start="earliest", dead_letter=rule) as consumer:
            consumer.pause()
            await client.split("orders", 0)
            await producer.send(b"1")
            await run_ready()
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=0)
            consumer.resume()
            assert await memory.receive(consumer, 1) == [b"1"]

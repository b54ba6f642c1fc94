"""What happens to acknowledgments when someone seeks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client, Transaction
from txnframework.broker import StoredCursor
from txnframework.client._subscription.feed import Feed
from txnframework.errors import InvalidInput, OutcomeUnknown, Unavailable
from txnframework.model import Position
from txnframework.model.cursor import Cursor
from txnframework.testing.clock import VirtualEnvironment, run_ready

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]


async def test_an_acknowledgment_under_way_during_a_seek(memory: Stores) -> None:
    """It acknowledges nothing of what is delivered after the seek, in the cursor or in this process's memory."""
    # The write waits so long for company that the seek overtakes it.
    async with memory.open(subscriptions={"cursor_delay_ms": 400}) as client:
        await client.create_topic("orders")
        await (await client.producer("orders")).send_many([b"1"])
        await (await client.producer("orders")).send_many([b"2"])
        consumer = await client.consumer("orders", "billing", start="earliest")
        first = await consumer.receive(timeout_ms=60_000)
        acknowledging = asyncio.ensure_future(consumer.ack(first))
        await asyncio.sleep(0)
        await consumer.seek(first.id)
        assert await memory.receive(consumer, 1) == [b"1"]
        await acknowledging
        second = await consumer.receive(timeout_ms=60_000)
        assert second.value == b"2"
        await consumer.ack(second)
        await consumer.close()
        consumer = await client.consumer("orders", "billing")
        assert await memory.receive(consumer, 1) == [b"1"]
        await consumer.close()


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
async def test_seeking_into_a_batch(stores: Stores, kind: str) -> None:
    """The next delivery starts at that message; earlier ones of the batch are finished, in every process."""
    async with stores.open() as client:
        await client.create_topic("orders")
        await (await client.producer("orders")).send_many([b"0", b"1", b"2", b"3"])
        consumer = await client.consumer("orders", "billing", type=kind, start="earliest")
        received = [await consumer.receive(timeout_ms=60_000) for _ in range(4)]
        assert len({message.id.position.entry for message in received}) == 1
        await consumer.ack(*received)
        await consumer.seek(received[2].id)
        assert await stores.receive(consumer, 2) == [b"2", b"3"]
        await consumer.close()
    async with stores.open() as client:
        consumer = await client.consumer("orders", "billing", type=kind)
        last = [await consumer.receive(timeout_ms=60_000) for _ in range(2)]
        assert [message.value for message in last] == [b"2", b"3"]
        async with client.transaction() as txn:
            await consumer.ack(*last, txn=txn)
        subscribed = await client.host.subscription(last[0].topic, "billing", last[0].id.segment)
        await until_settled(client, txn)
        cursor = await subscribed.cursor.load()
        assert (cursor.mark_delete, cursor.partial) == (last[0].id.position.entry, {})
        await consumer.seek(received[0].id)
        assert (await consumer.receive(timeout_ms=60_000)).id == received[0].id
        await consumer.close()


@pytest.mark.metadata_family("it splits or merges topics, and a sealed one takes no markers")
async def test_a_segment_that_is_finished_while_it_is_moved(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A split segment is finished late by acks from before a seek; its children are still received after it."""
    go = asyncio.Event()
    finish = Feed.finish

    async def finish_late(feed: Feed) -> None:
        await go.wait()
        await finish(feed)

    async with memory.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        await producer.send_many([b"0", b"1"])
        await client.split("orders", 0)
        await producer.send(b"2", key=b"some")
        consumer = await client.consumer("orders", "billing", start="earliest")
        monkeypatch.setattr(Feed, "finish", finish_late)
        await consumer.ack(*[await consumer.receive(timeout_ms=60_000) for _ in range(3)])
        await run_ready()
        seeking = asyncio.ensure_future(consumer.seek("earliest"))
        await run_ready()
        go.set()
        await seeking
        assert await memory.receive(consumer, 3) == [b"0", b"1", b"2"]
        await consumer.close()


@pytest.mark.metadata_family("it splits or merges topics, and a sealed one takes no markers")
async def test_seeking_the_ends(stores: Stores) -> None:
    """Earliest delivers all stored messages again, over splits; latest delivers only later messages."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        await producer.send_many([b"0", b"1"])
        await client.split("orders", 0)
        await producer.send(b"2", key=b"some")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await consumer.ack(*[await consumer.receive(timeout_ms=60_000) for _ in range(3)])
        await consumer.seek("earliest")
        assert await stores.receive(consumer, 3) == [b"0", b"1", b"2"]
        await consumer.seek("latest")
        await producer.send(b"3", key=b"some")
        assert await stores.receive(consumer, 1) == [b"3"]
        await consumer.close()


async def test_what_cannot_be_sought_or_acknowledged(memory: Stores) -> None:
    """A clear sentence, and nothing happens."""
    async with memory.open() as client:
        await client.create_topic("orders")
        await (await client.producer("orders")).send(b"0")
        consumer = await client.consumer("orders", "billing", start="earliest")
        message = await consumer.receive()
        wrong: Any
        for wrong in ("first", 1.5, True, None, message):
            with pytest.raises(InvalidInput, match="can be sought"):
                await consumer.seek(wrong)
        for wrong in ("x", 7, message.id.position):
            for acknowledge in (consumer.ack, consumer.ack_cumulative, consumer.nack):
                with pytest.raises(InvalidInput, match="can be acknowledged"):
                    await acknowledge(wrong)
        await consumer.redeliver_unacknowledged()
        assert await memory.receive(consumer, 1) == [b"0"]
        await consumer.close()


@pytest.mark.parametrize("looks", [1, 2])
async def test_a_seek_of_the_same_process_is_noticed(memory: Stores, looks: int) -> None:
    """A consumer notices a seek through its own client, too, also behind acks that only this process wrote."""
    memory.environment = environment = VirtualEnvironment()
    async with memory.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        for number in range(2 * looks):
            await producer.send(b"%d" % number)
            await consumer.ack_cumulative(await consumer.receive())
            if number % 2:
                await environment.advance(1_000)  # time for the looks at what changes
        await client.seek("orders", "billing", "earliest")
        receiving = asyncio.ensure_future(consumer.receive_many(messages_max=2 * looks))
        await environment.advance(1_000)
        assert receiving.done()
        assert [one.value for one in await receiving] == [b"%d" % number for number in range(2 * looks)]
        await consumer.close()


@pytest.mark.metadata_family("topics of the other family have one segment")
@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared"])
@pytest.mark.parametrize("splits", [1, 2])
async def test_a_seek_to_what_was_finished_before_a_split(memory: Stores, splits: int, kind: str) -> None:
    """A consumer that has gone on to the children returns to their parents when another client seeks."""
    async with memory.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        await client.subscribe("orders", "billing", start="earliest")
        values = set()
        for number in range(splits + 1):
            for key in range(6):
                values.add(b"%d-%d" % (number, key))
                await producer.send(b"%d-%d" % (number, key), key=b"key %d" % key)
            if number < splits:
                await client.split("orders", number)
        consumer = await client.consumer("orders", "billing", type=kind)
        for _ in range(2):
            received: list[bytes] = []
            while values - set(received):
                message = await consumer.receive(timeout_ms=60_000)
                received.append(message.value or b"")
                await consumer.ack(message)
            await client.seek("orders", "billing", "earliest")
        await consumer.close()


@pytest.mark.parametrize("from_consumer", [True, False])
@pytest.mark.parametrize("segments_moved", [0, 1])
async def test_a_store_that_goes_away_while_segments_are_moved(
    memory: Stores, monkeypatch: pytest.MonkeyPatch, segments_moved: int, from_consumer: bool
) -> None:
    """If segments may have been moved, the outcome is unknown, and a repeated seek finishes it.

    Otherwise, it is refused.
    """
    async with memory.open(client={"retries_max": 0}) as client:
        await client.create_topic("orders", segments=2)
        producer = await client.producer("orders")
        for number in range(8):
            await producer.send(b"%d" % number, key=b"key %d" % number)
        consumer = await client.consumer("orders", "billing", start="earliest")
        for _ in range(8):
            await consumer.ack(await consumer.receive(timeout_ms=60_000))
        seek, moved = StoredCursor.seek, 0

        async def seek_until_away(cursor: StoredCursor, to: Position) -> Cursor:
            nonlocal moved
            if moved == segments_moved:
                raise Unavailable("the store is away")
            moved += 1
            return await seek(cursor, to)

        async def once() -> None:
            await (consumer.seek("earliest") if from_consumer else client.seek("orders", "billing", "earliest"))

        with monkeypatch.context() as away:
            away.setattr(StoredCursor, "seek", seek_until_away)
            with pytest.raises(OutcomeUnknown if segments_moved else Unavailable):
                await once()
        await once()
        received = [(await consumer.receive(timeout_ms=60_000)).value for _ in range(8)]
        assert sorted(set(received)) == [b"%d" % number for number in range(8)]
        await consumer.close()


async def until_settled(client: Client, txn: Transaction) -> None:
    """Let the outcome take effect here and now."""
    await (await client.host.coordinator()).settle(txn.id)

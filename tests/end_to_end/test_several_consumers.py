"""Failover and key-shared subscriptions: who gets what, while consumers and segments come and go."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from txnframework import Client, Consumer, Message, Producer
from txnframework.errors import InvalidInput, ReceiveTimeout
from txnframework.model.acks import PendingAcks
from txnframework.testing.clock import run_ready

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]

KEYS = tuple(b"key %d" % number for number in range(8))


async def some(consumer: Consumer, messages: int) -> list[Message]:
    return [await consumer.receive(timeout_ms=60_000) for _ in range(messages)]


async def nothing_comes(consumer: Consumer) -> None:
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(timeout_ms=50)


async def send_rounds(producer: Producer, first: int, rounds: int) -> None:
    """Send one message of each key in every round."""
    for number in range(first, first + rounds):
        for key in KEYS:
            await producer.send(b"%d" % number, key=key)


async def test_failover_goes_to_the_next_in_order(stores: Stores) -> None:
    """What the active one did not acknowledge comes to the next one, in order, counted; the others wait."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        active = await client.consumer("orders", "billing", type="failover", start="earliest")
        later = await client.consumer("orders", "billing", type="failover", priority=1)
        following = await client.consumer("orders", "billing", type="failover", priority=0)
        for number in range(4):
            await producer.send(b"%d" % number)
        received = await some(active, 3)
        await active.ack(received[0])
        await nothing_comes(following)
        await active.close()
        left = await some(following, 3)
        assert [(one.value, one.redelivery_count) for one in left] == [(b"1", 1), (b"2", 1), (b"3", 0)]
        await following.ack_cumulative(left[-1])
        await nothing_comes(later)
        await following.close()
        await producer.send(b"4")
        assert await stores.receive(later, 1) == [b"4"]
        await later.close()


@pytest.mark.parametrize("kind", ["failover", "key_shared"])
async def test_nothing_overtakes_what_a_leaving_consumer_had(
    memory: Stores, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While unacknowledged messages of a leaving consumer are looked up slowly, no later message is delivered."""
    async with memory.open(subscriptions={"unacknowledged_messages_max": 2}) as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        for number in range(4):
            await producer.send(b"%d" % number, key=b"one")
        first = await client.consumer("orders", "billing", type=kind, start="earliest")
        place = (await some(first, 2))[0]
        second = await client.consumer("orders", "billing", type=kind)
        pending_acks = (await client.host.subscription(place.topic, "billing", place.id.segment)).pending_acks
        recover = pending_acks.recover

        async def recover_slowly() -> PendingAcks:
            await producer.send(b"4", key=b"one")  # this wakes the dispatch
            await run_ready()
            return await recover()

        with monkeypatch.context() as patched:
            patched.setattr(pending_acks, "recover", recover_slowly)
            await first.close()
        received = await some(second, 2)
        await second.ack(*received)
        received += await some(second, 2)
        assert [message.value for message in received] == [b"0", b"1", b"2", b"3"]
        await second.close()


async def test_failover_and_an_open_transaction(stores: Stores) -> None:
    """Acks of the former active consumer in an open transaction block no consumer, and are redelivered after an
    abort.
    """
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        active = await client.consumer("orders", "billing", type="failover", start="earliest")
        following = await client.consumer("orders", "billing", type="failover")
        for number in range(3):
            await producer.send(b"%d" % number)
        txn = client.transaction()
        await txn.begin()
        await active.ack(*(await some(active, 2))[:1], txn=txn)
        await active.close()
        assert await stores.receive(following, 2) == [b"1", b"2"]
        await txn.abort()
        again = await following.receive(timeout_ms=60_000)
        assert (again.value, again.redelivery_count) == (b"0", 1)
        await following.close()


@pytest.mark.metadata_family("it splits or merges topics, and a sealed one takes no markers")
async def test_failover_over_a_split(stores: Stores) -> None:
    """A child belongs to the active consumer until that consumer has finished the parent."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        first = await client.consumer("orders", "billing", type="failover", start="earliest")
        second = await client.consumer("orders", "billing", type="failover")
        await send_rounds(producer, 0, 1)
        received = await some(first, len(KEYS))
        await client.split("orders", 0)
        await send_rounds(producer, 1, 1)
        received += await some(first, len(KEYS))
        await nothing_comes(second)
        await first.close()
        assert _by_key(await some(second, 2 * len(KEYS))) == {key: [b"0", b"1"] for key in KEYS}
        await second.close()


@pytest.mark.metadata_family("it splits or merges topics, and a sealed one takes no markers")
async def test_key_shared_keeps_each_key_in_order(stores: Stores) -> None:
    """While consumers come and go, and the topic is split and merged; every message is acknowledged once."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        seen: list[Message] = []
        all_seen = asyncio.Event()
        working: list[asyncio.Task[None]] = []

        async def come() -> None:
            consumer = await client.consumer("orders", "billing", type="key_shared", start="earliest")
            working.append(asyncio.ensure_future(_take(client, consumer, seen, all_seen)))

        await come()
        await come()
        await send_rounds(producer, 0, 3)
        low, high = await client.split("orders", 0)
        await send_rounds(producer, 3, 3)
        await come()
        await client.merge("orders", low, high)
        await send_rounds(producer, 6, 3)
        await all_seen.wait()
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        assert _by_key(seen) == {key: [b"%d" % number for number in range(9)] for key in KEYS}


async def test_key_shared_hands_a_key_over_when_its_consumer_leaves(stores: Stores) -> None:
    """From the first message that was not acknowledged on; a consumer that came does not get a key that is in use."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        first = await client.consumer("orders", "billing", type="key_shared", start="earliest")
        await send_rounds(producer, 0, 2)
        received = await some(first, 2 * len(KEYS))
        second = await client.consumer("orders", "billing", type="key_shared")
        await send_rounds(producer, 2, 1)
        await nothing_comes(second)
        await first.ack(*received[: len(KEYS)])
        await first.close()
        left = await some(second, 2 * len(KEYS))
        assert _by_key(left) == {key: [b"1", b"2"] for key in KEYS}
        with pytest.raises(InvalidInput, match="no order"):
            await second.ack_cumulative(left[0])
        await second.close()


async def _take(client: Client, consumer: Consumer, seen: list[Message], all_seen: asyncio.Event) -> None:
    """Acknowledge one message after the other, in transactions."""
    async with consumer:
        async for message in consumer:
            async with client.transaction() as txn:
                await consumer.ack(message, txn=txn)
            seen.append(message)
            if len(seen) == 9 * len(KEYS):
                all_seen.set()


def _by_key(messages: list[Message]) -> dict[bytes | None, list[bytes]]:
    found: dict[bytes | None, list[bytes]] = defaultdict(list)
    for message in messages:
        found[message.key].append(message.value)
    return dict(found)


@pytest.mark.parametrize("limit", ["unacknowledged_messages_max", "unacknowledged_bytes_max"])
@pytest.mark.parametrize(
    ("kind", "cumulative"),
    [
        ("exclusive", False),
        ("exclusive", True),
        ("failover", False),
        ("failover", True),
        ("shared", False),
        ("key_shared", False),
    ],
)
async def test_an_acknowledgment_in_an_open_transaction_makes_room(
    stores: Stores, kind: str, cumulative: bool, limit: str
) -> None:
    """A consumer at its limit receives on while the transaction is open, and nothing else happens."""
    async with stores.open(subscriptions={limit: 2}) as client:
        await client.create_topic("orders")
        async with (
            client.producer("orders") as producer,
            client.consumer("orders", "billing", type=kind, start="earliest") as consumer,
        ):
            await producer.send_many([b"%d" % number for number in range(5)])
            async with client.transaction() as txn:
                for first in (0, 2):
                    received = await some(consumer, 2)
                    assert [one.value for one in received] == [b"%d" % number for number in (first, first + 1)]
                    await nothing_comes(consumer)
                    if cumulative:
                        await consumer.ack_cumulative(received[-1], txn=txn)
                    else:
                        await consumer.ack(*received, txn=txn)
                assert await stores.receive(consumer, 1) == [b"4"]


@pytest.mark.parametrize("limit", ["unacknowledged_messages_max", "unacknowledged_bytes_max"])
async def test_a_timeout_names_the_limit(stores: Stores, limit: str) -> None:
    """Only while more messages wait, and this consumer has to acknowledge some before it gets them."""
    async with stores.open(subscriptions={limit: 2}) as client:
        await client.create_topic("orders")
        async with (
            client.producer("orders") as producer,
            client.consumer("orders", "billing", start="earliest") as consumer,
        ):
            await producer.send_many([b"1", b"2", b"3"])
            received = await some(consumer, 2)
            with pytest.raises(ReceiveTimeout, match="as many unacknowledged ones as") as raised:
                await consumer.receive(timeout_ms=1)
            assert raised.value.is_at_limit
            await consumer.ack(*received)
            assert await stores.receive(consumer, 1) == [b"3"]
            with pytest.raises(ReceiveTimeout, match=r"ms$") as raised:
                await consumer.receive(timeout_ms=1)
            assert not raised.value.is_at_limit

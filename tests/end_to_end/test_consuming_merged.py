"""Merged segments: how subscriptions, transactions and repeated sends use parents and child."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from txnframework import Client, Consumer, Message, Producer, State
from txnframework.errors import ReceiveTimeout, TransactionConflict
from txnframework.model.key_hashes import key_hash
from txnframework.testing.clock import VirtualEnvironment

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.one_server

LOW = tuple(key for key in (b"%d" % number for number in range(40)) if key_hash(key) < 0x8000)[:2]
HIGH = tuple(key for key in (b"%d" % number for number in range(40)) if key_hash(key) >= 0x8000)[:2]
KEYS = LOW + HIGH
CHILD = "segment://public/default/orders/0000-ffff-2"


async def prepared(client: Client) -> Producer:
    """Return a producer of a topic with two segments."""
    await client.create_topic("orders", segments=2)
    return await client.producer("orders", name="till-7")


async def send(producer: Producer, value: bytes, *keys: bytes) -> None:
    """Send the value under each key, each in an entry of its own."""
    for key in keys or KEYS:
        await producer.send(value, key=key)


async def take(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_ms=60_000) for _ in range(count)]


def by_key(messages: list[Message]) -> dict[bytes | None, list[bytes]]:
    found: dict[bytes | None, list[bytes]] = {}
    for message in messages:
        found.setdefault(message.key, []).append(message.value)
    return found


async def nothing_comes(consumer: Consumer) -> None:
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(timeout_ms=1)


def of_the_child(messages: list[Message]) -> list[bool]:
    return [message.id.segment == CHILD for message in messages]


async def half_done(consumer: Consumer) -> None:
    """Acknowledge the first message of the lower parent and the last message of the other."""
    received = await take(consumer, 8)
    await consumer.ack(next(one for one in received if one.key == LOW[0] and one.value == b"1"))
    await consumer.ack(next(one for one in received if one.key == HIGH[1] and one.value == b"2"))


async def one_parent_done(consumer: Consumer) -> None:
    """Acknowledge all messages of the lower parent and none of the other."""
    await consumer.ack(*(one for one in await take(consumer, 8) if one.key in LOW))


async def all_done(consumer: Consumer) -> None:
    await consumer.ack(*await take(consumer, 8))


async def nothing_done(consumer: Consumer) -> None:
    await take(consumer, 3)


PROGRESS: dict[str, Callable[[Consumer], Awaitable[None]]] = {
    "nothing": nothing_done,
    "half": half_done,
    "one-parent": one_parent_done,
    "all": all_done,
}


@pytest.mark.parametrize("restart", [False, True])
def test_subscriptions_at_different_places(stores: Stores, restart: bool) -> None:
    """Each subscription continues in each parent at its position, and starts the child at its first message."""

    async def work() -> None:
        left = dict.fromkeys(PROGRESS, 8) | {"half": 6, "one-parent": 4, "all": 0, "late": 0}
        async with stores.open() as client:
            producer = await prepared(client)
            consumers = {name: await client.consumer("orders", name, start="earliest") for name in PROGRESS}
            await send(producer, b"1")
            await send(producer, b"2")
            for name, consumer in consumers.items():
                await PROGRESS[name](consumer)
                await consumer.close()
            await (await client.consumer("orders", "late")).close()
            await client.merge("orders", 0, 1)
            await send(producer, b"3")
            if not restart:
                await expect(client, left)
        if restart:
            async with stores.open() as client:
                await expect(client, left)

    async def expect(client: Client, left: dict[str, int]) -> None:
        for name, of_parents in left.items():
            consumer = await client.consumer("orders", name)
            received = await take(consumer, of_parents + 4)
            assert of_the_child(received) == [False] * of_parents + [True] * 4, name
            for key, values in by_key(received).items():
                assert values == sorted(values), (name, key)
            assert len({message.id for message in received}) == len(received)
            await nothing_comes(consumer)
            await consumer.ack(*received)
            await consumer.close()
            lag = await client.lag("orders", name)
            assert lag.messages == 0

    stores.run(work())


@pytest.mark.parametrize("commits", [True, False])
async def test_a_transaction_over_a_merge(stores: Stores, commits: bool) -> None:
    """Messages and acks of one transaction in parents and child share one outcome, also after a restart."""
    async with stores.open() as client:
        producer = await prepared(client)
        consumer = await client.consumer("orders", "billing", start="earliest")
        await send(producer, b"1")
        received = await take(consumer, 4)
        txn = client.transaction(outlives_client=True)
        await txn.begin()
        await consumer.ack(*(one for one in received if one.key in (LOW[0], HIGH[0])), txn=txn)
        for key in KEYS:
            await producer.send(b"2", key=key, txn=txn)
        await client.merge("orders", 0, 1)
        for key in KEYS:
            await producer.send(b"3", key=key, txn=txn)
        await send(producer, b"4")
        assert await stores.read(client, "orders") == [b"1"] * 4
        await consumer.close()
    async with stores.open() as client:
        await (client.commit(txn.id) if commits else client.abort(txn.id))
        assert await client.outcome(txn.id) is (State.COMMITTED if commits else State.ABORTED)
        async with await client.reader("orders") as reader:
            readable = [message async for message in reader]
        values = [b"1", b"2", b"3", b"4"] if commits else [b"1", b"4"]
        assert by_key(readable) == dict.fromkeys(KEYS, values)
        async with await client.consumer("orders", "billing") as consumer:
            done = (LOW[0], HIGH[0]) if commits else ()
            received = await take(consumer, len(readable) - len(done))
            assert by_key(received) == {key: values[key in done :] for key in KEYS}
            await nothing_comes(consumer)


@pytest.mark.parametrize("kind", ["exclusive", "failover", "key_shared"])
@pytest.mark.parametrize("held", [LOW, HIGH], ids=["lower", "upper"])
async def test_both_parents_come_before_the_child(memory: Stores, kind: str, held: tuple[bytes, ...]) -> None:
    """While an open transaction blocks one parent, no consumer of an ordered type receives messages of the child."""
    clock = memory.environment = VirtualEnvironment()
    async with memory.open() as client:
        producer = await prepared(client)
        consumer = await client.consumer("orders", "billing", type=kind, start="earliest")
        txn = client.transaction()
        await txn.begin()
        for key in held:
            await producer.send(b"1", key=key, txn=txn)
        await send(producer, b"2")
        await client.merge("orders", 0, 1)
        await send(producer, b"3")
        received = await take(consumer, 2)
        assert {message.key for message in received} == set(KEYS) - set(held)
        await consumer.ack(*received)
        waiting = asyncio.ensure_future(consumer.receive())
        await clock.advance(60_000)
        assert not waiting.done()
        await txn.commit()
        received += [await waiting, *await take(consumer, 7)]
        assert of_the_child(received) == [False] * 6 + [True] * 4
        assert by_key(received) == {key: [b"1", b"2", b"3"] if key in held else [b"2", b"3"] for key in KEYS}
        await consumer.close()


async def test_a_shared_subscription_need_not_wait_for_a_parent(memory: Stores) -> None:
    """A shared subscription promises no order, so it delivers the child's messages while a parent is blocked."""
    memory.environment = VirtualEnvironment()
    async with memory.open() as client:
        producer = await prepared(client)
        consumer = await client.consumer("orders", "billing", type="shared", start="earliest")
        async with client.transaction() as txn:
            await producer.send(b"1", key=LOW[0], txn=txn)
            await client.merge("orders", 0, 1)
            await send(producer, b"2", LOW[0])
            assert await memory.receive(consumer, 1) == [b"2"]
        assert await memory.receive(consumer, 1) == [b"1"]
        await consumer.close()


async def test_sends_that_are_repeated_after_a_merge(stores: Stores) -> None:
    """A repeated send is confirmed with the id of its first copy in either parent.

    Also after a restart and in a transaction.
    """
    async with stores.open() as client:
        producer = await prepared(client)
        first = [await producer.send(b"%d" % n, key=key, sequence_id=n) for n, key in enumerate(KEYS)]
        async with client.transaction() as txn:
            first += [await producer.send(b"%d" % n, key=key, sequence_id=n, txn=txn) for n, key in enumerate(KEYS, 4)]
    async with stores.open() as client:
        producer = await client.producer("orders", name="till-7")
        await client.merge("orders", 0, 1)
        again = [producer.send(b"%d" % n, key=key, sequence_id=n) for n, key in enumerate(KEYS * 2)]
        assert await asyncio.gather(*again) == first
    async with stores.open() as client:
        producer = await client.producer("orders", name="till-7")
        async with client.transaction() as txn:
            for number, key in enumerate(KEYS * 2):
                copy = await producer.send(b"%d" % number, key=key, sequence_id=number, txn=txn)
                assert copy == first[number]
            fresh = await producer.send(b"8", key=LOW[0], sequence_id=8, txn=txn)
            assert fresh.segment == CHILD
        assert sorted(await stores.read(client, "orders")) == [b"%d" % number for number in range(9)]


async def test_copies_of_other_transactions_in_a_parent(stores: Stores) -> None:
    """A copy in an open transaction of a parent is a conflict, which names it.

    An aborted copy is sent again, to the child.
    """
    async with stores.open() as client:
        producer = await prepared(client)
        other = client.transaction()
        await other.begin()
        for number, key in enumerate(KEYS):
            await producer.send(b"x", key=key, sequence_id=number, txn=other)
        await client.merge("orders", 0, 1)
        for number, key in enumerate(KEYS):
            with pytest.raises(TransactionConflict) as refused:
                await producer.send(b"y", key=key, sequence_id=number)
            assert refused.value.other == other.id
        await other.abort()
        again = [await producer.send(b"y", key=key, sequence_id=n) for n, key in enumerate(KEYS)]
        assert {one.segment for one in again} == {CHILD}
        assert [await producer.send(b"y", key=key, sequence_id=n) for n, key in enumerate(KEYS)] == again
        assert await stores.read(client, "orders") == [b"y"] * 4


@pytest.mark.parametrize("way", ["plain", "commit", "abort"])
async def test_a_cumulative_ack_over_merged_parents(stores: Stores, way: str) -> None:
    """A cumulative ack in the child covers all received messages of both parents, in one decision if in a
    transaction.
    """
    async with stores.open() as client:
        producer = await prepared(client)
        consumer = await client.consumer("orders", "billing", start="earliest")
        await send(producer, b"1")
        await client.merge("orders", 0, 1)
        await send(producer, b"2")
        received = await take(consumer, 8)
        if way == "plain":
            await consumer.ack_cumulative(received[5])
        else:
            txn = client.transaction()
            await txn.begin()
            await consumer.ack_cumulative(received[5], txn=txn)
            rival = client.transaction()
            await rival.begin()
            for message in (received[0], received[3], received[4]):  # of each parent, and of the child
                with pytest.raises(TransactionConflict):
                    await consumer.ack(message, txn=rival)
            await rival.abort()
            described = await (await client.host.coordinator()).describe(txn.id)
            assert {one.segment for one in described.participants} == {one.id.segment for one in received}
            await (txn.commit() if way == "commit" else txn.abort())
        await consumer.close()
    async with stores.open() as client, await client.consumer("orders", "billing") as consumer:
        due = received if way == "abort" else received[6:]
        assert {one.id for one in await take(consumer, len(due))} == {one.id for one in due}
        await nothing_comes(consumer)


async def test_merged_split_and_merged_again(stores: Stores) -> None:
    """After several generations and restarts, each key's messages arrive once and in order, by every API."""
    rounds = 6
    for round_ in range(rounds):
        async with stores.open() as client:
            if round_ == 0:
                producer = await prepared(client)
                await client.topics.subscribe((await client.layout("orders")).topic, "billing", "earliest")
            else:
                producer = await client.producer("orders", name="till-7")
                active = (await client.layout("orders")).active()
                if len(active) == 1:
                    await client.split("orders", active[0].id)
                else:
                    await client.merge("orders", *(one.id for one in active))
            async with client.transaction() as txn:
                for key in KEYS:
                    await producer.send(b"%d" % round_, key=key, sequence_id=10 * round_ + KEYS.index(key), txn=txn)
            for key in KEYS:
                await producer.send(b"%d" % round_, key=key, sequence_id=10 * round_ + KEYS.index(key))
    values = [b"%d" % number for number in range(rounds)]
    async with stores.open() as client:
        async with await client.reader("orders") as reader:
            assert by_key([message async for message in reader]) == dict.fromkeys(KEYS, values)
        async with await client.consumer("orders", "billing") as consumer:
            received = await take(consumer, rounds * len(KEYS))
            assert by_key(received) == dict.fromkeys(KEYS, values)
            async with client.transaction() as txn:
                await consumer.ack(*received, txn=txn)
            await nothing_comes(consumer)

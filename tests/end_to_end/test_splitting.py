"""Behaviours 4, 16 and 51: scalable topics that change under transactions, and sends that are repeated."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from txnframework import Client, Consumer, Message, State
from txnframework.broker import Topics
from txnframework.errors import (
    LayoutConflict,
    LedgerSealed,
    OutcomeUnknown,
    TopicExists,
    TopicNotFound,
    TransactionConflict,
    Unavailable,
    UnknownPlugin,
)
from txnframework.model import SegmentName, TopicName

if TYPE_CHECKING:
    from conftest import Stores


async def messages(client: Client, topic: str = "orders") -> list[Message]:
    async with await client.reader(topic) as reader:
        return [message async for message in reader]


def by_key(received: list[Message]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for message in received:
        found.setdefault(message.key or b"", []).append(message.value)
    return found


async def take(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_ms=60_000) for _ in range(count)]


async def test_a_split_that_stops_halfway_has_an_unknown_outcome(
    memory: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome is unknown: any process that reads the plan completes the split."""

    async def refuse(*_: object) -> None:
        raise Unavailable("the store is away")

    async with memory.open() as client:
        await client.create_topic("orders")
        with monkeypatch.context() as patch:
            patch.setattr(client.host.metadata, "put", refuse)
            with pytest.raises(Unavailable):
                await client.split("orders", 0)
        assert len((await client.layout("orders")).segments) == 1
        with monkeypatch.context() as patch:
            patch.setattr(client.host.ledgers, "create", refuse)
            with pytest.raises(OutcomeUnknown, match="may be planned"):
                await client.split("orders", 0)
        await client.host.topics.finish_changes(TopicName.parse("orders"))
        assert len((await client.layout("orders")).active()) == 2


async def test_split_and_merge_under_an_open_transaction(stores: Stores) -> None:
    """A transaction that began before a change is committed whole after it, each key's messages in order."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        keys = [b"key %d" % number for number in range(8)]
        async with client.transaction() as txn:
            for value in (b"1", b"2"):
                await asyncio.gather(*(producer.send(value, key=key, txn=txn) for key in keys))
            low, high = await client.split("orders", 0)
            for value in (b"3", b"4"):
                await asyncio.gather(*(producer.send(value, key=key, txn=txn) for key in keys))
            assert await messages(client) == []
            merged = await client.merge("orders", low, high)
            await asyncio.gather(*(producer.send(b"5", key=key, txn=txn) for key in keys))
        received = await messages(client)
        assert by_key(received) == {key: [b"1", b"2", b"3", b"4", b"5"] for key in keys}
        segments = {SegmentName.parse(message.id.segment).segment_id for message in received}
        assert segments == {0, low, high, merged}
        assert len({message.txn_id for message in received}) == 1

        async with client.transaction() as txn:
            await producer.send(b"never", key=keys[0], txn=txn)
            await client.split("orders", merged)
            await producer.send(b"never", key=keys[0], txn=txn)
            await txn.abort()
        assert await messages(client) == received


async def test_ordered_consumers_follow_a_split(stores: Stores) -> None:
    """A consumer that is there gets everything of the parent before the children; one that comes later as well."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="earliest")
        await client.consumer("orders", "late", start="earliest", type="shared")
        keys = [b"key %d" % number for number in range(6)]
        for key in keys:
            await producer.send(b"1", key=key)
        early = await take(consumer, 3)
        await client.split("orders", 0)
        for key in keys:
            await producer.send(b"2", key=key)
        received = early + await take(consumer, 9)
        assert by_key(received) == {key: [b"1", b"2"] for key in keys}
        assert [message.id.segment.endswith("0000-ffff-0") for message in received] == [True] * 6 + [False] * 6
        async with client.transaction() as txn:
            last = received[-1]
            await consumer.ack_cumulative(last, txn=txn)
        await consumer.close()
        consumer = await client.consumer("orders", "billing")
        left = [one for one in received[6:] if one.id.segment != last.id.segment]
        assert [one.value for one in await take(consumer, len(left))] == [b"2"] * len(left)
        await producer.send(b"3", key=keys[0])
        assert [one.value for one in await take(consumer, 1)] == [b"3"]
        await consumer.close()


async def test_a_consumer_of_a_split_topic_leaves_what_is_done(stores: Stores) -> None:
    """A consumer leaves a finished sealed segment; children created while it was absent start at earliest."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", start="latest")
        await producer.send(b"1")
        await consumer.ack(await consumer.receive(timeout_ms=60_000))
        await consumer.close()
        await client.split("orders", 0)
        for number in range(4):
            await producer.send(b"%d" % number, key=b"key %d" % number)
    async with stores.open() as client:
        consumer = await client.consumer("orders", "billing")
        received = await take(consumer, 4)
        assert sorted(message.value for message in received) == [b"0", b"1", b"2", b"3"]
        async with client.transaction() as txn:
            await consumer.ack(*received, txn=txn)
        async with client.transaction() as txn:
            with pytest.raises(TransactionConflict):
                await consumer.ack(received[0], txn=txn)
            await txn.abort()
        assert txn.state is State.ABORTED
        await consumer.close()


async def test_two_processes_split_at_once(stores: Stores) -> None:
    """The layout is changed once, by either process; producers of both continue."""
    async with stores.open() as client, stores.open() as elsewhere:
        await client.create_topic("orders")
        mine, theirs = await client.producer("orders"), await elsewhere.producer("orders")
        await asyncio.gather(mine.send(b"1"), theirs.send(b"2"))
        splits = await asyncio.gather(client.split("orders", 0), elsewhere.split("orders", 0), return_exceptions=True)
        done = [split for split in splits if not isinstance(split, LayoutConflict)]
        assert done
        assert set(done) == {(1, 2)}
        await asyncio.gather(mine.send(b"3", key=b"k"), theirs.send(b"4", key=b"k"))
        assert sorted(await stores.read(elsewhere, "orders")) == [b"1", b"2", b"3", b"4"]


async def test_a_repeated_send_is_stored_once(stores: Stores) -> None:
    """Behaviour 16: also after a restart, inside a transaction, in another batch, and on a child of its segment."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders", name="till-7")
        sends = [producer.send(b"%d" % number, sequence_id=number) for number in range(4)]
        first = await asyncio.gather(*sends)
        again = await asyncio.gather(*(producer.send(b"x", sequence_id=number) for number in (1, 2)))
        assert again == first[1:3]
        async with client.transaction() as txn:
            inside = await producer.send(b"4", sequence_id=4, txn=txn)
            assert await producer.send(b"4", sequence_id=4, txn=txn) == inside
    async with stores.open() as client:
        producer = await client.producer("orders", name="till-7")
        sends = [producer.send(b"%d" % number, sequence_id=number) for number in range(2, 7)]
        assert (await asyncio.gather(*sends))[:2] == first[2:]
        await client.split("orders", 0)
        late = [producer.send(b"%d" % number, sequence_id=number) for number in range(5, 9)]
        await asyncio.gather(*late)
    async with stores.open() as client:
        producer = await client.producer("orders", name="till-7")
        assert await producer.send(b"3", sequence_id=3) == first[3]
        assert sorted(await stores.read(client, "orders")) == [b"%d" % number for number in range(9)]


async def test_a_repeated_send_of_what_was_trimmed(stores: Stores) -> None:
    """The id is that of the first copy, also where its entry is gone, or the segment that it was sent to."""
    async with stores.open(retention={"time_ms": 0, "bytes": 0}) as client:
        await client.create_topic("orders")
        producer = await client.producer("orders", name="till-7")
        first = await producer.send_many([b"1", b"2", b"3"], sequence_id=1)
        single = await producer.send(b"4", sequence_id=4)
        await (await client.host.segment(single.segment)).ledger.roll()
        await client.maintain()
        assert await stores.read(client, "orders") == []
        for split in (False, True):
            if split:
                await client.split("orders", 0)
            producer = await client.producer("orders", name="till-7")
            assert await producer.send(b"2", sequence_id=2) == first[1]
            assert await producer.send_many([b"1", b"2", b"3", b"4"], sequence_id=1) == (*first, single)
        assert await stores.read(client, "orders") == []


async def test_a_copy_of_another_transaction(stores: Stores) -> None:
    """A copy in an open transaction is a conflict, an aborted one is sent again, a committed one is confirmed.

    The same holds for a copy in the parent segment.
    """
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders", name="till-7")
        for split in (False, True):
            base = 10 * split
            other = client.transaction()
            await other.begin()
            await producer.send(b"a", sequence_id=base, txn=other)
            await producer.send(b"b", sequence_id=base + 1, txn=other)
            kept = client.transaction()
            await kept.begin()
            committed = await producer.send(b"c", sequence_id=base + 2, txn=kept)
            await kept.commit()
            if split:
                await client.split("orders", 0)
            with pytest.raises(TransactionConflict):
                await producer.send(b"a", sequence_id=base)
            await other.abort()
            assert await producer.send(b"c", sequence_id=base + 2) == committed
            for number, value in enumerate((b"a", b"b")):
                await producer.send(value, sequence_id=base + number)
        assert sorted(await stores.read(client, "orders")) == sorted([b"a", b"b", b"c"] * 2)


async def test_a_name_used_again_without_chosen_ids_sends_anew(stores: Stores) -> None:
    """A restarted producer without chosen sequence ids does not collide with its earlier ids."""
    for _ in range(2):
        async with stores.open() as client:
            if not await client.topics.list():
                await client.create_topic("orders")
            producer = await client.producer("orders", name="till-7")
            await producer.send_many([b"1", b"2"])
    async with stores.open() as client:
        assert len(await stores.read(client, "orders")) == 4


async def test_one_segment_alone(stores: Stores) -> None:
    """Clients of one segment do not follow its children; a sealed segment refuses messages."""
    async with stores.open() as client:
        await client.create_topic("orders", segments=2)
        name = "segment://public/default/orders/0000-7fff-0"
        producer = await client.producer(name)
        consumer = await client.consumer(name, "billing", start="earliest")
        for number in range(4):
            await producer.send(b"%d" % number, key=b"key %d" % number)
        await (await client.producer("segment://public/default/orders/8000-ffff-1")).send(b"elsewhere")
        assert await stores.receive(consumer, 4) == [b"0", b"1", b"2", b"3"]
        assert await stores.read(client, name) == [b"0", b"1", b"2", b"3"]
        await client.split("orders", 0)
        with pytest.raises(LedgerSealed):
            await producer.send(b"late")
        with pytest.raises(LayoutConflict):
            await client.producer("segment://public/default/orders/0000-ffff-0")
        await consumer.close()


async def test_names_that_cannot_be_used(stores: Stores) -> None:
    """Each is refused in one sentence that says what to do."""
    async with stores.open() as client:
        await client.create_topic("orders")
        with pytest.raises(TopicExists):
            await client.create_topic("orders")
        with pytest.raises(TopicNotFound, match="create it first"):
            await client.producer("nothing")
        with pytest.raises(TopicNotFound):
            await client.consumer("nothing", "billing")
        with pytest.raises(TopicNotFound, match="persistent://"):
            await client.producer("persistent://public/default/orders")
        with pytest.raises(UnknownPlugin, match="dispatcher"):
            await client.consumer("orders", "billing", type="broadcast")
        assert isinstance(client.topics, Topics)


async def test_a_reader_that_follows(stores: Stores) -> None:
    """A following reader continues through splits and commits, and starts at its given position."""
    async with stores.open() as client:
        await client.create_topic("orders")
        producer = await client.producer("orders")
        first = await producer.send(b"0")
        await producer.send_many([b"1", b"2"])
        reader = await client.reader("orders", start=first, follow=True)
        found: list[bytes] = []

        async def follow() -> None:
            async for message in reader:
                found.append(message.value)
                if message.value == b"end":
                    return

        following = asyncio.ensure_future(follow())
        async with client.transaction() as txn:
            await producer.send(b"3", txn=txn)
            await client.split("orders", 0)
        await producer.send(b"4")
        await producer.send(b"5", key=b"k")
        await producer.send(b"end", key=b"k")
        await following
        await reader.close()
        assert found[:3] == [b"1", b"2", b"3"]
        # The order of two segments of one split is not guaranteed.
        assert [value for value in found[3:] if value != b"4"] == [b"5", b"end"]
        latest = await client.reader("orders", start="latest")
        assert [message async for message in latest] == []

"""Snapshots of several topics: each transaction is in all of them with all of its messages, or in none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from txnframework import Client, Snapshot
from txnframework.errors import InvalidInput, TopicNotFound

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.families

TOPICS = ("left", "right")


async def create(client: Client) -> None:
    """Create both topics."""
    for topic in TOPICS:
        await client.create_topic(topic)


async def contents(snapshot: Snapshot) -> tuple[list[bytes], list[bytes]]:
    """Return what both topics contain in a snapshot."""
    left, right = [[message.value async for message in await snapshot.reader(topic)] for topic in TOPICS]
    return left, right


async def test_nothing_of_a_transaction_that_is_held_back_in_one_topic(stores: Stores) -> None:
    """An open transaction holds back the end of one topic, so the messages before it in the other are hidden."""
    async with stores.open() as client:
        await create(client)
        left, right = [await client.producer(topic) for topic in TOPICS]
        await left.send(b"plain")
        blocking = client.transaction()
        await blocking.begin()
        await right.send(b"blocking", txn=blocking)
        async with client.transaction() as both:
            await left.send(b"both", txn=both)
            await right.send(b"both", txn=both)
        await left.send(b"after")
        assert await stores.read(client, "left") == [b"plain", b"both", b"after"]
        snapshot = await client.snapshot(*TOPICS)
        assert both.id in snapshot.hidden
        assert await contents(snapshot) == ([b"plain", b"after"], [])
        await blocking.commit()
        assert await contents(await client.snapshot(*TOPICS)) == (
            [b"plain", b"both", b"after"],
            [b"blocking", b"both"],
        )
        assert await contents(snapshot) == ([b"plain", b"after"], [])


async def test_transactions_that_end_meanwhile(stores: Stores) -> None:
    """However many transactions end while snapshots are taken, each one shows equal topics, and never loses any."""
    async with stores.open() as client:
        await create(client)
        producers = [await client.producer(topic) for topic in TOPICS]
        seen = [0]

        async def write(writer: int) -> None:
            for number in range(6):
                async with client.transaction() as txn:
                    for producer in producers if number % 2 else reversed(producers):
                        await producer.send(f"{writer} {number}".encode(), txn=txn)
                    if number == 3:
                        await txn.abort()

        writing = asyncio.gather(*map(write, range(4)))
        while not writing.done():
            left, right = await contents(await client.snapshot(*TOPICS))
            assert sorted(left) == sorted(right)
            seen.append(len(left))
        await writing
        left, right = await contents(await client.snapshot(*TOPICS))
        assert sorted(left) == sorted(right)
        assert len(left) == 4 * 5
        assert seen == sorted(seen)


@pytest.mark.metadata_family("it splits a topic")
async def test_a_transaction_that_goes_on_in_the_children(stores: Stores) -> None:
    """A transaction writes to a segment before a split, and to its children afterwards: all, or nothing of it."""
    async with stores.open() as client:
        await create(client)
        left, right = [await client.producer(topic) for topic in TOPICS]
        txn = client.transaction()
        await txn.begin()
        await left.send(b"1", txn=txn)
        await right.send(b"1", txn=txn)
        await client.split("right", 0)
        blocking = client.transaction()
        await blocking.begin()
        for number in range(8):
            await right.send(b"blocking", key=str(number).encode(), txn=blocking)
            await right.send(b"2", key=str(number).encode(), txn=txn)
        await txn.commit()
        assert await stores.read(client, "left") == [b"1"]
        assert await contents(await client.snapshot(*TOPICS)) == ([], [])
        await blocking.abort()
        assert await contents(await client.snapshot(*TOPICS)) == ([b"1"], [b"1", *[b"2"] * 8])


async def test_a_snapshot_is_of_existing_whole_topics(stores: Stores) -> None:
    """Segments, unknown topics and topics outside of the snapshot are refused."""
    async with stores.open() as client:
        await create(client)
        with pytest.raises(InvalidInput, match="whole topics"):
            await client.snapshot()
        with pytest.raises(TopicNotFound):
            await client.snapshot("left", "nowhere")
        snapshot = await client.snapshot("left")
        with pytest.raises(InvalidInput, match=r"contains \w+://public/default/left, and not"):
            await snapshot.reader("right")


async def test_a_topic_that_was_deleted_and_created_again(stores: Stores) -> None:
    """The new topic has the name and the segments of the other one, and nothing of it is in the snapshot."""
    async with stores.open() as client:
        await create(client)
        await (await client.producer("left")).send(b"old")
        snapshot = await client.snapshot(*TOPICS)
        await client.delete_topic("left", force=True)
        await client.create_topic("left")
        await (await client.producer("left")).send(b"new")
        with pytest.raises(TopicNotFound, match="was deleted"):
            await snapshot.reader("left")
        async with await snapshot.reader("right") as reader:
            assert [message.value async for message in reader] == []
        assert await contents(await client.snapshot(*TOPICS)) == ([b"new"], [])


def test_without_await(stores: Stores) -> None:
    """The blocking client has the same."""
    with stores.open_blocking() as client:
        client.create_topic("left")
        client.producer("left").send(b"one")
        snapshot = client.snapshot("left")
        assert [topic.name for topic in snapshot.topics] == ["left"]
        with snapshot.reader("left") as reader:
            assert [message.value for message in reader] == [b"one"]

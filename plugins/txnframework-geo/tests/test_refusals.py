"""What cannot be replicated is refused with one sentence, and nothing is copied."""

from __future__ import annotations

import asyncio
import json

import pytest
from geo_world import World, run

from txnframework.errors import InvalidInput, SubscriptionNotFound, TopicNotFound, TxnFrameworkError, UnknownFormat
from txnframework.model.names import TopicName
from txnframework_geo import Replication, Replicator, Stage

PROGRESS = "geo-default"


def test_a_deployment_to_itself() -> None:
    world = World()
    world.target = world.source
    with pytest.raises(InvalidInput, match="same deployment"):
        run(world.copy())


async def test_a_topic_that_does_not_exist_creates_nothing() -> None:
    world = World()

    with pytest.raises(TopicNotFound):
        await world.copy()
    async with world.target.open() as target:
        assert await target.topics.list() == ()


async def test_other_topics_or_another_source_under_a_name_that_is_used() -> None:
    world, other = World(), World()
    other.target = world.target

    for one in (world, other):
        async with one.source.open() as source:
            await one.create(source)
            await one.send(source)
    await world.copy()
    async with world.source.open() as source, world.target.open() as target:
        with pytest.raises(InvalidInput, match="name these topics, or choose another --name"):
            await Replicator(source, target, Replication(world.topics[:1])).run(once=True)
    with pytest.raises(InvalidInput, match="another one or one that was restored"):
        await other.copy()
    async with other.source.open() as source:  # what was refused holds nothing back
        assert [(await source.layout(topic)).subscriptions for topic in other.topics] == [(), ()]


async def test_the_topic_of_the_progress() -> None:
    """It would be copied into itself."""
    world = World()
    topics = (TopicName("topic", "public", "default", PROGRESS),)

    async with world.source.open() as source, world.target.open() as target:
        with pytest.raises(InvalidInput, match="is for the progress of this replication"):
            Replicator(source, target, Replication(topics))
        Replicator(source, target, Replication(topics, name="another"))


async def test_topics_of_both_families() -> None:
    world = World()
    topics = (world.topics[0], TopicName("persistent", "public", "default", "right"))

    async with world.source.open() as source, world.target.open() as target:
        with pytest.raises(InvalidInput, match="under a --name of their own"):
            Replicator(source, target, Replication(topics))


async def test_a_topic_that_is_read_in_the_order_of_commits() -> None:
    world = World("persistent")
    sidecar = {"persistent": {"coordinator": "log", "buffer": "sidecar", "pending_ack": "log"}}

    async with world.source.open(domains=sidecar) as source, world.target.open() as target:
        await world.create(source)
        with pytest.raises(InvalidInput, match="order of commits"):
            await world.replicator(source, target).run(once=True)


async def test_progress_of_a_later_release() -> None:
    world = World()

    async with world.source.open() as source:
        await world.create(source)
    await world.copy()
    (first,) = await world.target.read(PROGRESS)
    async with world.target.open() as target, await target.producer(PROGRESS) as producer:
        assert first.value is not None
        await producer.send(json.dumps({**json.loads(first.value), "format": 2}).encode())
    with pytest.raises(UnknownFormat, match="format version 2"):
        await world.copy()
    async with world.target.open() as target, await target.producer(PROGRESS) as producer:
        await target.delete_topic(PROGRESS, force=True)
        await target.create_topic(PROGRESS)
        async with await target.producer(PROGRESS) as again:
            await again.send(b"no progress")
    with pytest.raises(InvalidInput, match="not the progress of a replication"):
        await world.copy()


async def test_progress_that_the_target_has_lost() -> None:
    world = World()

    await world.begin()
    async with world.target.open() as target:
        await target.delete_topic(PROGRESS, force=True)
    with pytest.raises(InvalidInput, match="lost the progress"):
        await world.copy()
    assert len(await world.target.read("left")) == 2


@pytest.mark.parametrize("domain", ["topic", "persistent"])
async def test_a_ledger_store_of_the_target_that_was_restored_alone(domain: str) -> None:
    """Then the last progress is acknowledged, and its successor is lost; the remedy of the error is enough."""
    world = World(domain)
    progress = str(TopicName(domain, "public", "default", PROGRESS))

    await world.begin()
    async with world.target.open() as target:
        async with await target.consumer(progress, "geo", type="failover", stand_by=True) as consumer:
            await consumer.ack(await consumer.receive())

        async def pass_time() -> None:
            while True:
                await world.target.advance(1_000)
                await asyncio.sleep(0)

        # While a later message is stored that may still become readable, nothing is lost.
        opened = target.transaction(domain=world.domain)
        await opened.begin()
        async with await target.producer(progress) as producer:
            await producer.send(b"perhaps", txn=opened)
        waiting = asyncio.ensure_future(world.copy())
        for _ in range(20):
            await world.target.advance(1_000)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait({waiting})
        await opened.abort()
        passing = asyncio.ensure_future(pass_time())
        with pytest.raises(InvalidInput, match="geo-default and the copies in the target"):
            await world.copy()
        passing.cancel()
        for topic in (progress, *map(str, world.topics)):
            await target.delete_topic(topic, force=True)
        async with world.source.open() as source:
            for topic in world.topics:
                for name in (await source.layout(topic)).subscriptions:
                    await source.unsubscribe(topic, name)
    assert await world.copy() == 4
    await world.assert_same()


async def test_progress_that_retention_has_removed() -> None:
    """The remedy of the error is enough to begin anew, and half of it does not copy anything."""
    world = World()
    retention = {"backlog_time_ms": 1_000, "ledger_age_ms": 1}

    await world.begin()
    async with world.target.open(retention=retention) as target, world.source.open() as source:
        await world.target.advance(60_000)
        await target.maintain()
        with pytest.raises(InvalidInput, match="geo-default in the target, and the copies"):
            await world.copy()
        for topic in world.topics:
            await target.delete_topic(topic, force=True)
            for name in (await source.layout(topic)).subscriptions:
                await source.unsubscribe(topic, name)
        retries: asyncio.Queue[TxnFrameworkError] = asyncio.Queue()
        running = asyncio.ensure_future(world.replicator(source, target).run(on_retry=retries.put_nowait))
        assert "if this error stays, delete the topic" in str(await retries.get())
        running.cancel()
        await asyncio.wait({running})
        await target.delete_topic(PROGRESS, force=True)
    assert await world.copy() == 4
    await world.assert_same()


async def test_a_topic_that_was_created_again() -> None:
    world = World()

    await world.begin()
    async with world.source.open() as source:
        await source.delete_topic("left", force=True)
        await source.create_topic("left")
    with pytest.raises(InvalidInput, match="deleted and created again"):
        await world.copy()


async def test_messages_that_were_trimmed_too_early() -> None:
    """By an operator who deleted the subscription that held them."""
    world = World()

    async with world.source.open() as source:
        await world.create(source, segments=1)
        await world.send(source)
        await world.copy()
        for topic in world.topics:
            for name in (await source.layout(topic)).subscriptions:
                await source.unsubscribe(topic, name)
        await world.send(source, times=2)
        for topic in world.topics:
            layout = await source.layout(topic)
            segment = await source.host.segment(str(layout.name_of(0)))
            await segment.ledger.roll()
            await segment.buffer.trim((await segment.ledger.tail()).open_ledger_id)
    with pytest.raises(InvalidInput, match="were trimmed before they were replicated"):
        await world.copy()


async def test_a_topic_that_is_created_again_while_it_is_copied() -> None:
    """Nothing is copied, as a part of each transaction is gone; and the new topic is not held back."""
    world = World()

    async with world.source.open() as source, world.target.open() as target:
        await world.create(source)
        await world.send(source)

        async def create_again(stage: Stage) -> None:
            if stage is Stage.READ:
                await source.delete_topic("left", force=True)
                await source.create_topic("left", segments=2)

        with pytest.raises(InvalidInput, match="deleted and created again"):
            await world.replicator(source, target, reached=create_again).run(once=True)
        assert (await source.layout("left")).subscriptions == ()
    assert await world.target.read("right") == []


async def test_a_subscription_that_was_deleted_and_created_again() -> None:
    """It moves to what the target has, and holds nothing back."""
    world = World()

    async with world.source.open() as source, world.target.open() as target:
        await world.create(source)
        await world.send(source)
        deleted = 0

        async def delete(stage: Stage) -> None:
            nonlocal deleted
            if stage is Stage.RELEASED and deleted < 2:
                deleted += 1
                for topic in world.topics:
                    for name in (await source.layout(topic)).subscriptions:
                        await source.unsubscribe(topic, name)

        retried: list[TxnFrameworkError] = []
        await world.replicator(source, target, reached=delete).run(once=True, on_retry=retried.append)
        assert [type(one) for one in retried] == [SubscriptionNotFound]
        for topic in world.topics:
            (name,) = (await source.layout(topic)).subscriptions
            assert (await source.lag(topic, name)).messages == 0

"""Topics of either side that change while they are replicated: they migrate, are compacted and trimmed, or split."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from geo_world import World, torn

from txnframework.errors import InvalidInput, TopicNotFound
from txnframework.model.delays import DELIVER_AT_HEADER
from txnframework.model.names import TopicName
from txnframework_geo import Stage


@pytest.mark.parametrize("stage", [None, Stage.TAKEN, Stage.READ, Stage.SENT, Stage.COMMITTED])
async def test_a_topic_of_the_source_that_migrates(stage: Stage | None) -> None:
    """Between two runs (None), or while it is replicated."""
    world = World("persistent")

    async with world.source.open() as source, world.target.open() as target:
        await world.create(source, segments=1)
        left, right = world.topics
        await world.send(source, times=2)
        migrated = False

        async def migrate(found: Stage | None) -> None:
            nonlocal migrated
            if found is stage and not migrated:
                migrated = True
                for topic in world.topics:
                    await source.topics.migrations.migrate(topic, replace(topic, domain="topic"), 0)

        if stage is None:
            await world.replicator(source, target).run(once=True)
            await world.send(source)
            await migrate(None)
        else:
            await world.replicator(source, target, reached=migrate).run(once=True)
        assert migrated
        world.domain = await source.transaction_domain(left)
        assert world.domain == await source.transaction_domain(right)
        assert world.domain == "segment"
        await world.send(source, times=2)
        assert not await torn(target, world.topics)
    await world.copy()
    await world.assert_same()
    assert await world.copy() == 0


async def test_topics_of_the_target_that_migrate() -> None:
    """Copies go on when all of them have migrated, with the topic of the progress; before, an error says what to do."""
    world = World("persistent")
    progress = TopicName("persistent", "public", "default", "geo-default")

    await world.begin()
    async with world.source.open() as source, world.target.open() as target:
        await world.send(source, times=2)
        for topic in (*world.topics, progress):
            await target.topics.migrations.migrate(topic, replace(topic, domain="topic"), 0)
            if topic != progress:
                with pytest.raises(InvalidInput, match="migrate the others as well"):
                    await world.replicator(source, target).run(once=True)
        await world.replicator(source, target).run(once=True)
        assert not await torn(target, world.topics)
    await world.assert_same()
    assert await world.copy() == 0


async def test_a_topic_of_the_source_that_is_deleted_while_it_is_copied() -> None:
    """Nothing of its transactions is copied."""
    world = World()

    async with world.source.open() as source, world.target.open() as target:
        await world.create(source)
        await world.send(source)

        async def delete(stage: Stage) -> None:
            if stage is Stage.READ:
                await source.delete_topic("right", force=True)

        with pytest.raises(TopicNotFound):
            await world.replicator(source, target, reached=delete).run(once=True)
    assert await world.target.read("left") == []


async def test_compacted_topics() -> None:
    """All messages are copied, also those that the compacted copy does not have; then they may be trimmed."""
    world = World()
    retention = {"time_ms": 0, "bytes": 0}

    async with world.source.open(retention=retention) as source:
        await world.create(source, segments=1)
        assert await world.copy() == 0  # from now on, its subscription holds back trimming
        for _ in range(3):
            await world.send(source)
            for topic in world.topics:
                await source.compact(topic)
                opened = await source.host.segment(str((await source.layout(topic)).name_of(0)))
                await opened.ledger.roll()
            await source.maintain()  # it removes only what the target has
            assert await world.copy() == 4
        await source.maintain()
    assert len(await world.source.read("left")) < 6
    assert [one.value for one in await world.target.read("left")] == [
        b"%d.%d" % (number, part) for number in (1, 2, 3) for part in (0, 1)
    ]


async def test_delayed_messages() -> None:
    """They are copied at once with their time, so the target delivers them when the source does."""
    world = World()

    left, _ = world.topics
    async with world.source.open() as source, world.target.open() as target:
        await world.create(source)
        now_ms = source.host.environment.now_ms()
        async with await source.producer(left) as producer:
            await producer.send(b"later", deliver_at_ms=now_ms + 3_600_000)
        await world.replicator(source, target).run(once=True)
        (copied,) = await world.target.read(str(left))
        (original,) = await world.source.read(str(left))
        assert copied.value == b"later"
        assert copied.headers[DELIVER_AT_HEADER] == original.headers[DELIVER_AT_HEADER]


async def test_a_topic_of_the_target_that_is_split_meanwhile() -> None:
    """Each key keeps its order, also if the split comes between two messages of one transaction of the target."""
    world = World()

    async with world.source.open() as source, world.target.open() as target, world.target.open() as other:
        await world.create(source)
        for topic in world.topics:
            await target.create_topic(topic)
        await world.send(source, times=20, key=b"ada")
        await world.send(source, times=20, key=b"bob")
        splitting: list[asyncio.Future[object]] = []

        async def split(stage: Stage) -> None:
            if stage is Stage.READ and not splitting:
                splitting.extend(asyncio.ensure_future(other.split(topic, 0)) for topic in world.topics)

        await world.replicator(source, target, reached=split, messages_min=20).run(once=True)
        assert len(await asyncio.gather(*splitting)) == 2
        assert not await torn(target, world.topics)
    await world.assert_same()

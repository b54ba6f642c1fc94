"""Stories of whole topics, and of opening and closing the client."""

from __future__ import annotations

from crash_story import Due

import txnframework
from cancelling.stage import FAMILIES, SUBSCRIPTION, Stage, registry
from cancelling.stories import Story
from txnframework import Client, LatestByKey
from txnframework.errors import LayoutConflict, TopicExists, TopicNotFound


class CreateTopic(Story):
    covers = ("Client.create_topic",)
    reports = (TopicExists,)

    async def call(self, stage: Stage) -> None:
        await stage.client.create_topic(stage.name("second"))

    async def repeat(self, stage: Stage) -> None:
        await super().repeat(stage)
        async with await stage.client.producer(stage.name("second")) as producer:
            await producer.send(b"first")
        assert await stage.read(stage.name("second")) == [b"first"]


class DeleteTopic(Story):
    """Once begun, the deletion completes; a new topic of the name has nothing of the old one."""

    covers = ("Client.delete_topic", "Client.delete_namespace")
    reports = (TopicNotFound,)
    whole_namespace = False

    async def arrange(self, stage: Stage) -> None:
        stage.notes["old"] = stage.name("old")
        await stage.client.create_topic(stage.notes["old"])
        await stage.client.subscribe(stage.notes["old"], "theirs", start="earliest")
        async with await stage.client.producer(stage.notes["old"]) as producer:
            await producer.send(b"old")

    async def call(self, stage: Stage) -> None:
        await stage.client.delete_topic(stage.notes["old"], force=True)

    async def repeat(self, stage: Stage) -> None:
        await super().repeat(stage)
        await stage.client.create_topic(stage.notes["old"])
        assert await stage.read(stage.notes["old"]) == []
        await stage.client.delete_topic(stage.notes["old"], force=True)


class DeleteNamespace(DeleteTopic):
    covers = ("Client.delete_namespace",)

    async def arrange(self, stage: Stage) -> None:
        stage.notes["old"] = f"{stage.scheme}://public/old/one"
        for name in ("one", "two"):
            await stage.client.create_topic(f"{stage.scheme}://public/old/{name}")

    async def call(self, stage: Stage) -> None:
        await stage.client.delete_namespace("public/old", force=True)


class Split(Story):
    covers = ("Client.split",)
    families = ("metadata",)
    reports = (LayoutConflict,)

    async def call(self, stage: Stage) -> None:
        await stage.client.split(stage.topic, 0)

    async def repeat(self, stage: Stage) -> None:
        await super().repeat(stage)
        assert len((await stage.client.layout(stage.topic)).active()) == 2
        await stage.send(b"3", b"4")


class Merge(Story):
    covers = ("Client.merge",)
    families = ("metadata",)
    reports = (LayoutConflict,)

    async def arrange(self, stage: Stage) -> None:
        stage.notes["children"] = await stage.client.split(stage.topic, 0)
        await stage.send(b"3", b"4")

    async def call(self, stage: Stage) -> None:
        await stage.client.merge(stage.topic, *stage.notes["children"])

    async def repeat(self, stage: Stage) -> None:
        await super().repeat(stage)
        assert len((await stage.client.layout(stage.topic)).active()) == 1
        await stage.send(b"5")


class Compact(Story):
    """A cancelled compaction has no effect; the next one is complete."""

    covers = ("Client.compact",)
    sampled = FAMILIES

    async def arrange(self, stage: Stage) -> None:
        for value in (b"k1", b"k2"):
            await stage.producer.send(value, key=b"k")
            stage.sent[value] = Due.MUST
        await stage.client.compact(stage.topic)
        await stage.producer.send(b"k3", key=b"k")
        stage.sent[b"k3"] = Due.MUST

    async def call(self, stage: Stage) -> None:
        await stage.client.compact(stage.topic, LatestByKey)

    async def repeat(self, stage: Stage) -> None:
        await self.call(stage)
        async with await stage.client.reader(stage.topic, compacted=True) as reader:
            seen = [message.value async for message in reader if message.key == b"k"]
        assert seen == [b"k3"], seen


class Open(Story):
    """Opening a client and leaving it."""

    covers = ("open.__aenter__", "open.__aexit__")

    async def call(self, stage: Stage) -> None:
        number = stage.notes["number"] = stage.notes.get("number", 0) + 1
        machine = stage.world.machine(f"second-{number}")
        config = stage.world.config(machine.name, stage.config())
        async with (
            txnframework.open(config, registry=registry(stage.family), environment=stage.loop.environment) as client,
            await client.consumer(stage.topic, SUBSCRIPTION) as consumer,
        ):
            await consumer.receive(timeout_ms=60_000)

    async def check_subscription(self, stage: Stage, client: Client, at_once: bool) -> None:
        await super().check_subscription(stage, client, at_once=False)


STORIES: tuple[Story, ...] = (
    CreateTopic(),
    DeleteTopic(),
    DeleteNamespace(),
    Split(),
    Merge(),
    Compact(),
    Open(),
)

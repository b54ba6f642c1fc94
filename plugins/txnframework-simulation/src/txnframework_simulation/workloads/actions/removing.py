"""Removing: topics that are deleted and made again under their names, and keys that compaction drops."""

from __future__ import annotations

from txnframework_simulation.workloads.actions.surroundings import Surroundings, full

ORDERS = ("position", "commit")


class Removing(Surroundings):
    """What an actor does to what is stored."""

    async def delete_topic(self) -> None:
        """Delete a topic that others use, and mostly make it again."""
        if not self.options.deleted:
            return
        topic = full(self.chance.choice(self.options.deleted))
        await self.recorded.delete_topic(topic)
        if self.part.likely(0.8):
            await self.create_topic(topic)

    async def create_topic(self, topic: str | None = None) -> None:
        """Make a topic and its subscriptions, unless they are there."""
        if topic is None:
            if not self.options.deleted:
                return
            topic = full(self.chance.choice(self.options.deleted))
        await self.recorded.create_topic(topic, self.options.full_topics()[topic])
        for one in self.options.subscriptions:
            if full(one.topic) == topic:
                await self.recorded.subscribe(topic, one.name)

    async def compact(self) -> None:
        """Keep the last message of each key."""
        if self.options.compacted:
            topic = full(self.chance.choice(self.options.compacted))
            await self.recorded.compact(topic, self.chance.choice(self.options.compaction_orders))

    async def read_compacted(self) -> None:
        """Read a topic as it was compacted, to its end."""
        if self.options.compacted:
            await self.recorded.read_compacted(full(self.chance.choice(self.options.compacted)))

    async def send_null(self) -> None:
        """Let a key be deleted."""
        if self.options.compacted:
            producer = await self.recorded.producer(full(self.chance.choice(self.options.compacted)))
            await producer.send_null(self.recorded.unique(), key=self.key())

"""Actions that change topics and subscriptions while others use them."""

from __future__ import annotations

from txnframework.model.names import topic_of
from txnframework_simulation.workloads.actions.base import ActorBase, SubscriptionOptions, full


class Reshaping(ActorBase):
    """Actions that change topics and subscriptions in use."""

    async def split(self) -> None:
        """Split a segment, unless there are many."""
        topic = self._scalable()
        if topic is None:
            return
        active = (await self.recorded.client.layout(topic)).active()
        wide = [one for one in active if one.end > one.start]
        if wide and len(active) < self.options.segments_max:
            await self.recorded.split(topic, self.chance.choice(wide).id)

    async def merge(self) -> None:
        """Merge two neighbours."""
        topic = self._scalable()
        if topic is None:
            return
        active = sorted((await self.recorded.client.layout(topic)).active(), key=lambda one: one.start)
        if len(active) > 1:
            first = self.chance.randrange(len(active) - 1)
            await self.recorded.merge(topic, active[first].id, active[first + 1].id)

    async def migrate(self) -> None:
        """Migrate a topic to another family, or now and then withdraw its migration."""
        topic = self.chance.choice(self.migrating)
        if self.context.likely(0.2):
            await self.recorded.withdraw_migration(topic)
        else:
            await self.recorded.migrate(topic, self.chance.choice((0, 1_000)))

    async def seek(self) -> None:
        """Move a subscription: to the beginning, the end, or a message that an actor of this process has seen."""
        chosen = self._movable()
        if chosen is None:
            return
        topic = full(chosen.topic)
        seen = [one for one in self.shared.messages if str(topic_of(one.segment)) == topic]
        if seen and self.context.likely(0.6):
            await self.recorded.seek(topic, chosen.name, self.chance.choice(seen))
        else:
            await self.recorded.seek(topic, chosen.name, self.chance.choice(("earliest", "latest")))

    async def subscribe_again(self) -> None:
        """Delete a subscription and create it again."""
        chosen = self._movable()
        if chosen is None:
            return
        topic = full(chosen.topic)
        await self.recorded.unsubscribe(topic, chosen.name)
        await self.recorded.subscribe(topic, chosen.name, self.chance.choice(("earliest", "latest")))

    async def trim(self) -> None:
        """Run the background work once: sweep, trim and collect."""
        await self.recorded.trim(self.topic())

    def _movable(self) -> SubscriptionOptions | None:
        found = [one for one in self.options.subscriptions if one.moved]
        return self.chance.choice(found) if found else None

    def _scalable(self) -> str | None:
        topics = self.domains.get("segment")
        return self.chance.choice(topics) if topics else None


ORDERS = ("position", "commit")


class Removing(ActorBase):
    """Actions that delete or compact stored messages."""

    async def delete_topic(self) -> None:
        """Delete a topic that others use, and usually create it again."""
        if not self.options.deleted:
            return
        topic = full(self.chance.choice(self.options.deleted))
        await self.recorded.delete_topic(topic)
        if self.context.likely(0.8):
            await self.create_topic(topic)

    async def create_topic(self, topic: str | None = None) -> None:
        """Create a topic and its subscriptions if they do not exist."""
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
        """Read the compacted messages of a topic, and all later ones."""
        if self.options.compacted:
            await self.recorded.read_compacted(full(self.chance.choice(self.options.compacted)))

    async def send_null(self) -> None:
        """Send a null, which deletes its key."""
        if self.options.compacted:
            producer = await self.recorded.producer(full(self.chance.choice(self.options.compacted)))
            await producer.send_null(self.recorded.unique(), key=self.key())

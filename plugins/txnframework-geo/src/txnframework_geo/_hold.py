"""The subscription of the source: it holds back trimming of what is not copied, and its backlog is the lag."""

from __future__ import annotations

from txnframework.broker import cumulative_ack
from txnframework.client import Client
from txnframework.errors import InvalidInput
from txnframework.model.names import TopicName
from txnframework.model.positions import Position
from txnframework_geo._progress import Progress
from txnframework_geo._segments import SourceTopics, segments_of


class Hold:
    """The subscriptions of this name on the topics of the source. No process consumes from them."""

    def __init__(self, client: Client, topics: SourceTopics, name: str) -> None:
        self._client = client
        self._topics = topics
        self._name = name
        self._released: dict[str, Position] = {}

    async def create(self) -> None:
        """Create the subscriptions, at the first stored messages, unless they exist."""
        self._released.clear()  # a subscription that was deleted meanwhile begins again
        for topic in await self._topics.names():
            await self._client.subscribe(topic, self._name, start="earliest")

    async def beginning(self, progress_topic: TopicName) -> tuple[dict[str, int], dict[str, Position]]:
        """
        Return the lives of the topics, and the positions before the first stored messages.

        ``progress_topic``: that of the target, which has no progress.

        :raises InvalidInput: the subscription has moved, so a replication of this name has run before.
        """
        layouts = await self._topics.layouts()
        starts = {}
        for layout in layouts:
            for name in segments_of(layout):
                opened = await self._topics.open(layout, name)
                subscribed = await self._client.host.subscription(str(layout.topic), self._name, name)
                (first,) = await opened.ledger.ledgers(-1, 1)
                starts[name] = Position(first.ledger_id, -1)
                if (await subscribed.cursor.load()).mark_delete > starts[name]:
                    raise InvalidInput(
                        f"the target has lost the progress of this replication, which has copied some of {layout.topic}"
                        " before: restore the target; or, to begin anew, delete subscription"
                        f" {self._name} in the source, {progress_topic} in the target, and the copies"
                    )
        return self._topics.lives(layouts), starts

    async def release(self, progress: Progress) -> None:
        """
        Acknowledge what the target has.

        Acknowledgments are united, so a process that was paused and repeats an old one moves nothing back.
        """
        for layout in await self._topics.layouts():
            for name in segments_of(layout):
                end = progress.held_from(name)
                if end.entry_id < 0 or self._released.get(name) == end:
                    continue
                subscribed = await self._client.host.subscription(str(layout.topic), self._name, name)
                incarnation = (await subscribed.cursor.load()).incarnation
                await subscribed.cursor.apply(incarnation, (cumulative_ack(end, 1),), None)
                self._released[name] = end

    async def lag(self) -> tuple[int, int]:
        """
        Return how many messages the target does not have, and for how many ms the oldest of them has been stored.

        Messages of open transactions are not counted. What was copied before a late message of its segment is counted.
        """
        backlog = self._client.host.backlog
        layouts = [await self._client.layout(topic) for topic in await self._topics.names()]
        found = [await backlog.counts(layout, self._name) for layout in layouts]
        # Messages of aborted transactions may be counted, and have no age.
        oldest_ms = min((one.oldest_sent_ms for one in found if one.oldest_sent_ms is not None), default=None)
        if oldest_ms is None:
            return 0, 0
        messages = sum(one.messages for one in found)
        return messages, max(0, self._client.host.environment.now_ms() - oldest_ms)

    async def backlog(self) -> int:
        """Return how many messages the target does not have, with those that it has behind a late one."""
        return sum([(await self._client.lag(topic, self._name)).messages for topic in await self._topics.names()])

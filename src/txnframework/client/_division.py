"""The segments of a consumer's topics that its process dispatches, where several processes share a subscription."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack

from txnframework.broker import Host, SubscriptionShare, finished_at
from txnframework.client._feed import ConsumerOptions
from txnframework.errors import NotFound
from txnframework.model.names import TopicName


class Division:
    """
    Decides which segments a consumer takes and gives up, by the leases of all processes that share the subscription.

    Every process decides alike: see ``divide``. ``changed`` is called whenever the leases have changed. Until this
    process knows the leases, and while it is not registered, nothing is taken and nothing is given up.
    """

    def __init__(
        self, host: Host, options: ConsumerOptions, topics: tuple[TopicName, ...], changed: Callable[[], None]
    ) -> None:
        self._host = host
        self._options = options
        self._topics = topics
        self._changed = changed
        self._shares: dict[TopicName, SubscriptionShare] = {}
        self._divided: dict[TopicName, dict[str, str]] = {}

    async def join(self) -> None:
        """Register this process for each topic; if it fails, call ``leave``."""
        name = self._options.name if self._options.named else None
        for topic in self._topics:
            self._shares[topic] = await self._host.shares.join(topic, self._options.subscription, name, self._changed)

    async def leave(self) -> None:
        """Leave all topics; a second call is allowed."""
        self._shares.clear()
        async with AsyncExitStack() as last_first:
            for topic in self._topics:
                last_first.push_async_callback(
                    self._host.shares.leave, topic, self._options.subscription, self._changed
                )

    def divide(self, topic: TopicName, segments: Iterable[str]) -> None:
        """Divide these segments: those that are not finished, and whose parents are finished if order is kept."""
        share = self._shares.get(topic)
        if share is not None and share.view is not None:
            own = self._host.dispatches.segments_of(self._options.subscription)
            self._divided[topic] = share.view.divided(segments, own)
        else:
            self._divided.pop(topic, None)

    def is_dispatched(self, topic: TopicName, segment: str) -> bool:
        """Return whether any process is known to dispatch a segment."""
        share = self._shares.get(topic)
        return share is not None and share.view is not None and segment in share.view.holders

    def takes(self, topic: TopicName, segment: str) -> bool:
        """Return whether this process is to dispatch a segment, and may, because no other process does."""
        share = self._shares.get(topic)
        if share is None or share.view is None or topic not in self._divided:
            return False
        view = share.view
        return self._divided[topic].get(segment, view.session) == view.session and view.is_free(segment)

    def gives_up(self, topic: TopicName, segment: str) -> bool:
        """Return whether another process is to dispatch a segment that this process dispatches."""
        share = self._shares.get(topic)
        if share is None or share.view is None or topic not in self._divided:
            return False
        return self._divided[topic].get(segment, share.view.session) != share.view.session

    async def finished_at(self, topic: TopicName, segment: str) -> int | None:
        """Return the incarnation of the cursor under which a segment is finished; None: it is not finished."""
        try:
            opened = await self._host.segment(segment)
            subscribed = await self._host.subscription(str(topic), self._options.subscription, segment)
            return await finished_at(opened, subscribed)
        except NotFound:
            return None  # deleted, which an attachment will show

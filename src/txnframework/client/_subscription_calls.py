"""Client operations on subscriptions: create, delete, seek and inspect, independent of their consumers."""

from __future__ import annotations

from functools import partial

from txnframework.broker import Lag, Start, ack_status
from txnframework.client._arguments import whole_number
from txnframework.client._calls import Calls, Name, check_subscription
from txnframework.client._messages import Message, MessageID, check_message_id, received
from txnframework.client._seeking import partly_moved, sought
from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.model.acks import AckStatus
from txnframework.model.names import TopicName, topic_of


class SubscriptionCalls(Calls):
    """The subscription operations of ``Client``."""

    async def subscribe(self, topic: Name, subscription: str, *, start: Start = "latest") -> None:
        """
        Create a subscription without joining it; an existing one is not changed.

        If the caller is cancelled, the subscription is still created.

        :param start: the position of the new subscription, as for ``consumer``.
        :raises TopicNotFound: the topic does not exist.
        """
        named = self._topic(topic)
        check_subscription(subscription, start)
        await self._finish(
            named, lambda: self._retrying.run(lambda: self.host.topics.subscribe(named, subscription, start))
        )

    async def unsubscribe(self, topic: Name, subscription: str) -> None:
        """
        Delete a subscription together with its acknowledgments.

        Its present consumers get SubscriptionNotFound, at the latest when they acknowledge. If the caller is cancelled,
        the subscription is still deleted.

        :raises SubscriptionNotFound: the subscription does not exist.
        :raises OutcomeUnknown: the subscription may have been deleted.
        """
        named = self._topic(topic)
        check_subscription(subscription)
        await self._finish(named, lambda: self._unsubscribe(named, subscription))

    async def _unsubscribe(self, named: TopicName, subscription: str) -> None:
        # This deletes one incarnation of the subscription. After an unknown outcome, a retry could delete a
        # subscription that was created in the meantime.
        await self._retrying.run(lambda: self.host.topics.unlist(named, subscription), _raise_unknown)
        try:
            await self._retrying.run(lambda: self.host.topics.tombstone(named, subscription))
        except Unavailable as error:
            raise OutcomeUnknown(
                f"subscription {subscription} was given up, and not all that it left: {error}"
            ) from error

    async def seek(self, topic: Name, subscription: str, to: MessageID | int | Start) -> None:
        """
        Move a subscription, also while it has consumers, as ``Consumer.seek`` does.

        If the caller is cancelled, the subscription is still moved.

        :param to: the target, as for ``Consumer.seek``.
        :raises SubscriptionNotFound: the subscription does not exist.
        :raises TopicNotFound: the topic does not exist.
        :raises OutcomeUnknown: the subscription may have been moved, on some or all of its segments.
        """
        named = self._topic(topic)
        check_subscription(subscription)
        await self._finish(named, lambda: self._seek(named, subscription, to))

    async def _seek(self, topic: TopicName, subscription: str, to: MessageID | int | Start) -> None:
        layout = await self.host.topics.finish_changes(topic)
        segments = tuple(str(layout.name_of(segment.id)) for segment in layout.in_order())
        moved = False
        for segment, position in (await sought(self.host, (layout,), segments, to)).items():
            try:
                subscribed = await self.host.subscription(str(layout.topic), subscription, segment)
                await self._retrying.run(partial(subscribed.cursor.seek, position))
            except Unavailable as error:
                if not moved:
                    raise
                raise partly_moved(subscription, segment) from error
            moved = True

    async def lag(self, topic: Name, subscription: str) -> Lag:
        """
        Return how many readable messages a subscription has not acknowledged, by segment, without reading them.

        Messages of open transactions are not counted. Messages of aborted transactions may be counted; ``exact`` is
        then False.

        :raises SubscriptionNotFound: the subscription does not exist.
        :raises TopicNotFound: the topic does not exist.
        """
        name = self._topic(topic)
        check_subscription(subscription)
        layout = await self.host.topics.layout(name)
        return await self._retrying.run(lambda: self.host.backlog.lag(layout, subscription))

    async def peek(self, topic: Name, subscription: str, messages_max: int = 1) -> tuple[Message, ...]:
        """
        Return the first messages that a subscription has not acknowledged, without delivering them.

        Segments come after the segments that they descend from, each in its own order. A message that an open
        transaction has acknowledged is included, because the transaction may abort. Messages that an open or aborted
        transaction wrote are not included.

        :raises SubscriptionNotFound: the subscription does not exist.
        :raises TopicNotFound: the topic does not exist.
        """
        whole_number(messages_max, "messages_max", 1)
        name = self._topic(topic)
        check_subscription(subscription)
        layout = await self.host.topics.layout(name)
        peeked = await self._retrying.run(lambda: self.host.backlog.peek(layout, subscription, messages_max))
        return tuple(received(str(name), one.segment, one.held, 0, one.incarnation) for one in peeked)

    async def ack_status(self, subscription: str, message: MessageID) -> AckStatus:
        """
        Return a message's state in a subscription: acknowledged, pending in an open transaction, or neither.

        :raises SubscriptionNotFound: the subscription does not exist.
        """
        check_subscription(subscription)
        topic = str(topic_of(check_message_id(message).segment))
        subscribed = await self.host.subscription(topic, subscription, message.segment)
        return await self._retrying.run(lambda: ack_status(subscribed, message.position))


def _raise_unknown(error: Exception) -> None:
    """Raise an unknown outcome instead of retrying."""
    if isinstance(error, OutcomeUnknown):
        raise error

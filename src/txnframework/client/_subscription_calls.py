"""Subscriptions as whole things: making, moving, measuring and giving them up, whoever consumes from them."""

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
    """What a client can be asked of subscriptions, without taking part in them."""

    async def subscribe(self, topic: Name, subscription: str, *, start: Start = "latest") -> None:
        """
        Make a subscription without joining it; one that is there stays as it is. Cancelled: it is made all the same.

        :param start: as for ``consumer``.
        :raises TopicNotFound: there is no such topic.
        """
        named = self._topic(topic)
        check_subscription(subscription, start)
        await self._finish(
            named, lambda: self._retrying.run(lambda: self.host.topics.subscribe(named, subscription, start))
        )

    async def unsubscribe(self, topic: Name, subscription: str) -> None:
        """
        Give a subscription up, with everything that it acknowledged.

        Whoever consumes from it meanwhile gets SubscriptionNotFound, at the latest when acknowledging. Cancelled: it is
        given up all the same.

        :raises SubscriptionNotFound: there is no such subscription.
        :raises OutcomeUnknown: it may have been given up.
        """
        named = self._topic(topic)
        check_subscription(subscription)
        await self._finish(named, lambda: self._unsubscribe(named, subscription))

    async def _unsubscribe(self, named: TopicName, subscription: str) -> None:
        # One life ends by it: where nobody knows whether it has, another try might end what somebody began since.
        await self._retrying.run(lambda: self.host.topics.strike_off(named, subscription), _raise_unknown)
        try:
            await self._retrying.run(lambda: self.host.topics.bury(named, subscription))
        except Unavailable as error:
            raise OutcomeUnknown(
                f"subscription {subscription} was given up, and not all that it left: {error}"
            ) from error

    async def seek(self, topic: Name, subscription: str, to: MessageID | int | Start) -> None:
        """
        Move a subscription, whoever consumes from it, as ``Consumer.seek`` does. Cancelled: it is moved all the same.

        :raises SubscriptionNotFound: there is no such subscription.
        :raises TopicNotFound: there is no such topic.
        :raises OutcomeUnknown: it may have been moved, on all of its segments or on some.
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
        Return how many messages a subscription may read and has not acknowledged, by segment, without reading them.

        Messages of open transactions are not counted; those of aborted ones may be, and ``exact`` is then False.

        :raises SubscriptionNotFound: there is no such subscription.
        :raises TopicNotFound: there is no such topic.
        """
        name = self._topic(topic)
        check_subscription(subscription)
        layout = await self.host.topics.layout(name)
        return await self._retrying.run(lambda: self.host.backlog.lag(layout, subscription))

    async def peek(self, topic: Name, subscription: str, messages_max: int = 1) -> tuple[Message, ...]:
        """
        Return the first messages that a subscription has not acknowledged, without delivering them.

        Segments come after those that they descend from, each in its order. What an open transaction has acknowledged
        is shown, since it may come back; what one wrote, or an aborted one, is not.

        :raises SubscriptionNotFound: there is no such subscription.
        :raises TopicNotFound: there is no such topic.
        """
        whole_number(messages_max, "messages_max", 1)
        name = self._topic(topic)
        check_subscription(subscription)
        layout = await self.host.topics.layout(name)
        peeked = await self._retrying.run(lambda: self.host.backlog.peek(layout, subscription, messages_max))
        return tuple(received(str(name), one.segment, one.held, 0, one.incarnation) for one in peeked)

    async def ack_status(self, subscription: str, message: MessageID) -> AckStatus:
        """
        Return what became of a message for a subscription: done, held by which open transaction, or neither.

        :raises SubscriptionNotFound: there is no such subscription.
        """
        check_subscription(subscription)
        topic = str(topic_of(check_message_id(message).segment))
        subscribed = await self.host.subscription(topic, subscription, message.segment)
        return await self._retrying.run(lambda: ack_status(subscribed, message.position))


def _raise_unknown(error: Exception) -> None:
    """Try nothing again whose outcome is not known."""
    if isinstance(error, OutcomeUnknown):
        raise error

"""Client operations on topics and subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from txnframework.broker import (
    Compactor,
    Host,
    Lag,
    LatestByKey,
    Order,
    Start,
    ack_status,
)
from txnframework.client._arguments import whole_number
from txnframework.client._base import ClientOperations, Name, check_subscription, name_from
from txnframework.client._messages import Message, MessageID, check_message_id, received
from txnframework.client._seek_positions import partly_moved, sought
from txnframework.errors import (
    InvalidInput,
    InvalidName,
    OutcomeUnknown,
    TopicExists,
    TopicNotFound,
    Unavailable,
    excerpt,
)
from txnframework.model.acks import AckStatus
from txnframework.model.layout import HASH_MAX, Layout
from txnframework.model.names import PERSISTENT, SEGMENT, TopicName, check_chosen_topic, check_namespace, topic_of


async def create_topic(host: Host, topic: TopicName, segments: int = 1, *, exist_ok: bool = False) -> None:
    """
    Create a topic whose name was checked, or derives from an existing one (``model.names.check_chosen_topic``).

    Everything else is that of ``Client.create_topic``.
    """
    try:
        await host.steps.finish(
            lambda: host.topics.create(topic, segments), (str(topic), f"{topic.tenant}/{topic.namespace}")
        )
    except TopicExists:
        if not exist_ok:
            raise


class TopicOperations(ClientOperations):
    """The topic operations of ``Client``, without sending and receiving."""

    async def create_topic(self, topic: Name, *, segments: int = 1, exist_ok: bool = False) -> None:
        """
        Create a topic with this many segments; a ``persistent://`` topic has one.

        If the caller is cancelled, the topic is still created.

        :param exist_ok: do not raise if the topic exists; it is not changed.
        :raises InvalidInput: the topic does not exist, and its name begins with ``__``, contains a space or is not
            valid otherwise (``model.names``), or the topic cannot have this many segments.
        :raises TopicExists: the topic exists, and ``exist_ok`` is False.
        """
        named = self._topic(topic)
        whole_number(segments, "segments", 1, HASH_MAX + 1)
        try:
            check_chosen_topic(named)
        except InvalidName:
            if not await self._exists(named):
                raise
        await create_topic(self.host, named, segments, exist_ok=exist_ok)

    async def _exists(self, topic: TopicName) -> bool:
        """Return whether a topic exists; an earlier release may have accepted its name."""
        try:
            await self.host.topics.layout(topic)
        except TopicNotFound:
            return False
        return True

    async def undecided(self, topic: Name) -> dict[str, int]:
        """
        Return, by segment, how many messages cannot be read yet because an open transaction wrote the first of them.

        Aborted messages after that one are counted too, because they have not been checked yet.

        :raises TopicNotFound: the topic does not exist.
        """
        layout = await self.host.topics.layout(self._topic(topic))
        return await self._retry.run(lambda: self.host.backlog.undecided(layout))

    async def maintain(self) -> None:
        """
        Do the background work of clients now, for programs that run only briefly.

        First, sweep a bounded number of transactions of each family. Overdue transactions, and those whose process
        died, are aborted; ended ones are settled; settled ones are forgotten. Then trim all topics, collect their abort
        records and finish their deletions, unless another process is doing so.
        """
        await self.host.coordinators()  # only opened coordinators are swept
        await self.host.sweeps.sweep()
        await self.host.maintenance.all_topics()

    async def delete_topic(self, topic: Name, *, force: bool = False) -> None:
        """
        Delete a topic with its messages, its subscriptions and its transaction records.

        Open transactions that took part in the topic can still be committed; their operations elsewhere count.
        Producers and consumers of the topic get TopicNotFound. A topic that is created later under this name is
        independent of the deleted one.

        If the caller is cancelled, the topic is still deleted.

        :param force: delete the topic even if it is in use.
        :raises TopicInUse: the topic has subscriptions, or open transactions took part in it; nothing was changed.
        :raises TopicNotFound: the topic does not exist.
        :raises OutcomeUnknown: the topic is deleted, or may be, and a part of it may be left. Repeat the call: it
            removes the rest, or raises TopicNotFound if nothing is left.
        """
        name = self._topic(topic)
        await self._finish(name, lambda: self._delete(name, force))

    async def _delete(self, name: TopicName, force: bool) -> None:
        tried = False
        # Retries must not delete a topic that is created under this name in the meantime.
        life = await self._retry.run(lambda: self.host.topics.deletion.life(name))

        async def delete() -> None:
            nonlocal tried
            try:
                await self.host.topics.delete(name, force=force, life=life)
            except TopicNotFound as gone:
                if not (tried and gone.deleted):  # else an earlier attempt decided it, and another process finished it
                    raise
            finally:
                tried = True

        await self._retry.run(delete)

    async def delete_namespace(self, namespace: str, *, force: bool = False) -> None:
        """
        Delete every topic of a namespace (``tenant/namespace``), after checking that none is in use.

        After a failure, some topics may be deleted already; repeat the call. If the caller is cancelled, the topics are
        still deleted. Errors are those of ``delete_topic``.
        """
        tenant, name = check_namespace(namespace)
        delete = partial(self.host.topics.delete_all, tenant, name, force=force)
        await self.host.steps.finish(lambda: self._retry.run(delete), (namespace,))

    async def layout(self, topic: Name) -> Layout:
        """
        Return a topic's segments: ``active()`` returns those that accept messages, ``name_of(id)`` a full name.

        :raises TopicNotFound: the topic does not exist.
        """
        return await self.host.topics.layout(self._topic(topic))

    async def transaction_domain(self, topic: Name) -> str:
        """
        Return the ``domain`` with which a transaction on a topic begins: ``segment`` or ``persistent``.

        A program that names its topic ``persistent://`` follows a migration of the topic if it asks for each
        transaction: ``client.transaction(domain=await client.transaction_domain(topic))``.
        """
        current = await self.host.topics.current_name(name_from(topic))
        return PERSISTENT if current.topic.domain == PERSISTENT else SEGMENT

    async def split(self, topic: Name, segment_id: int) -> tuple[int, int]:
        """
        Split an active segment in the middle of its hash range, and return the ids of the two children.

        If the caller is cancelled, the segment is still split.

        :raises LayoutConflict: the segment is not active or has a single hash value, or the topic is persistent.
        :raises OutcomeUnknown: the split is planned, or may be; any process that reads the layout carries it out.
        """
        named = self._topic(topic)
        whole_number(segment_id, "segment_id", 0)
        low, high = await self._finish(named, lambda: self.host.topics.split(named, segment_id))
        return low, high

    async def merge(self, topic: Name, segment_id: int, other_id: int) -> int:
        """
        Merge two active neighbours, and return the id of the child.

        If the caller is cancelled, the segments are still merged.

        :raises LayoutConflict: a segment is not active, the two are not neighbours, or the topic is persistent.
        :raises OutcomeUnknown: the merge is planned, or may be; any process that reads the layout carries it out.
        """
        for given, what in ((segment_id, "segment_id"), (other_id, "other_id")):
            whole_number(given, what, 0)
        named = self._topic(topic)
        (child,) = await self._finish(named, lambda: self.host.topics.merge(named, segment_id, other_id))
        return child

    async def compact(
        self, topic: Name, compactor: Callable[[], Compactor] = LatestByKey, *, order: Order = "position"
    ) -> None:
        """
        Write a compacted copy of a topic for readers with ``compacted=True``; the topic itself is not changed.

        The messages that are committed at the time of the call are considered, aborted ones never. A repeated
        compaction in the order of positions continues from the previous compaction in that order. Each segment is
        compacted on its own. A key that moved to another segment by a split is kept in both segments; the later message
        comes last.

        If the caller is cancelled, the compaction stops and the previous copy remains. The next compaction removes the
        incomplete one.

        :param compactor: creates the object that decides what one segment keeps. Default: keep the last message of each
            key; a null deletes its key.
        :param order: ``position`` or ``commit``. ``commit`` considers all messages anew each time, and needs the
            outcomes of their transactions (``transactions.retention_ms``).
        :raises CommitOrderUnknown: the outcomes are no longer kept.
        :raises CompactedInOtherOrder: the topic was compacted in the order of commits and has been trimmed since.
        :raises Fenced: another process started a later compaction of the topic.
        :raises TopicNotFound: the topic does not exist.
        """
        if order not in ("position", "commit"):
            raise InvalidInput(f"messages are compacted in order of 'position' or 'commit', not {excerpt(order)}")
        layout = await self.host.topics.layout(self._topic(topic))
        await self._retry.run(lambda: self.host.compaction.compact(layout, compactor, order))


class SubscriptionOperations(ClientOperations):
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
            named, lambda: self._retry.run(lambda: self.host.topics.subscribe(named, subscription, start))
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
        await self._retry.run(lambda: self.host.topics.unlist(named, subscription), again=_raise_unknown)
        try:
            await self._retry.run(lambda: self.host.topics.tombstone(named, subscription))
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
                await self._retry.run(partial(subscribed.cursor.seek, position))
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
        return await self._retry.run(lambda: self.host.backlog.lag(layout, subscription))

    async def dispatchers(self, topic: Name, subscription: str) -> dict[str, str]:
        """
        Return, by segment, the process that dispatches a subscription's messages now; other segments are left out.

        A process is named as in ``on CLIENT@HOST:PID in SESSION as TYPE``. If its consumer has a name of its own,
        the name comes first: ``worker-1 on CLIENT@HOST:PID in SESSION as TYPE``.

        :raises TopicNotFound: the topic does not exist.
        """
        name = self._topic(topic)
        check_subscription(subscription)
        layout = await self.host.topics.layout(name)
        return await self._retry.run(lambda: self.host.inspection.holders(layout, subscription))

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
        peeked = await self._retry.run(lambda: self.host.backlog.peek(layout, subscription, messages_max))
        return tuple(received(str(name), one.segment, subscription, one.held, 0, one.incarnation) for one in peeked)

    async def ack_status(self, subscription: str, message: MessageID) -> AckStatus:
        """
        Return a message's state in a subscription: acknowledged, pending in an open transaction, or neither.

        :raises SubscriptionNotFound: the subscription does not exist.
        """
        check_subscription(subscription)
        named = topic_of(check_message_id(message).segment)
        topic = str(await self.host.topics.current_name(named))
        subscribed = await self.host.subscription(topic, subscription, message.segment)
        return await self._retry.run(lambda: ack_status(subscribed, message.position))


def _raise_unknown(error: Exception) -> None:
    """Raise an unknown outcome instead of retrying."""
    if isinstance(error, OutcomeUnknown):
        raise error

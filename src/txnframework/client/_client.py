"""Asyncio facade over a host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from txnframework.broker import Start
from txnframework.client._admin import SubscriptionOperations, TopicOperations
from txnframework.client._arguments import INT64_MAX, whole_number
from txnframework.client._base import Name, check_subscription, name_from
from txnframework.client._consumer import Consumer
from txnframework.client._content_types import T
from txnframework.client._dead_letters import DeadLetter
from txnframework.client._health import HealthOperations
from txnframework.client._inspection import InspectionOperations
from txnframework.client._messages import MessageID
from txnframework.client._openings import opens
from txnframework.client._producer import Producer, open_producer
from txnframework.client._reader import Reader, open_reader
from txnframework.client._sends.encoded_values import require_serializer
from txnframework.client._snapshots import Snapshot, take_snapshot
from txnframework.client._subscription.options import ConsumerOptions
from txnframework.client._subscription.segments import Targets
from txnframework.client._topic_ends import EndOperations
from txnframework.client._transaction_admin import TransactionOperations
from txnframework.errors import InvalidInput, InvalidName, TopicNotFound, excerpt
from txnframework.model.dispatch import DEFAULT_TYPE, TypeName
from txnframework.model.names import TopicName, check_new_name, check_new_topic
from txnframework.model.reads import Isolation

if TYPE_CHECKING:
    from txnframework.serializers import Serializer


class Client(
    TransactionOperations,
    SubscriptionOperations,
    TopicOperations,
    EndOperations,
    InspectionOperations,
    HealthOperations,
):
    """
    Creates transactions, producers, consumers and readers; returned by ``txnframework.open``.

    A client belongs to the event loop in which it was opened. Closing the client waits for the settling that is in
    progress. Close its producers and consumers first, each by its own ``async with``.
    """

    def __repr__(self) -> str:
        return f"<Client of {self._host.stores}{', closed' if self._host.closed else ''}>"

    @opens
    async def producer(
        self,
        topic: Name,
        *,
        name: str | None = None,
        serializer: Serializer[T] | None = None,
        stop_after_failure: bool = False,
    ) -> Producer[T]:
        """
        Open a producer for a topic or for one segment. Opening writes nothing to the stores.

        :param name: identifies the producer, so that repeated sends are recognised, also when another process repeats
            them. Default: a new unique name. Two producers may use one name at the same time only if the caller chooses
            the sequence ids.
        :param serializer: encodes what is sent (``txnframework.serializers``); default: values are bytes.
        :param stop_after_failure: after a message outside of transactions was not stored, or its outcome is unknown, as
            after a cancelled call, refuse all later ones with Closed. Then the failed message can be sent again before
            them, by another producer of this name. Default: later messages are sent, and a repeated message is stored
            behind them.
        :raises InvalidInput: the name is not a valid producer name (``model.names.check_new_name``).
        :raises TopicNotFound: the topic does not exist.
        """
        target = name_from(topic)
        if name is not None:
            check_new_name(name, "producer name")
        require_serializer(serializer)
        return await open_producer(self.host, self._retry, target, name, serializer, stop_after_failure)

    @opens
    async def consumer(
        self,
        topics: Name | Iterable[Name],
        subscription: str,
        *,
        type: TypeName = DEFAULT_TYPE,
        start: Start = "latest",
        name: str | None = None,
        priority: int = 0,
        stand_by: bool | None = None,
        balance: bool | None = None,
        dead_letter: DeadLetter | None = None,
        serializer: Serializer[T] | None = None,
    ) -> Consumer[T]:
        """
        Join a subscription of one or several topics or segments; create the subscription if it does not exist.

        A consumer of a segment follows it: after a split or merge, the consumer continues with the child segments.

        For each segment, one process at a time dispatches the messages of a subscription. The processes with consumers
        of a subscription divide its topic's segments evenly among them, unless the type allows one consumer only. They
        divide them anew when a process comes or goes, and when the topic is split or merged. A consumer may receive
        nothing while there are more processes than segments. When its process dies, its segments become available
        after the session has expired.

        :param start: the position of a new subscription: ``earliest`` is before the first stored message, ``latest`` is
            after the last message that can be read now.
        :param name: the name of this consumer. A consumer that is opened under a name immediately takes over from an
            earlier consumer of the same name in another process. A restarted program therefore does not wait for its
            old session to expire. The earlier consumer, if alive, waits for its turn.
        :param priority: lower numbers come first among the consumers of one process, if the subscription type uses
            priorities.
        :param type: the subscription type. Its dispatcher (``IDispatcher``) declares what is kept in order and whether
            the consumers stand by. Type checkers know the standard types only; write another one, or a name that is
            known only at run time, as ``model.OtherType("relay")``.
        :param stand_by: whether to wait instead of raising when another process dispatches, or when the type allows one
            consumer only and this process already has it. A waiting consumer takes over when the other one has left or
            died. Default: as the type declares. A consumer loses its own lease if the store is unavailable for long. It
            then takes the lease again or waits for its turn; with False its ``receive`` raises LeaseLost. A process
            that takes over knows how often messages were delivered before only with ``dead_letter``.
        :param balance: whether this process takes its part of the segments, and gives up segments that are the part of
            another process. Before it gives up a segment, the consumer hands out nothing more of it. It waits up to
            ``subscriptions.handover_timeout_ms`` until the received messages are acknowledged. The others are
            redelivered by the next process. With False the consumer takes every segment that it can get, and keeps it.
            The same is true for types that allow one consumer only, with ``stand_by=False``, and for a consumer of
            single segments. Default: ``subscriptions.balance``.
        :param dead_letter: where to move messages that would be redelivered too often. Default: such messages are
            redelivered without limit.
        :param serializer: decodes ``Message.content`` (``txnframework.serializers``); default: contents are bytes.
        :raises Conflict: other consumers use the subscription with another type. After these have left, the type may
            change; a process that died has left at the end of its session.
        :raises ConsumerBusy: the type allows one consumer only, and the subscription already has one.
        :raises InvalidInput: a subscription or consumer name is not valid (``model.names.check_new_name``).
        :raises SubscriptionOwnedElsewhere: another process dispatches the subscription.
        :raises TopicNotFound: a topic does not exist.
        """
        check_subscription(subscription, start)
        kind = self.host.registry.subscription_type(type)
        if name is not None:
            check_new_name(name, "consumer name")
        whole_number(priority, "priority", -INT64_MAX)
        require_serializer(serializer)
        names = (topics,) if isinstance(topics, Name) else _several(topics)
        targets = tuple(dict.fromkeys(name_from(one) for one in names))
        if not targets:
            raise InvalidInput("a consumer needs at least one topic")
        if dead_letter is not None:
            if not isinstance(dead_letter, DeadLetter):
                raise InvalidInput(f"dead_letter is a rule such as DeadLetter(3), not {excerpt(dead_letter)}")
            for topic in dict.fromkeys(target.topic for target in targets):
                await self._require_possible(dead_letter.topic_for(topic, subscription))
        balances = self.host.config.subscriptions.balance if balance is None else balance
        whole = all(isinstance(target, TopicName) for target in targets)
        options = ConsumerOptions(
            subscription,
            kind,
            name or f"consumer-{self.host.environment.random_bits(64):016x}",
            priority,
            stand_by=kind.stands_by if stand_by is None else stand_by,
            retakes=stand_by is not False,
            named=name is not None,
            counts_durably=dead_letter is not None,
            shares=balances and kind.shares and whole and stand_by is not False,
        )
        return await self._open_consumer(
            targets, options, start, lambda now: Consumer[T](self.host, now, options, dead_letter, serializer)
        )

    @opens
    async def reader(
        self,
        topic: Name,
        *,
        start: MessageID | str = "earliest",
        follow: bool = False,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        compacted: bool = False,
        serializer: Serializer[T] | None = None,
    ) -> Reader[T]:
        """
        Open a reader of a topic or of one segment; with ``follow``, also of the segment's descendants.

        :param start: ``earliest``, ``latest``, or the id of the message after which to start. With an id, other
            segments are read from their first message.
        :param follow: continue with new messages instead of ending at the present end of the topic.
        :param isolation: ``read_committed`` or ``read_uncommitted``; under the latter, ``Message.committed`` may be
            False.
        :param compacted: for each compacted segment, read the compacted messages first, then the messages after them.
        :param serializer: decodes ``Message.content`` (``txnframework.serializers``); default: contents are bytes.
        :raises InvalidInput: ``start`` cannot be the id of a message of the topic, or an argument is invalid.
        :raises TopicNotFound: the topic does not exist.
        """
        require_serializer(serializer)
        target = name_from(topic)
        reader = Reader[T](self.host, target, start, follow, isolation, compacted, serializer=serializer)
        return await open_reader(self.host, reader)

    async def snapshot(self, *topics: Name) -> Snapshot:
        """
        Return a snapshot of several topics, which never shows a part of a transaction.

        A transaction is in the snapshot with all of its messages in these topics, or with none. It is in the snapshot
        if it had ended before the call and nothing holds its messages back: as for any reader, an open transaction
        holds back what was stored in a segment after its first message there. A transaction that ends during the call
        is in it or not. Of two transactions that end during the call, the later one may be in the snapshot without the
        earlier one. It reads what is stored after the readable end of each segment, and keeps only transaction ids.

        :raises EntryTrimmed: messages were trimmed meanwhile; take another snapshot.
        :raises InvalidInput: no topic was given, a segment was named, or a topic is read in the order of commits.
        :raises TopicNotFound: a topic does not exist.
        """
        targets = tuple(dict.fromkeys(name_from(topic) for topic in topics))
        names = tuple(target for target in targets if isinstance(target, TopicName))
        if not names or len(names) < len(targets):
            raise InvalidInput("a snapshot contains one or several whole topics")
        return await self._retry.run(partial(take_snapshot, self.host, names))

    async def _open_consumer(
        self, targets: Targets, options: ConsumerOptions, start: Start, new: Callable[[Targets], Consumer[T]]
    ) -> Consumer[T]:
        topics = tuple(dict.fromkeys(target.topic for target in targets))

        async def join() -> Consumer[T]:
            # A topic that has migrated is followed from the beginning.
            consumer = new(tuple(dict.fromkeys([await self.host.topics.current_name(one) for one in targets])))
            await consumer.join()
            await self.host.prepare_rows(str(targets[0].topic))
            return consumer

        async def subscribe_and_join() -> Consumer[T]:
            if len(topics) > 1:  # create no subscription if one of the topics does not exist
                for topic in topics:
                    await self._retry.run(partial(self.host.topics.layout, topic))
            for topic in topics:
                await self._retry.run(partial(self.host.topics.subscribe, topic, options.subscription, start))
            return await self._retry.run(join)

        return await self.host.steps.finish(subscribe_and_join, map(str, topics), undo=Consumer.close)

    async def _require_possible(self, target: TopicName) -> None:
        """Raise InvalidName unless the dead-letter topic exists or can be created."""
        try:
            check_new_topic(target)
        except InvalidName as error:
            try:
                await self.host.topics.layout(target)  # an earlier release may have created it
            except TopicNotFound:
                raise InvalidName(error.name, f"{error.reason}; name another topic for dead letters") from None


def _several(topics: object) -> tuple[Name, ...]:
    """Return the topics as a tuple, or raise InvalidInput."""
    if not isinstance(topics, Iterable) or isinstance(topics, bytes | Mapping):
        raise InvalidInput(f"a consumer reads topics by their names, not {excerpt(topics)}")
    return tuple(topics)

"""The asyncio client: one host's door."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from txnframework.broker import Start
from txnframework.client._arguments import INT64_MAX, whole_number
from txnframework.client._calls import Name, check_subscription, name_from
from txnframework.client._consumer import Consumer
from txnframework.client._dead_letters import DeadLetter, DeadLetters
from txnframework.client._messages import MessageID
from txnframework.client._producer import Producer
from txnframework.client._reader import Reader
from txnframework.client._subscription_calls import SubscriptionCalls
from txnframework.client._terms import Terms
from txnframework.client._topic_calls import TopicCalls
from txnframework.client._transaction_calls import TransactionCalls
from txnframework.errors import InvalidInput, InvalidName, TopicNotFound, excerpt
from txnframework.model.dispatching import DEFAULT_TYPE
from txnframework.model.names import SegmentName, TopicName, check_new_name, check_new_topic
from txnframework.model.reading import Isolation


class Client(TransactionCalls, SubscriptionCalls, TopicCalls):
    """
    What a program uses: transactions, producers, consumers and readers; made by ``txnframework.open``.

    It belongs to the event loop that it was opened in. Closing it waits for what is being settled; producers and
    consumers are best closed before, each in its ``async with``.
    """

    def __repr__(self) -> str:
        return f"<Client of {self._host.stores}{', closed' if self._host.closed else ''}>"

    async def producer(self, topic: Name, *, name: str | None = None) -> Producer:
        """
        Open a producer for a topic, or for one segment of it; writes nothing.

        :param name: under which sends are recognised when they are repeated, by another process too; default: a new
            one. A name that is used twice at a time is safe only with sequence ids that the caller chooses.
        :raises InvalidInput: no producer can have this name (``model.names.check_new_name``).
        :raises TopicNotFound: there is no such topic.
        """
        target = name_from(topic)
        if name is not None:
            check_new_name(name, "producer name")
        layout = await self.host.topics.finish_changes(target.topic)
        if isinstance(target, SegmentName):
            layout.segment_of(target)
        return Producer(self.host, self._retrying, target, layout, name)

    async def consumer(
        self,
        topics: Name | Iterable[Name],
        subscription: str,
        *,
        type: str = DEFAULT_TYPE,
        start: Start = "latest",
        name: str | None = None,
        priority: int = 0,
        stand_by: bool | None = None,
        dead_letter: DeadLetter | None = None,
    ) -> Consumer:
        """
        Join a subscription of one or several topics (or segments), making it if it is not there.

        A segment is followed: when it is split or merged, the consumer goes on with what it became.

        One process at a time hands out a subscription's messages of a segment. Processes that share a topic each take
        some of its segments (``layout`` names them); what a process had is free when its consumer closes, or a
        session's lifetime after it died.

        :param start: where a new subscription begins: at the ``earliest`` message that is there, or after the
            ``latest`` that may be read now.
        :param name: of this consumer. One that is opened under a name takes over at once from an earlier one of the
            same name in another process, as a restart does, without waiting for the end of that one's session; if that
            one lives, it waits for its turn.
        :param priority: lower numbers come first, among the consumers of one process, where the type minds it.
        :param type: how it is shared; what each type keeps in order, and whether its consumers stand by, is declared by
            its dispatcher (``IDispatcher``).
        :param stand_by: where another process dispatches, or the type takes one consumer only and has one here, wait
            until it has left or died and take over, instead of raising. Default: as the type declares.
            A consumer whose own lease was lost, because the store was away for long, takes it again or waits for its
            turn; with False its ``receive`` raises LeaseLost. A process that takes over does not know how often
            messages were delivered.
        :param dead_letter: where messages go that would be redelivered too often; without it, they come for ever.
        :raises ConsumerBusy: its type takes one consumer only, and it has one.
        :raises InvalidInput: no subscription or consumer can have this name (``model.names.check_new_name``).
        :raises SubscriptionOwnedElsewhere: another process dispatches it.
        :raises TopicNotFound: there is no such topic.
        """
        check_subscription(subscription, start)
        kind = self.host.registry.subscription_type(type)
        if name is not None:
            check_new_name(name, "consumer name")
        whole_number(priority, "priority", -INT64_MAX)
        names = (topics,) if isinstance(topics, Name) else _several(topics)
        targets = tuple(dict.fromkeys(name_from(one) for one in names))
        if not targets:
            raise InvalidInput("a consumer needs at least one topic")
        named = tuple(dict.fromkeys(target.topic for target in targets))
        for topic in named:
            if dead_letter is not None:
                await self._require_possible(dead_letter.topic_for(topic, subscription))
        own_name = name or f"consumer-{self.host.environment.random_bits(64):016x}"
        stands_by = kind.stands_by if stand_by is None else stand_by
        dead_letters = None if dead_letter is None else partial(DeadLetters, self, dead_letter)
        terms = Terms(
            subscription, kind, own_name, priority, stands_by, retakes=stand_by is not False, named=name is not None
        )

        async def join() -> Consumer:
            consumer = Consumer(self.host, targets, terms, dead_letters)
            await consumer.join()
            return consumer

        async def subscribe_and_join() -> Consumer:
            if len(named) > 1:  # nothing is made of the subscription if one of them is not there
                for topic in named:
                    await self._retrying.run(partial(self.host.topics.layout, topic))
            for topic in named:
                await self._retrying.run(partial(self.host.topics.subscribe, topic, subscription, start))
            return await self._retrying.run(join)

        return await self.host.steps.finish(subscribe_and_join, map(str, named), undo=Consumer.close)

    async def reader(
        self,
        topic: Name,
        *,
        start: MessageID | str = "earliest",
        follow: bool = False,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        compacted: bool = False,
    ) -> Reader:
        """
        Open a reader of a topic, or of one segment of it; with ``follow``, also of what the segment becomes.

        :param start: after this message (and from the first one in other segments), ``earliest`` or ``latest``.
        :param follow: go on for ever, instead of ending where the topic ends now.
        :param compacted: of each segment that was compacted, read first what was kept, then what came since.
        :raises InvalidInput: no message of the topic can have the id ``start``.
        :raises TopicNotFound: there is no such topic.
        """
        reader = Reader(self.host, name_from(topic), start, follow, isolation, compacted)

        async def open_it() -> Reader:
            try:
                await reader.open()
            except BaseException:
                await reader.close()
                raise
            return reader

        return await self.host.steps.finish(open_it, undo=Reader.close)

    async def _require_possible(self, target: TopicName) -> None:
        """Raise InvalidName unless the topic of dead letters is there or can be made."""
        try:
            check_new_topic(target)
        except InvalidName as error:
            try:
                await self.host.topics.layout(target)  # an earlier release may have made it
            except TopicNotFound:
                raise InvalidName(error.name, f"{error.reason}; name another topic for dead letters") from None


def _several(topics: object) -> tuple[Name, ...]:
    """Return the topics that were named together, or raise InvalidInput."""
    if not isinstance(topics, Iterable) or isinstance(topics, bytes | Mapping):
        raise InvalidInput(f"a consumer reads topics by their names, not {excerpt(topics)}")
    return tuple(topics)

"""The asyncio client: one host's door."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from txnframework.broker import Start
from txnframework.client._calls import check_subscription
from txnframework.client._consumer import Consumer
from txnframework.client._dead_letters import DeadLetter, DeadLetters
from txnframework.client._messages import MessageID
from txnframework.client._producer import Producer
from txnframework.client._reader import Reader
from txnframework.client._subscription_calls import SubscriptionCalls
from txnframework.client._terms import STANDING_BY_TYPES, Terms
from txnframework.client._topic_calls import TopicCalls
from txnframework.client._transaction_calls import TransactionCalls
from txnframework.errors import InvalidInput
from txnframework.model.names import SegmentName, parse_name
from txnframework.model.reading import Isolation


class Client(TransactionCalls, SubscriptionCalls, TopicCalls):
    """
    What a program uses: transactions, producers, consumers and readers; made by ``txnframework.open``.

    It belongs to the event loop that it was opened in. Closing it waits for what is being settled; producers and
    consumers are best closed before, each in its ``async with``.
    """

    def __repr__(self) -> str:
        return f"<Client of {self._host.stores}{', closed' if self._host.closed else ''}>"

    async def producer(self, topic: str, *, name: str | None = None) -> Producer:
        """
        Open a producer for a topic, or for one segment of it; writes nothing.

        :param name: under which sends are recognised when they are repeated, by another process too; default: a new
            one. A name that is used twice at a time is safe only with sequence ids that the caller chooses.
        :raises TopicNotFound: there is no such topic.
        """
        target = parse_name(topic)
        layout = await self.host.topics.finish_changes(target.topic)
        if isinstance(target, SegmentName):
            layout.segment_of(target)
        return Producer(self.host, self._retrying, target, layout, name)

    async def consumer(
        self,
        topics: str | Iterable[str],
        subscription: str,
        *,
        type: str = "exclusive",
        start: Start = "latest",
        name: str | None = None,
        priority: int = 0,
        stand_by: bool | None = None,
        dead_letter: DeadLetter | None = None,
    ) -> Consumer:
        """
        Join a subscription of one or several topics (or segments), making it if it is not there.

        One process at a time hands out a subscription's messages of a segment. Processes that share a topic each take
        some of its segments (``layout`` names them); what a process had is free when its consumer closes, or a
        session's lifetime after it died.

        :param start: where a new subscription begins: at the ``earliest`` message that is there, or after the
            ``latest`` that may be read now.
        :param priority: lower numbers come first, among the consumers of one process, where the type minds it.
        :param stand_by: where another process dispatches, or the one consumer of an exclusive subscription is here,
            wait until it has left or died and take over, instead of raising; also after losing a lease. ``failover``
            does unless told otherwise. A process that takes over does not know how often messages were delivered.
        :param dead_letter: where messages go that would be redelivered too often; without it, they come for ever.
        :raises ConsumerBusy: its type takes one consumer only, and it has one.
        :raises SubscriptionOwnedElsewhere: another process dispatches it.
        :raises TopicNotFound: there is no such topic.
        """
        check_subscription(subscription, start)
        self.host.registry.dispatcher(type)
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        targets = tuple(dict.fromkeys(parse_name(one) for one in names))
        if not targets:
            raise InvalidInput("a consumer needs at least one topic")
        for topic in dict.fromkeys(target.topic for target in targets):
            if dead_letter is not None:
                dead_letter.topic_for(topic, subscription)
            await self._retrying.run(partial(self.host.topics.subscribe, topic, subscription, start))
        own_name = name or f"consumer-{self.host.environment.random_bits(64):016x}"
        stands_by = type in STANDING_BY_TYPES if stand_by is None else stand_by
        dead_letters = None if dead_letter is None else partial(DeadLetters, self, dead_letter)
        terms = Terms(subscription, type, own_name, priority, stands_by)

        async def join() -> Consumer:
            consumer = Consumer(self.host, targets, terms, dead_letters)
            await consumer.join()
            return consumer

        return await self._retrying.run(join)

    async def reader(
        self,
        topic: str,
        *,
        start: MessageID | str = "earliest",
        follow: bool = False,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        compacted: bool = False,
    ) -> Reader:
        """
        Open a reader of a topic, or of one segment of it.

        :param start: after this message (and from the first one in other segments), ``earliest`` or ``latest``.
        :param follow: go on for ever, instead of ending where the topic ends now.
        :param compacted: of each segment that was compacted, read first what was kept, then what came since.
        :raises InvalidInput: no message of the topic can have the id ``start``.
        :raises TopicNotFound: there is no such topic.
        """
        reader = Reader(self.host, parse_name(topic), start, follow, isolation, compacted)
        await reader.open()
        return reader

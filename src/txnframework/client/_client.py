"""The asyncio client: one host's door."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from txnframework.broker import (
    Compactor,
    HangingTransaction,
    Host,
    Lag,
    LatestByKey,
    Order,
    Start,
    Topics,
    ack_status,
    open_host,
)
from txnframework.client._consumer import Consumer
from txnframework.client._dead_letters import DeadLetter, DeadLetters
from txnframework.client._messages import Message, MessageID, received
from txnframework.client._producer import Producer
from txnframework.client._reader import Reader
from txnframework.client._retrying import Retrying
from txnframework.client._seeking import sought
from txnframework.client._terms import STANDING_BY_TYPES, Terms
from txnframework.client._transaction import JoinedTransaction, Transaction
from txnframework.config import Config, check_config, load_config
from txnframework.environment import Environment
from txnframework.errors import InvalidInput, TopicExists, TopicNotFound
from txnframework.model.acks import AckStatus
from txnframework.model.ids import BRANCH_BITS, Branch, TxnID
from txnframework.model.layout import Layout
from txnframework.model.names import SegmentName, TopicName, parse_name, topic_of
from txnframework.model.reading import Isolation
from txnframework.model.transactions import Action, End, State
from txnframework.plugin import PluginRegistry, load_plugins

ConfigSource = Config | Path | str | Mapping[str, object] | None


class Client:
    """
    What a program uses: transactions, producers, consumers and readers; made by ``txnframework.open``.

    It belongs to the event loop that it was opened in. Closing it waits for what is being settled; producers and
    consumers are best closed before, each in its ``async with``.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        """What this client stands on, for programs that embed more of it."""
        self._retrying = Retrying(host.environment, host.config.client)

    @property
    def topics(self) -> Topics:
        """The topics and their layouts."""
        return self.host.topics

    # -- transactions ---------------------------------------------------------------------------------

    def transaction(
        self, *, timeout_ms: int | None = None, principal: str = "", outlives_client: bool = False
    ) -> Transaction:
        """
        Make a transaction; it begins on entering ``async with``.

        :param timeout_ms: it is aborted after this, unless it ended before; default ``transactions.timeout_ms``.
        :param principal: who alone may add to it and end it; default: whoever knows its id.
        :param outlives_client: leave it open when this client is closed or its process dies, until its timeout, for
            ``Client.commit`` or ``Client.abort`` by its id; otherwise it is aborted as soon as that is noticed.
        """
        bounds = self.host.config.transactions
        timeout = bounds.timeout_ms if timeout_ms is None else timeout_ms
        if not 1 <= timeout <= bounds.timeout_ms_max:
            raise InvalidInput(f"a timeout of {timeout} ms is not between 1 and {bounds.timeout_ms_max}")
        return Transaction(self.host, self._retrying, timeout, principal, outlives_client)

    def join(self, txn_id: TxnID | str, *, principal: str = "") -> JoinedTransaction:
        """
        Take part in another process's transaction under a random branch; ending it is left to that process.

        :param txn_id: its id, or ``str`` of it, as it travels between processes.
        :param principal: the one that it was begun with; with another one sends and acknowledgments are refused.
        """
        joined = parse_txn_id(txn_id)
        number = self.host.environment.random_bits(BRANCH_BITS) or 1
        return JoinedTransaction(Branch(joined, number), principal)

    async def outcome(self, txn_id: TxnID | str) -> State:
        """
        Return OPEN, COMMITTED or ABORTED.

        :raises TransactionNotFound: it never began, or ended longer ago than outcomes are kept.
        :raises TransactionDomainMismatch: no plugin of its family is installed, as for everything that takes an id.
        """
        asked = parse_txn_id(txn_id)
        coordinator = await self.host.coordinator_for(asked)
        return (await self._retrying.run(lambda: coordinator.describe(asked))).state

    async def commit(
        self, txn_id: TxnID | str, branches: Iterable[int] = (), *, principal: str = "", operator: bool = False
    ) -> None:
        """
        Commit a transaction by its id, its branch 0 and ``branches`` counting: after a restart, or for an operator.

        Only whoever knows that everything was confirmed may do so. Raises as ``Transaction.commit`` does.

        :param operator: whoever owns it; for a tool that has asked who its user is.
        :raises NotTransactionOwner: it belongs to another principal; nothing was changed.
        """
        await self._end(End(parse_txn_id(txn_id), Action.COMMIT, principal, frozenset({0, *branches}), operator))

    async def abort(self, txn_id: TxnID | str, *, principal: str = "", operator: bool = False) -> None:
        """Abort a transaction by its id; raises as ``Transaction.abort`` does, and takes who ends it as ``commit``."""
        await self._end(End(parse_txn_id(txn_id), Action.ABORT, principal, operator=operator))

    async def settle(self, txn_id: TxnID | str) -> int:
        """
        Make the outcome of a transaction that has ended take effect everywhere, instead of leaving it to the sweeps.

        Returns how many operations are left: they could not be settled now, and the sweeps try them again.

        :raises InvalidTransactionState: it is open.
        :raises TransactionNotFound: it never began, or ended longer ago than outcomes are kept.
        """
        ended = parse_txn_id(txn_id)
        coordinator = await self.host.coordinator_for(ended)
        await self._retrying.run(lambda: coordinator.describe(ended))
        return (await self._retrying.run(lambda: coordinator.settle(ended))).left

    async def find_hanging(
        self, age_ms_min: int = 60_000, *, after: HangingTransaction | None = None, transactions_max: int = 100
    ) -> tuple[HangingTransaction, ...]:
        """
        Return transactions that somebody should look at: nothing is changed.

        Those that have been open for so long, with whether the process that began them is alive; and those that ended
        so long ago and have not taken effect everywhere, with where that is: nobody sweeps, or a participant cannot be
        settled. Of each family the open ones first, the one that is due first at the top.

        :param after: the last one of the page before; fewer than ``transactions_max`` are the last page.
        """
        if age_ms_min < 0 or transactions_max < 1:
            raise InvalidInput("age_ms_min has to be at least 0, and transactions_max at least 1")
        return await self._retrying.run(lambda: self.host.hanging.find(age_ms_min, after, transactions_max))

    async def _end(self, end: End) -> None:
        coordinator = await self.host.coordinator_for(end.txn_id)
        await self._retrying.run(lambda: coordinator.end(end))
        self.host.settle_soon(end.txn_id)

    # -- sending and receiving ------------------------------------------------------------------------

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
        _check_subscription(subscription, start)
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
        :raises TopicNotFound: there is no such topic.
        """
        reader = Reader(self.host, parse_name(topic), start, follow, isolation, compacted)
        await reader.open()
        return reader

    # -- subscriptions --------------------------------------------------------------------------------

    async def subscribe(self, topic: str, subscription: str, *, start: Start = "latest") -> None:
        """
        Make a subscription without joining it; one that is there stays as it is.

        :param start: as for ``consumer``.
        :raises TopicNotFound: there is no such topic.
        """
        named = self._topic(topic)
        _check_subscription(subscription, start)
        await self._retrying.run(lambda: self.host.topics.subscribe(named, subscription, start))

    async def unsubscribe(self, topic: str, subscription: str) -> None:
        """
        Give a subscription up, with everything that it acknowledged.

        :raises SubscriptionNotFound: there is no such subscription.
        """
        named = self._topic(topic)
        await self._retrying.run(lambda: self.host.topics.unsubscribe(named, subscription))

    async def seek(self, topic: str, subscription: str, to: MessageID | int | Start) -> None:
        """
        Move a subscription, whoever consumes from it, as ``Consumer.seek`` does.

        :raises SubscriptionNotFound: there is no such subscription.
        :raises TopicNotFound: there is no such topic.
        """
        layout = await self.host.topics.finish_changes(self._topic(topic))
        segments = tuple(str(layout.name_of(segment.id)) for segment in layout.in_order())
        for segment, position in (await sought(self.host, (layout,), segments, to)).items():
            if segment not in segments:
                raise InvalidInput(f"{segment} is not a segment of {layout.topic}")
            subscribed = await self.host.subscription(str(layout.topic), subscription, segment)
            await self._retrying.run(partial(subscribed.cursor.seek, position))

    async def lag(self, topic: str, subscription: str) -> Lag:
        """
        Return how many messages a subscription may read and has not acknowledged, by segment, without reading them.

        Messages of open transactions are not counted; those of aborted ones may be, and ``exact`` is then False.

        :raises SubscriptionNotFound: there is no such subscription.
        :raises TopicNotFound: there is no such topic.
        """
        layout = await self.host.topics.layout(self._topic(topic))
        return await self._retrying.run(lambda: self.host.backlog.lag(layout, subscription))

    async def peek(self, topic: str, subscription: str, messages_max: int = 1) -> tuple[Message, ...]:
        """
        Return the first messages that a subscription has not acknowledged, without delivering them.

        Segments come after those that they descend from, each in its order. What an open transaction has acknowledged
        is shown, since it may come back; what one wrote, or an aborted one, is not.

        :raises SubscriptionNotFound: there is no such subscription.
        :raises TopicNotFound: there is no such topic.
        """
        if messages_max < 1:
            raise InvalidInput(f"messages_max is {messages_max}, and has to be at least 1")
        name = self._topic(topic)
        layout = await self.host.topics.layout(name)
        peeked = await self._retrying.run(lambda: self.host.backlog.peek(layout, subscription, messages_max))
        return tuple(received(str(name), one.segment, one.held, 0, one.incarnation) for one in peeked)

    async def ack_status(self, subscription: str, message: MessageID) -> AckStatus:
        """
        Return what became of a message for a subscription: done, held by which open transaction, or neither.

        :raises SubscriptionNotFound: there is no such subscription.
        """
        topic = str(topic_of(message.segment))
        subscribed = await self.host.subscription(topic, subscription, message.segment)
        return await self._retrying.run(lambda: ack_status(subscribed, message.position))

    async def compact(
        self, topic: str, compactor: Callable[[], Compactor] = LatestByKey, *, order: Order = "position"
    ) -> None:
        """
        Write what is to be kept of a topic beside it, for readers with ``compacted=True``; the topic stays as it is.

        Messages that are committed by now are looked at, aborted ones never. A repeated compaction goes on from what
        the one before kept. It is written for each segment on its own: a key that has moved to another segment by a
        split stands in both, the later one last.

        :param compactor: makes what decides about one segment; default: the last message of each key stays.
        :param order: of ``position``, or of ``commit``, for which everything is looked at anew each time, and the
            outcomes must still be kept (``transactions.retention_ms``).
        :raises CommitOrderUnknown: they are not.
        :raises Fenced: somebody else began to compact the topic later.
        :raises TopicNotFound: there is no such topic.
        """
        if order not in ("position", "commit"):
            raise InvalidInput(f"messages are compacted in order of 'position' or 'commit', not {order!r}")
        layout = await self.host.topics.layout(self._topic(topic))
        await self._retrying.run(lambda: self.host.compacting.compact(layout, compactor, order))

    # -- topics ---------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, *, segments: int = 1, exist_ok: bool = False) -> None:
        """
        Make a topic of so many segments; a ``persistent://`` topic has one.

        :raises InvalidInput: its name begins with ``__``, or it is persistent and was to have several segments.
        :raises TopicExists: it is there already, unless ``exist_ok``; it then stays as it is.
        """
        try:
            await self.host.topics.create(self._topic(topic), segments)
        except TopicExists:
            if not exist_ok:
                raise

    async def upkeep(self) -> None:
        """
        Trim, collect abort records and finish deletions now, of all topics, unless another process is doing so.

        Clients do it in the background, some of it every ``retention.interval_ms``. This is for programs that do not
        live for so long.
        """
        await self.host.upkeep.all_topics()

    async def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """
        Delete a topic with its messages, its subscriptions and what is kept of transactions in it.

        Open transactions that took part in it can still be committed: what they did elsewhere counts. Producers and
        consumers of the topic get TopicNotFound. A topic of this name may be made again and has nothing to do with it.

        :param force: also if somebody uses it.
        :raises TopicInUse: it has subscriptions, or open transactions took part in it; nothing was changed.
        :raises TopicNotFound: there is no such topic.
        """
        name = self._topic(topic)
        tried = False
        # A topic of this name that somebody makes while this is tried again is not meant.
        life = await self._retrying.run(lambda: self.host.topics.deleting.life(name))

        async def delete() -> None:
            nonlocal tried
            try:
                await self.host.topics.delete(name, force=force, life=life)
            except TopicNotFound as gone:
                if not (tried and gone.deleted):  # otherwise it was decided here, and another process finished it
                    raise
            finally:
                tried = True

        await self._retrying.run(delete)

    async def delete_namespace(self, namespace: str, *, force: bool = False) -> None:
        """
        Delete every topic of a namespace (``tenant/namespace``), after a look that none is in use.

        What was deleted when this fails stays so; repeat it. Raises as ``delete_topic`` does.
        """
        tenant, slash, name = namespace.partition("/")
        if not (tenant and slash and name) or "/" in name:
            raise InvalidInput(f"{namespace!r} is not a namespace: write tenant/namespace")
        await self._retrying.run(partial(self.host.topics.delete_all, tenant, name, force=force))

    async def layout(self, topic: str) -> Layout:
        """
        Return a topic's segments: ``active()`` are those that take messages now, ``name_of(id)`` their full names.

        :raises TopicNotFound: there is no such topic.
        """
        return await self.host.topics.layout(self._topic(topic))

    async def split(self, topic: str, segment_id: int) -> tuple[int, int]:
        """
        Split an active segment in the middle of its hash range; return the children's ids.

        :raises LayoutConflict: it is not active, or holds one hash value only, or the topic is persistent.
        """
        layout = await self.host.topics.split(self._topic(topic), segment_id)
        low, high = layout.segments[segment_id].children
        return low, high

    async def merge(self, topic: str, segment_id: int, other_id: int) -> int:
        """
        Merge two active neighbours; return the child's id.

        :raises LayoutConflict: one is not active, or they are not neighbours, or the topic is persistent.
        """
        layout = await self.host.topics.merge(self._topic(topic), segment_id, other_id)
        (child,) = layout.segments[segment_id].children
        return child

    def _topic(self, text: str) -> TopicName:
        name = parse_name(text)
        if isinstance(name, SegmentName):
            raise InvalidInput(f"{text} is a segment; name its topic, {name.topic}")
        return name


@asynccontextmanager
async def open(
    config: ConfigSource = None,
    *,
    registry: PluginRegistry | None = None,
    environment: Environment | None = None,
) -> AsyncIterator[Client]:
    """
    Open a client: ``async with txnframework.open(...) as client``.

    :param config: the path of a TOML file, a table as such a file holds, what ``load_config`` returned, or nothing
        (one SQLite database in ``./txnframework-data``).
    :param registry: the plugins to use; default: those that are installed.
    :param environment: time and randomness; default: the real ones.
    :raises ConfigurationError: the configuration does not fit what is installed.
    :raises StoreMismatch: its two stores do not belong together.
    """
    loaded = config if isinstance(config, Config) else load_config(config)
    plugins = registry or load_plugins()
    check_config(loaded, plugins, str(config) if isinstance(config, Path | str) else None)
    host = await open_host(loaded, plugins, environment)
    try:
        yield Client(host)
    finally:
        await host.close()


def _check_subscription(name: str, start: str) -> None:
    if not name:
        raise InvalidInput("a subscription needs a name")
    if start not in ("earliest", "latest"):
        raise InvalidInput(f"a subscription starts at 'earliest' or 'latest', not at {start!r}")


def parse_txn_id(given: TxnID | str) -> TxnID:
    """
    Return the id that was given as such, or as the text that ``str`` makes of it.

    :raises InvalidInput: it is not such a text.
    """
    try:
        return TxnID.parse(given) if isinstance(given, str) else given
    except ValueError as error:
        raise InvalidInput(str(error)) from error

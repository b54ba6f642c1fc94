"""Reports about messages, transactions and stores; nothing here writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from txnframework.broker.backlog import Backlog, TopicBacklog
from txnframework.broker.coordinators.sessions import Sessions
from txnframework.broker.dispatch.open_acks import OpenAcks
from txnframework.broker.segments import SegmentSubscription
from txnframework.broker.topics.topics import Topics
from txnframework.environment import Environment
from txnframework.errors import NotFound
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model.acks import AckState, AckStatus
from txnframework.model.cursor import state_of
from txnframework.model.ids import TxnID
from txnframework.model.names import dead_letter_topic
from txnframework.model.positions import Limit, Position
from txnframework.model.transactions import OpenQuery, State, Transaction

_PAGE = 1_000


async def ack_status(subscription: SegmentSubscription, position: Position) -> AckStatus:
    """
    Return whether a message or a whole entry is acknowledged, held by an open transaction, or neither.

    The cursor is read last, so it contains acknowledgments that were settled between the two reads.

    :raises SubscriptionNotFound: the subscription does not exist.
    """
    pending = await subscription.pending_acks.recover()
    cursor = await subscription.cursor.load()
    if state_of(cursor, position) is AckState.DELETED:
        return AckStatus(AckState.DELETED)
    held = OpenAcks(pending.open, cursor.incarnation).holder(position)
    if held is None:
        return AckStatus(AckState.PENDING)
    return AckStatus(AckState.PENDING_ACK, held.branch.txn_id)


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """
    A transaction that has been open for ``age_ms``, or that ended ``age_ms`` ago and is not settled everywhere.

    ``owner_lives``: whether the process that began an open transaction is alive; None: the transaction names no
    process, or has ended. ``operations_left``: the number of unsettled operations of an ended transaction, at the
    participants that ``transaction`` names.
    """

    transaction: Transaction
    age_ms: int
    owner_lives: bool | None = None
    operations_left: int = 0


class HangingTransactions:
    """
    Finds hanging transactions by reading only.

    ``coordinators`` returns one coordinator of each family, always in the same order.
    """

    def __init__(
        self,
        coordinators: Callable[[], Awaitable[Iterable[ITransactionCoordinator]]],
        sessions: Sessions,
        environment: Environment,
    ) -> None:
        self._coordinators = coordinators
        self._sessions = sessions
        self._environment = environment

    async def find(
        self, age_ms_min: int, after: HangingTransaction | None, transactions_max: int
    ) -> tuple[HangingTransaction, ...]:
        """
        Return a page of transactions that have been hanging for at least ``age_ms_min``.

        The open transactions of a family come before its ended ones. Operations of unknown transactions are left out:
        they never counted, and their time is unknown.

        :raises TransactionNotFound: ``after``, the last transaction of the previous page, has been forgotten since.
        """
        last = None if after is None else after.transaction
        found: list[HangingTransaction] = []
        for coordinator in await self._coordinators():
            if last is not None and coordinator.family != last.txn_id.family:
                continue  # covered by the previous pages
            after_id = None if last is None else last.txn_id
            if last is None or last.state is State.OPEN:
                query = OpenQuery(age_ms_min, after_id, Limit(transactions_max - len(found)))
                found += [await self._opened(one) for one in await coordinator.list_open(query)]
                after_id = None
            room = transactions_max - len(found)
            if room:
                found += await self._ended(coordinator, age_ms_min, after_id, room)
            if len(found) >= transactions_max:
                break
            last = None
        return tuple(found)

    async def _opened(self, one: Transaction) -> HangingTransaction:
        # Checked after the transaction was found: a live process acquired its session's lease before it began the
        # transaction.
        lives = None if one.session is None else await self._sessions.is_living(one.session)
        return HangingTransaction(one, self._environment.now_ms() - one.created_ms, lives)

    async def _ended(
        self, coordinator: ITransactionCoordinator, age_ms_min: int, after: TxnID | None, room: int
    ) -> list[HangingTransaction]:
        found: list[HangingTransaction] = []
        while len(found) < room and (page := await coordinator.outstanding(after, Limit(room))):
            now_ms = self._environment.now_ms()
            for one in page:
                if one.ended is None:
                    continue
                # A transaction that is decided and still being settled has no known end time yet.
                since_ms = one.ended.created_ms if one.ended.finalized_ms is None else one.ended.finalized_ms
                age_ms = now_ms - since_ms
                if age_ms >= age_ms_min:
                    found.append(HangingTransaction(one.ended, age_ms, operations_left=one.operations))
            after = page[-1].txn_id
        return found[:room]


@dataclass(frozen=True, slots=True)
class FamilyStatus:
    """
    The transactions of one family.

    ``open_count``: the number of open transactions. ``oldest_age_ms``: the age of the oldest open transaction; None:
    there is none. ``operations_left``: the number of unsettled operations of transactions that have ended or are
    unknown.
    """

    family: str
    open_count: int
    oldest_age_ms: int | None
    operations_left: int


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """
    The messages of one segment.

    ``messages`` and ``bytes``: those that are stored, without the store's own overhead. ``undecided``: the number of
    confirmed messages behind the first open transaction; they may not be read yet.
    """

    segment: str
    messages: int
    bytes: int
    undecided: int


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """
    The backlog of one subscription.

    ``lag``: the number of readable messages that are not acknowledged. ``oldest_age_ms``: the age of the oldest of
    them, since it was sent; None: there is none. ``dead_letters``: the number of messages in its dead-letter topic, if
    that has the default name.
    """

    subscription: str
    lag: int
    oldest_age_ms: int | None
    dead_letters: int


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """The segments and the subscriptions of one topic."""

    topic: str
    segments: tuple[SegmentStatus, ...]
    subscriptions: tuple[SubscriptionStatus, ...]


@dataclass(frozen=True, slots=True)
class StatusReport:
    """The status of all families and topics, read one after the other."""

    families: tuple[FamilyStatus, ...]
    topics: tuple[TopicStatus, ...]


class StoreStatus:
    """
    Reads the status of the stores, without writing.

    ``coordinators`` returns one coordinator of each family.
    """

    def __init__(
        self,
        coordinators: Callable[[], Awaitable[Iterable[ITransactionCoordinator]]],
        topics: Topics,
        backlog: Backlog,
        environment: Environment,
    ) -> None:
        self._coordinators = coordinators
        self._topics = topics
        self._backlog = backlog
        self._environment = environment

    async def report(self) -> StatusReport:
        """Return the status; the time grows with the number of open transactions, segments and subscriptions."""
        families = await self.families()
        topics: dict[str, TopicBacklog] = {}
        for topic in await self._topics.list():
            try:
                topics[str(topic)] = await self._backlog.topic(await self._topics.layout(topic))
            except NotFound:
                continue  # deleted or changed during the report
        stored = {name: sum(one.messages for one in found.segments) for name, found in topics.items()}
        now_ms = self._environment.now_ms()
        return StatusReport(families, tuple(_topic_status(name, one, stored, now_ms) for name, one in topics.items()))

    async def families(self) -> tuple[FamilyStatus, ...]:
        """Return the status of each family; the time grows with the number of open transactions."""
        return tuple([await self._family(coordinator) for coordinator in await self._coordinators()])

    async def _family(self, coordinator: ITransactionCoordinator) -> FamilyStatus:
        open_count, first_ms = 0, None
        after: TxnID | None = None
        while page := await coordinator.list_open(OpenQuery(0, after, Limit(_PAGE))):
            open_count += len(page)
            began_ms = min(one.created_ms for one in page)
            first_ms = began_ms if first_ms is None else min(first_ms, began_ms)
            if len(page) < _PAGE:
                break
            after = page[-1].txn_id
        age_ms = None if first_ms is None else max(0, self._environment.now_ms() - first_ms)
        return FamilyStatus(coordinator.family, open_count, age_ms, await _operations_left(coordinator))


def _topic_status(topic: str, found: TopicBacklog, stored: Mapping[str, int], now_ms: int) -> TopicStatus:
    """Return the status of a topic; ``stored``: the number of messages of each topic."""
    subscriptions = []
    for name, one in found.subscriptions.items():
        sent_ms = one.oldest_sent_ms
        age_ms = None if sent_ms is None else max(0, now_ms - sent_ms)
        letters = stored.get(dead_letter_topic(topic, name), 0)
        subscriptions.append(SubscriptionStatus(name, one.messages, age_ms, letters))
    segments = tuple(SegmentStatus(one.segment, one.messages, one.bytes, one.undecided) for one in found.segments)
    return TopicStatus(topic, segments, tuple(subscriptions))


async def _operations_left(coordinator: ITransactionCoordinator) -> int:
    left = 0
    after: TxnID | None = None
    while page := await coordinator.outstanding(after, Limit(_PAGE)):
        left += sum(one.operations for one in page)
        after = page[-1].txn_id
    return left

"""Open segments, and open subscriptions on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from txnframework.broker.cursors import StoredCursor
from txnframework.broker.domains import DomainPlugins, NoPlugins, plugins_of
from txnframework.broker.metrics import measured_pending_acks
from txnframework.broker.non_transactional import NonTransactionalBuffer, NonTransactionalPendingAcks
from txnframework.broker.stores import HostContext, verify_cursor
from txnframework.broker.topics.layouts import StoredLayouts
from txnframework.errors import ConfigurationError, LedgerNotFound
from txnframework.interfaces import (
    IAdoptingBuffer,
    ICommitOrderBuffer,
    IManagedLedger,
    IPendingAckStore,
    ISealableBuffer,
    ISealablePendingAcks,
    ITransactionBuffer,
    ITransactionCoordinator,
)
from txnframework.model.layout import FIRST_LIFE
from txnframework.model.names import TopicName, topic_of
from txnframework.model.paths import topic_key
from txnframework.model.records import TopicRecord, decode
from txnframework.plugin import SegmentContext, SubscriptionContext, foreign_data
from txnframework.runtime.concurrency import SharedOpenings


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """
    A segment: ``ledger`` for facts about it, ``buffer`` for every append and every read.

    ``name_may_return``: after a deletion, a new topic may have a segment of the same name. ``life`` then says to which
    of these topics the segment belongs. ``adopted_by``: the topic to which the segment belongs since its own topic
    migrated; ``life`` is that topic's then.
    """

    name: str
    ledger: IManagedLedger
    buffer: ITransactionBuffer
    name_may_return: bool = False
    life: int = FIRST_LIFE
    adopted_by: TopicName | None = None

    def is_of(self, life: int) -> bool:
        """Return whether the segment belongs to this life of its topic."""
        return not self.name_may_return or self.life == life


@dataclass(frozen=True, slots=True)
class SegmentSubscription:
    """A subscription on one segment: its pending acknowledgments and its cursor."""

    topic: str
    name: str
    segment: str
    cursor: StoredCursor
    pending_acks: IPendingAckStore


SegmentVisit = Callable[[str], AbstractAsyncContextManager[OpenSegment]]
"""Opens a segment for the duration of a block; see ``SegmentCache.visit``."""


class SegmentOpener:
    """Opens segments and subscriptions of one host; ``coordinator`` returns a coordinator by name, opened if needed."""

    def __init__(self, context: HostContext, coordinator: Callable[[str], Awaitable[ITransactionCoordinator]]) -> None:
        self._context = context
        self._coordinator = coordinator
        self._layouts = StoredLayouts(context.metadata)

    def plugins_of(self, name: str, adopted_by: TopicName | None = None) -> DomainPlugins | NoPlugins:
        """
        Return the plugins of a topic or segment, by its topic's domain and its namespace's overrides.

        ``adopted_by``: the topic to which the segment belongs since its own topic migrated.

        :raises UnknownPlugin: only some of the domain's plugins are installed.
        """
        topic = adopted_by or topic_of(name)
        return plugins_of(
            self._context.config.domain(f"{topic.tenant}/{topic.namespace}", topic.domain), self._context.registry
        )

    def stores_outside_segment(self, name: str) -> bool:
        """
        Return whether the segment's buffer keeps messages outside the segment, where retention does not count them.
        """
        plugins = self.plugins_of(name)
        return isinstance(plugins, DomainPlugins) and ICommitOrderBuffer.implementedBy(plugins.buffer.implementation)

    def refuses_migration(self, topic: TopicName, to: TopicName) -> str:
        """Return why the plugins of two topics do not allow a migration; empty: they do."""
        source, target = self.plugins_of(str(topic)), self.plugins_of(str(to))
        if isinstance(source, NoPlugins) or isinstance(target, NoPlugins):
            return "transactions need the plugins of both domains, and some of them are not installed"
        if not ISealableBuffer.implementedBy(source.buffer.implementation):
            return f"its buffer {source.buffer.name} stores messages in a way that no other family can read"
        if not ISealablePendingAcks.implementedBy(source.pending_acks.implementation):
            return f"its pending-ack store {source.pending_acks.name} cannot be sealed"
        if not IAdoptingBuffer.implementedBy(target.buffer.implementation):
            return f"the buffer {target.buffer.name} of {to} cannot read what another family wrote"
        return ""

    async def segment(self, name: str) -> OpenSegment:
        """
        Open a segment and recover it.

        :raises LedgerNotFound: the segment does not exist.
        :raises ConfigurationError: transactions of a family that does not serve the segment now wrote to it.
        """
        own = topic_of(name)
        returns = name == str(own)
        # The plugins are looked up first, so that a domain with missing plugins fails before anything is opened. After
        # a migration, the record names the topic that decides.
        owner = await self._layouts.owner(own) if returns else None
        plugins = self.plugins_of(name, None if owner is None else owner.topic)
        if owner is not None:
            _require_adopting(name, plugins)
        ledger = await self._context.ledgers.open(name)
        try:
            # Read after the ledger was opened: if the record belongs to another life, the opened ledger was deleted.
            topic = await self._record_of(own if owner is None else owner.topic)
            if returns and topic is not None and topic.deleted and not topic.segments:
                raise LedgerNotFound(name)  # the ledger belongs to a topic whose creation is not complete
            if topic is not None and isinstance(plugins, DomainPlugins):
                _require_family(name, topic, plugins)
            life = topic.life if returns and topic is not None else FIRST_LIFE
            settled = () if owner is None or owner.origin is None else owner.origin.families
            buffer = await self._buffer(ledger, plugins, life, settled)
            await buffer.recover()
        except BaseException:
            await ledger.close()
            raise
        adopted_by = None if owner is None else owner.topic
        return OpenSegment(name, ledger, buffer, name_may_return=returns, life=life, adopted_by=adopted_by)

    async def is_outdated(self, opened: OpenSegment) -> bool:
        """Return whether the segment's topic has migrated since the segment was opened; ``opened`` is sealed."""
        if opened.adopted_by is not None or not opened.name_may_return:
            return False
        return await self._layouts.owner(topic_of(opened.name)) is not None

    async def subscription(self, topic: str, name: str, segment: OpenSegment) -> SegmentSubscription:
        """
        Open a subscription on one segment.

        :raises StoreMismatch: the cursor is ahead of the segment.
        """
        plugins = self.plugins_of(segment.name, segment.adopted_by)
        if segment.adopted_by is not None:
            topic = str(segment.adopted_by)
        cursor = StoredCursor(self._context.metadata, topic, segment.name, name, segment.ledger)
        await verify_cursor(cursor, segment.ledger)
        pending_acks = await self._pending_acks(cursor, plugins, segment.life)
        return SegmentSubscription(topic, name, segment.name, cursor, pending_acks)

    async def _record_of(self, topic: TopicName) -> TopicRecord | None:
        record = await self._context.metadata.get(topic_key(topic))
        return None if record is None else decode(TopicRecord, record)

    async def _buffer(
        self, ledger: IManagedLedger, plugins: DomainPlugins | NoPlugins, life: int, settled_families: tuple[str, ...]
    ) -> ITransactionBuffer:
        if isinstance(plugins, NoPlugins):
            return NonTransactionalBuffer(ledger, plugins.reason)
        provider = plugins.buffer
        opening = SegmentContext(
            ledger.name,
            ledger,
            self._context.ledgers,
            self._context.metadata,
            await self._coordinator(plugins.coordinator.name),
            self._context.environment,
            self._context.registry.decode_options(provider, self._context.config.buffers.get(provider.name, {})),
            self._context.config.transactions,
            self._context.metrics,
            life,
            settled_families,
        )
        return await self._context.registry.open(provider, opening)

    async def _pending_acks(
        self, cursor: StoredCursor, plugins: DomainPlugins | NoPlugins, life: int
    ) -> IPendingAckStore:
        if isinstance(plugins, NoPlugins):
            return NonTransactionalPendingAcks(
                cursor.segment, cursor.subscription, self._context.metadata, plugins.reason
            )
        provider = plugins.pending_acks
        opening = SubscriptionContext(
            cursor.topic,
            cursor.segment,
            cursor.subscription,
            cursor,
            self._context.ledgers,
            self._context.metadata,
            await self._coordinator(plugins.coordinator.name),
            self._context.environment,
            self._context.registry.decode_options(provider, self._context.config.pending_acks.get(provider.name, {})),
            self._context.config.transactions,
            self._context.metrics,
            life,
        )
        store = await self._context.registry.open(provider, opening)
        return measured_pending_acks(store, self._context.metrics, cursor.topic, cursor.subscription)


def _require_family(name: str, topic: TopicRecord, plugins: DomainPlugins) -> None:
    """Raise ConfigurationError if a family wrote to the topic that the configured plugins cannot decide on."""
    for family in topic.families:
        if family not in plugins.buffer.families:
            what = f"what transactions of the {family} family wrote or acknowledged"
            raise foreign_data(name, what, "plugins of that family")


def _require_adopting(name: str, plugins: DomainPlugins | NoPlugins) -> None:
    """Raise ConfigurationError if the configured buffer cannot read what another family wrote before a migration."""
    if isinstance(plugins, DomainPlugins) and not IAdoptingBuffer.implementedBy(plugins.buffer.implementation):
        reason = f"{name} was written by another family before its topic migrated, which this buffer cannot read"
        raise ConfigurationError("domains.segment.buffer", reason)


class SegmentCache:
    """
    Opens segments and subscriptions on first use, and keeps them while the segment exists.

    ``require_open`` raises Closed if the host is closed. ``opened`` is called whenever a segment was opened.
    """

    def __init__(self, opener: SegmentOpener, require_open: Callable[[], None], opened: Callable[[], None]) -> None:
        self._opener = opener
        self._require_open = require_open
        self._opened = opened
        self._segments: SharedOpenings[str, OpenSegment] = SharedOpenings()
        self._subscriptions: SharedOpenings[tuple[str, str], SegmentSubscription] = SharedOpenings()
        # What was open when its topic migrated: at most once for each topic.
        self._former: list[OpenSegment] = []
        self._former_subscriptions: list[SegmentSubscription] = []

    async def segment(self, name: str) -> OpenSegment:
        """
        Return a segment by its full name.

        :raises LedgerNotFound: the segment does not exist.
        :raises Closed: the segment is not open, and the host was closed.
        """
        opened = self._segments.open.get(name)
        if opened is None:
            self._require_open()
            opened = await self._segments.get(name, lambda: self._open(name))
        if opened.name_may_return and await self._is_not_current(opened):
            return await self._segments.get(name, lambda: self._open(name))
        return opened

    async def _is_not_current(self, opened: OpenSegment) -> bool:
        """
        Return whether an open segment must be opened again, and release it.

        It was deleted, perhaps by another process, and a new topic may exist under the same name; or its topic has
        migrated. After a migration, the users of the former object leave it when they notice the new layout. Until
        then it stays open: what they can still do, any process may do.
        """
        try:
            tail = await opened.ledger.tail()
        except LedgerNotFound:
            await self._release(opened)
            return True
        if not tail.sealed or not await self._opener.is_outdated(opened):
            return False
        if self._segments.opened(opened.name) is opened:
            self._segments.forget(opened.name)
            self._former.append(opened)
            for key in self._subscriptions.names():
                former = self._subscriptions.opened(key) if key[0] == opened.name else None
                if former is not None:
                    self._former_subscriptions.append(former)
                    self._subscriptions.forget(key)
        return True

    async def subscription(self, topic: str, name: str, segment: str) -> SegmentSubscription:
        """
        Return a subscription on one segment.

        :raises LedgerNotFound: the segment does not exist.
        """
        opened = await self.segment(segment)  # after a migration, this forgets the former subscriptions

        async def open_it() -> SegmentSubscription:
            return await self._opener.subscription(topic, name, opened)

        return await self._subscriptions.get((segment, name), open_it)

    @asynccontextmanager
    async def visit(self, name: str) -> AsyncIterator[OpenSegment]:
        """Yield the open segment, or open the segment for the duration of the block only."""
        opened = self._segments.opened(name)
        if opened is not None and not (opened.name_may_return and await self._is_not_current(opened)):
            yield opened
            return
        visited = await self._open(name)
        try:
            yield visited
        finally:
            await _close(visited)

    @asynccontextmanager
    async def visit_subscription(self, topic: str, name: str, segment: str) -> AsyncIterator[SegmentSubscription]:
        """Yield the open subscription on a segment, or open it for the duration of the block only."""
        async with self.visit(segment) as visited:
            # Only now: a subscription of a segment whose topic has migrated is forgotten.
            opened = self._subscriptions.opened((segment, name))
            if opened is not None:
                yield opened
                return
            subscription = await self._opener.subscription(topic, name, visited)
            try:
                yield subscription
            finally:
                await subscription.pending_acks.close()

    async def release(self, name: str) -> None:
        """Close a deleted segment."""
        opened = self._segments.opened(name)
        if opened is None:
            self._segments.forget(name)  # its opening may be in progress
            await self._release_subscriptions(name)
        elif not opened.name_may_return or await _is_gone(opened):
            await self._release(opened)

    async def close(self) -> None:
        """Close all subscriptions, then all segments, even if some of them fail."""
        self._segments.open.clear()  # from now on, ``segment`` raises Closed
        subscriptions = [*await self._subscriptions.drain(), *self._former_subscriptions]
        segments = [*await self._segments.drain(), *self._former]
        async with AsyncExitStack() as last_first:
            for segment in segments:
                last_first.push_async_callback(segment.ledger.close)
                last_first.push_async_callback(segment.buffer.close)
            for subscription in subscriptions:
                last_first.push_async_callback(subscription.pending_acks.close)

    async def _open(self, name: str) -> OpenSegment:
        opened = await self._opener.segment(name)
        self._opened()
        return opened

    async def _release(self, opened: OpenSegment) -> None:
        """
        Close a deleted segment and its subscriptions, unless another task does so. Callers that wait on them get
        errors.
        """
        if self._segments.opened(opened.name) is opened:
            self._segments.forget(opened.name)
            await self._release_subscriptions(opened.name)
            await _close(opened)

    async def _release_subscriptions(self, segment: str) -> None:
        for key in self._subscriptions.names():
            if key[0] == segment:
                subscription = self._subscriptions.opened(key)
                self._subscriptions.forget(key)
                if subscription is not None:
                    await subscription.pending_acks.close()


async def _close(segment: OpenSegment) -> None:
    await segment.buffer.close()
    await segment.ledger.close()


async def _is_gone(opened: OpenSegment) -> bool:
    """Return whether a segment was deleted, even if another segment has its name now."""
    try:
        await opened.ledger.tail()
    except LedgerNotFound:
        return True
    return False

"""Opens segments and subscriptions: which plugins serve them, by the topic to which they belong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from txnframework.broker.cursors import StoredCursor
from txnframework.broker.domains import DomainPlugins, NoPlugins, plugins_of
from txnframework.broker.histories import Histories
from txnframework.broker.inspected_ledger import InspectedLedger
from txnframework.broker.metrics import measured_pending_acks
from txnframework.broker.non_transactional import NonTransactionalBuffer, NonTransactionalPendingAcks
from txnframework.broker.segment_ends import is_there, verify_cursor, verify_segment
from txnframework.broker.segments import OpenSegment, SegmentSubscription
from txnframework.broker.stores import HostContext
from txnframework.broker.topics.layouts import StoredLayouts
from txnframework.errors import ConfigurationError, LedgerNotFound, lost_segment
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
from txnframework.model.layout import FIRST_LIFE, Layout
from txnframework.model.names import SegmentName, TopicName, parse_name, segment_id_of, topic_of
from txnframework.plugin import SegmentContext, SubscriptionContext, foreign_data


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the context of a buffer says about the segment's topic; see ``SegmentContext``."""

    topic: str
    life: int
    settled_families: tuple[str, ...]


_PLACES_MAX = 1_000


class SegmentOpener:
    """Opens segments and subscriptions of one host; ``coordinator`` returns a coordinator by name, opened if needed."""

    def __init__(self, context: HostContext, coordinator: Callable[[str], Awaitable[ITransactionCoordinator]]) -> None:
        self._context = context
        self._coordinator = coordinator
        self._layouts = StoredLayouts(context.metadata)
        self._histories = Histories(context.metadata)
        # By namespace and domain; looked up for each transaction.
        self._plugins: dict[tuple[str, str], DomainPlugins | NoPlugins] = {}

    def plugins_of(self, name: str) -> DomainPlugins | NoPlugins:
        """
        Return the plugins of a topic or segment, by the domain in its name and its namespace's overrides.

        After a migration, a segment belongs to a topic of another domain; see ``OpenSegment.topic``.

        :raises UnknownPlugin: only some of the domain's plugins are installed.
        """
        topic = topic_of(name)
        place = f"{topic.tenant}/{topic.namespace}", topic.domain
        found = self._plugins.get(place)
        if found is None:
            found = plugins_of(self._context.config.domain(*place), self._context.registry)
            if len(self._plugins) < _PLACES_MAX:
                self._plugins[place] = found
        return found

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

    async def segment(self, name: str, *, may_have_lost_end: bool = False) -> OpenSegment:
        """
        Open a segment and recover it.

        :param may_have_lost_end: open it even if it ends before an acknowledgment of it, to read what is left. Its
            ledger then refuses every change: what is appended might get a position that is acknowledged already.

        :raises LedgerNotFound: the segment does not exist.
        :raises ConfigurationError: transactions of a family that does not serve the segment now wrote to it.
        :raises StoreMismatch: the segment ends before a position that the metadata store names, or its topic has it and
            its ledger is missing.
        """
        own = parse_name(name)
        returns = isinstance(own, TopicName)
        # The plugins are looked up first, so that a domain with missing plugins fails before anything is opened. After
        # a migration, the record names the topic that decides.
        owner = await self._layouts.owner(own.topic)
        topic = own.topic if owner is None else owner.topic
        is_adopted = owner is not None and owner.has(own) and owner.is_adopted(segment_id_of(own))
        plugins = self.plugins_of(str(topic))
        if is_adopted:
            _require_adopting(name, plugins)
        ledger = await self._ledger(name, own, owner)
        if may_have_lost_end:
            ledger = IManagedLedger(InspectedLedger(ledger))
        try:
            # If the name returns, the record is read after the ledger was opened: if it belongs to another life, the
            # opened ledger was deleted.
            layout = await self._layout_of(topic) if returns else owner
            if returns and layout is not None and layout.deleted and not layout.segments:
                raise LedgerNotFound(name)  # the ledger belongs to a topic whose creation is not complete
            if layout is not None and not is_adopted and isinstance(plugins, DomainPlugins):
                _require_family(name, layout, plugins)
            life = FIRST_LIFE if layout is None else layout.life
            origin = layout.origin if layout is not None and is_adopted else None
            context_life = life if returns else FIRST_LIFE
            settled = () if origin is None else origin.families
            if not may_have_lost_end:
                await verify_segment(self._context.metadata, ledger, owner)
            buffer = await self._buffer(ledger, plugins, TopicFacts(str(topic), context_life, settled))
            await buffer.recover()
        except BaseException:
            await ledger.close()
            raise
        return OpenSegment(name, ledger, buffer, topic, life, origin, returns)

    async def _ledger(self, name: str, own: TopicName | SegmentName, owner: Layout | None) -> IManagedLedger:
        """Open the ledger of a segment; ``owner``: the layout that has the segment, read before."""
        try:
            return await self._context.ledgers.open(name)
        except LedgerNotFound as error:
            now = await self._layouts.owner(own.topic)
            if owner is not None and now is not None and owner.has(own) and is_there(now, owner, segment_id_of(own)):
                raise lost_segment(name) from error
            raise

    async def is_outdated(self, opened: OpenSegment) -> bool:
        """Return whether the segment's topic has migrated since the segment was opened; ``opened`` is sealed."""
        owner = await self._layouts.owner(topic_of(opened.name))
        return (
            owner is not None
            and (owner.topic, owner.life) != (opened.topic, opened.life)
            and owner.created_as == (opened.topic, opened.life)
        )

    async def subscription(self, name: str, segment: OpenSegment) -> SegmentSubscription:
        """
        Open a subscription on one segment.

        :raises StoreMismatch: the cursor is ahead of the segment.
        """
        topic = str(segment.topic)
        cursor = StoredCursor(self._context.metadata, topic, segment.name, name, segment.ledger, self._histories)
        await verify_cursor(cursor, segment.ledger)
        pending_acks = await self._pending_acks(cursor, self.plugins_of(topic), segment.context_life)
        return SegmentSubscription(topic, segment.life, name, segment.name, cursor, pending_acks)

    async def _layout_of(self, topic: TopicName) -> Layout | None:
        found = await self._layouts.find(topic)
        return None if found is None else found[0]

    async def _buffer(
        self, ledger: IManagedLedger, plugins: DomainPlugins | NoPlugins, place: TopicFacts
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
            place.life,
            place.settled_families,
            place.topic,
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


def _require_family(name: str, topic: Layout, plugins: DomainPlugins) -> None:
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

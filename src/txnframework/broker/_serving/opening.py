"""Opening of stores, segments and subscriptions with the configured plugins, or without transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from txnframework.broker._serving.belonging import check_cursor
from txnframework.broker._serving.domains import DomainPlugins, NoPlugins, plugins_of
from txnframework.broker._serving.foundation import Foundation
from txnframework.broker._serving.plain_buffer import PlainBuffer
from txnframework.broker._serving.plain_pending_acks import PlainPendingAcks
from txnframework.broker._serving.segments import OpenSegment, SegmentSubscription
from txnframework.broker.cursors import StoredCursor
from txnframework.broker.metrics import measured_pending_acks
from txnframework.config import Config, redact_url, store_name
from txnframework.environment import Environment
from txnframework.errors import LedgerNotFound, StoreMismatch
from txnframework.interfaces import (
    ICommitOrderBuffer,
    ILedgerStore,
    IManagedLedger,
    IMetadataStore,
    IPendingAckStore,
    ITransactionBuffer,
    ITransactionCoordinator,
)
from txnframework.model.layout import FIRST_LIFE
from txnframework.model.names import topic_of
from txnframework.model.paths import topic_key
from txnframework.model.records import TopicRecord, decode
from txnframework.plugin import PluginRegistry, SegmentContext, StoreContext, SubscriptionContext, foreign_data


class Opening:
    """Opens segments and subscriptions of one host; ``coordinator`` returns a coordinator by name, opened if needed."""

    def __init__(
        self, foundation: Foundation, coordinator: Callable[[str], Awaitable[ITransactionCoordinator]]
    ) -> None:
        self._config = foundation.config
        self._registry = foundation.registry
        self._environment = foundation.environment
        self._metadata = foundation.metadata
        self._ledgers = foundation.ledgers
        self._coordinator = coordinator
        self._metrics = foundation.metrics

    def plugins_of(self, name: str) -> DomainPlugins | NoPlugins:
        """
        Return the plugins of a topic or segment, by its topic's domain and its namespace's overrides.

        :raises UnknownPlugin: only some of the domain's plugins are installed.
        """
        topic = topic_of(name)
        return plugins_of(self._config.domain(f"{topic.tenant}/{topic.namespace}", topic.domain), self._registry)

    def keeps_beside(self, name: str) -> bool:
        """
        Return whether the segment's buffer keeps messages outside the segment, where retention does not count them.
        """
        plugins = self.plugins_of(name)
        return isinstance(plugins, DomainPlugins) and ICommitOrderBuffer.implementedBy(plugins.buffer.implementation)

    async def segment(self, name: str) -> OpenSegment:
        """
        Open a segment and recover it.

        :raises LedgerNotFound: the segment does not exist.
        :raises ConfigurationError: transactions of a family that does not serve the segment now wrote to it.
        """
        # The plugins are looked up first, so that a domain with missing plugins fails before anything is opened.
        plugins = self.plugins_of(name)
        ledger = await self._ledgers.open(name)
        try:
            returns = name == str(topic_of(name))
            # Read after the ledger was opened: if the record belongs to another life, the opened ledger was deleted.
            topic = await self._record_of(name)
            if returns and topic is not None and topic.deleted and not topic.segments:
                raise LedgerNotFound(name)  # the ledger belongs to a topic whose creation is not complete
            if topic is not None and isinstance(plugins, DomainPlugins):
                _require_family(name, topic, plugins)
            life = topic.life if returns and topic is not None else FIRST_LIFE
            buffer = await self._buffer(ledger, plugins, life)
            await buffer.recover()
        except BaseException:
            await ledger.close()
            raise
        return OpenSegment(name, ledger, buffer, name_may_return=returns, life=life)

    async def subscription(self, topic: str, name: str, segment: OpenSegment) -> SegmentSubscription:
        """
        Open a subscription on one segment.

        :raises StoreMismatch: the cursor is ahead of the segment.
        """
        plugins = self.plugins_of(segment.name)
        cursor = StoredCursor(self._metadata, topic, segment.name, name, segment.ledger)
        await check_cursor(cursor, segment.ledger)
        pending_acks = await self._pending_acks(cursor, plugins, segment.life)
        return SegmentSubscription(topic, name, segment.name, cursor, pending_acks)

    async def _record_of(self, name: str) -> TopicRecord | None:
        record = await self._metadata.get(topic_key(topic_of(name)))
        return None if record is None else decode(TopicRecord, record)

    async def _buffer(
        self, ledger: IManagedLedger, plugins: DomainPlugins | NoPlugins, life: int
    ) -> ITransactionBuffer:
        if isinstance(plugins, NoPlugins):
            return PlainBuffer(ledger, plugins.reason)
        provider = plugins.buffer
        context = SegmentContext(
            ledger.name,
            ledger,
            self._ledgers,
            self._metadata,
            await self._coordinator(plugins.coordinator.name),
            self._environment,
            self._registry.decode_options(provider, self._config.buffers.get(provider.name, {})),
            self._config.transactions,
            self._metrics,
            life,
        )
        return await self._registry.open(provider, context)

    async def _pending_acks(
        self, cursor: StoredCursor, plugins: DomainPlugins | NoPlugins, life: int
    ) -> IPendingAckStore:
        if isinstance(plugins, NoPlugins):
            return PlainPendingAcks(cursor.segment, cursor.subscription, self._metadata, plugins.reason)
        provider = plugins.pending_acks
        context = SubscriptionContext(
            cursor.topic,
            cursor.segment,
            cursor.subscription,
            cursor,
            self._ledgers,
            self._metadata,
            await self._coordinator(plugins.coordinator.name),
            self._environment,
            self._registry.decode_options(provider, self._config.pending_acks.get(provider.name, {})),
            self._config.transactions,
            self._metrics,
            life,
        )
        return measured_pending_acks(await self._registry.open(provider, context), self._metrics)


def _require_family(name: str, topic: TopicRecord, plugins: DomainPlugins) -> None:
    """Raise ConfigurationError if a family wrote to the topic that the configured plugins cannot decide on."""
    for family in topic.families:
        if family not in plugins.buffer.families:
            what = f"what transactions of the {family} family wrote or acknowledged"
            raise foreign_data(name, what, "plugins of that family")


async def open_stores(
    config: Config, registry: PluginRegistry, environment: Environment, *, as_they_are: bool = False
) -> tuple[IMetadataStore, ILedgerStore]:
    """
    Open both stores; with ``as_they_are``, also if the ledgers belong to another metadata store.

    :raises UnknownPlugin: no installed plugin serves a URL.
    :raises StoreMismatch: the ledgers belong to another metadata store.
    """
    metadata = await _open_metadata(config, registry, environment)
    try:
        ledgers = await _open_ledgers(config, registry, environment, None if as_they_are else metadata.identity)
    except StoreMismatch as error:
        await metadata.close()
        raise StoreMismatch(
            f"{error.reason}; metadata.url is {redact_url(config.metadata.url)} and ledger.url is "
            f"{redact_url(config.ledger.url)}: name the two that were made together"
        ) from error
    except BaseException:
        await metadata.close()
        raise
    return metadata, ledgers


async def _open_metadata(config: Config, registry: PluginRegistry, environment: Environment) -> IMetadataStore:
    """Open the configured metadata store."""
    provider = registry.metadata_store(store_name(config.metadata.url))
    options = registry.decode_options(provider, config.metadata.options)
    return await registry.open(provider, StoreContext(config.metadata.url, environment, options))


async def _open_ledgers(
    config: Config, registry: PluginRegistry, environment: Environment, identity: str | None
) -> ILedgerStore:
    """Open the configured ledger store; a new one adopts ``identity``."""
    provider = registry.ledger_store(store_name(config.ledger.url))
    options = registry.decode_options(provider, config.ledger.options)
    return await registry.open(provider, StoreContext(config.ledger.url, environment, options, identity))

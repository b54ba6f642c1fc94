"""A host: the stores, coordinators, segments and subscriptions of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from functools import cached_property
from typing import TYPE_CHECKING

from txnframework.broker.backlog import Backlog
from txnframework.broker.compaction.segment_compaction import SegmentCompaction
from txnframework.broker.coordinators.coordinators import Coordinators, HostParticipants, coordinators_by_family
from txnframework.broker.coordinators.own_transactions import OwnTransactions
from txnframework.broker.coordinators.sessions import Sessions
from txnframework.broker.coordinators.sweeps import Sweeps, open_with_retries
from txnframework.broker.dispatch.attachments import SubscriptionRef
from txnframework.broker.dispatch.dispatches import Dispatches
from txnframework.broker.dispatch.segment_dispatch import DispatchParts
from txnframework.broker.dispatch.subscription_shares import SubscriptionShares
from txnframework.broker.domains import DomainPlugins, NoPlugins
from txnframework.broker.inspection import Inspection
from txnframework.broker.joint_steps import JointSteps
from txnframework.broker.maintenance import Maintenance
from txnframework.broker.metrics import MetricsObserver, measured_store
from txnframework.broker.observers import combined, open_observers
from txnframework.broker.quotas import BacklogQuotas
from txnframework.broker.retention import Trimmer
from txnframework.broker.segment_cache import SegmentCache
from txnframework.broker.segment_opener import SegmentOpener
from txnframework.broker.segments import OpenSegment, SegmentSubscription
from txnframework.broker.status import HangingTransactions, StoreStatus
from txnframework.broker.stores import HostContext, open_stores, verify_store_pair
from txnframework.broker.topics.migration import TopicMigrations
from txnframework.broker.topics.topics import Topics
from txnframework.broker.used_connections import UsedConnections
from txnframework.config import Config, redact_url
from txnframework.environment import Environment, SystemEnvironment
from txnframework.errors import Closed, TransactionDomainMismatch, Unavailable
from txnframework.interfaces import (
    ICoCommitStore,
    IJointCoordinator,
    IObserver,
    IPlannableBuffer,
    ITransactionCoordinator,
)
from txnframework.model.ids import TxnID
from txnframework.model.layout import from_record
from txnframework.model.names import TRANSACTION_DOMAINS, TopicName, topic_of
from txnframework.model.records import TopicRecord
from txnframework.plugin import DispatcherContext, PluginRegistry, load_plugins
from txnframework.runtime.steps import Steps
from txnframework.runtime.tasks import BackgroundTask, start_task

if TYPE_CHECKING:
    from txnframework.instruments import Instruments


async def open_host(
    config: Config,
    registry: PluginRegistry | None = None,
    environment: Environment | None = None,
    metrics: Instruments | None = None,
) -> Host:
    """
    Open the stores that ``config`` names, and check that they belong together.

    Unless ``transactions.sweep`` is off, the host soon starts to sweep in the background, even without any other call.
    ``metrics`` records metrics; with None there are none.

    :raises UnknownPlugin: no installed plugin serves a URL.
    :raises StoreMismatch: the stores do not belong together.
    """
    plugins, clock = registry or load_plugins(), environment or SystemEnvironment()
    steps = Steps(clock)
    return await steps.finish(lambda: _open_host(config, plugins, clock, metrics, steps), undo=Host.close)


async def _open_host(
    config: Config, registry: PluginRegistry, environment: Environment, metrics: Instruments | None, steps: Steps
) -> Host:
    metadata, ledgers = await open_stores(config, registry, environment)
    try:
        await verify_store_pair(metadata, ledgers, redact_url(config.metadata.url), redact_url(config.ledger.url))
    except BaseException:
        await ledgers.close()
        await metadata.close()
        raise
    try:
        observers = await open_observers(config, registry, environment)
    except BaseException:
        await ledgers.close()
        await metadata.close()
        raise
    chosen = metrics or (None if (found := combined(observers)) is None else found.instruments)
    observer = combined(observers if chosen is None else (*observers, IObserver(MetricsObserver(chosen))))
    store = measured_store(metadata, chosen)
    host = Host(HostContext(config, registry, environment, store, ledgers, chosen, observer), steps)
    host.start()
    return host


class Host:
    """
    Connects one process's callers to the roles; created by ``open_host``.

    Segments, subscriptions and coordinators are opened on first use and kept. A host has no authoritative state: other
    processes may do the same with the same stores at the same time.
    """

    def __init__(self, context: HostContext, steps: Steps | None = None) -> None:
        self.steps = steps or Steps(context.environment)
        """Steps that are completed even if their callers are cancelled."""
        self.config = config = context.config
        self.registry = context.registry
        self.environment = environment = context.environment
        self.metadata = metadata = context.metadata
        self.ledgers = ledgers = context.ledgers
        self.metrics = context.metrics
        self.observer = context.observer
        """What is notified of the operations of this process; None: nothing is notified."""
        self._opener = SegmentOpener(context, self._coordinator)
        self.segments = SegmentCache(self._opener, self._require_open, self._start_maintenance)
        """The segments that are open, and their subscriptions."""
        migrations = TopicMigrations(
            metadata,
            ledgers,
            environment,
            self.segments,
            self._coordinator_of,
            self._opener.refuses_migration,
            lambda topic: self.topics.deletion.finish(topic),
        )
        self.topics = Topics(
            metadata, ledgers, self.segments.segment, self._coordinator_of, self._release_segment, migrations
        )
        self.participants = HostParticipants(self.segments, self._opener, self.topics.deletion.is_deleted)
        self._coordinators = Coordinators(context, self.participants, lambda: self.sweeps.wake())
        self.own_transactions = OwnTransactions(
            environment, config.transactions, self._coordinators.of, self._abort_overdue
        )
        """The transactions that began or ended here."""
        self.joint_steps = JointSteps(context.observer)
        """Commits transactions whose operations are all known, several in a step."""
        self.connections = UsedConnections()
        """The connections of the application that open transactions commit with."""
        self.sessions = Sessions(
            metadata,
            environment,
            context.process,
            lambda unsure: self.sweeps.wake(unsure),
            self.own_transactions.settle_soon,
        )
        self.sweeps = Sweeps(
            self._coordinators.values,
            environment,
            config.transactions,
            self.sessions.abort_orphans,
            self.sessions.report_overdue,
        )
        self.dispatches = Dispatches(context, self._dispatch_parts, self.steps)
        self.shares = SubscriptionShares(metadata, environment, context.process)
        self.maintenance = Maintenance(metadata, environment, config, context.process, self._maintain)
        self.backlog = Backlog(metadata, self.segments.visit, config.subscriptions.read_entries_max)
        self.backlog_quotas = BacklogQuotas(config, self.backlog, self.topics.layout, environment, context.process)
        self.compaction = SegmentCompaction(metadata, ledgers, self.segments.visit, self._coordinator_of, environment)
        self.hanging_transactions = HangingTransactions(self.coordinators, self.sessions, environment)
        self.inspection = Inspection(metadata, self.segments)
        self.status = StoreStatus(self.coordinators, self.topics, self.backlog, environment)
        self._trimming = Trimmer(metadata, self.segments.visit, self._opener.stores_outside_segment, environment)
        self._starting = BackgroundTask(self._open_coordinators)
        # The open coordinators whose background work has begun; every operation of a transaction asks for one.
        self._working: dict[str, ITransactionCoordinator] = {}
        self._closing: asyncio.Task[None] | None = None
        self.closed = False
        """Whether the host is closed, so that its methods raise Closed."""

    @property
    def stores(self) -> str:
        """The URLs of the stores, without passwords, for messages."""
        urls = (self.config.metadata.url, self.config.ledger.url)
        return " and ".join(dict.fromkeys(map(redact_url, urls)))

    @property
    def closing(self) -> bool:
        """Whether closing has begun or is complete."""
        return self._closing is not None

    def start(self) -> None:
        """Start the background work soon; a second call does nothing."""
        if self._runs_background_work():
            self._starting.start()

    async def coordinator(self, domain: str = "segment", namespace: str = "") -> ITransactionCoordinator:
        """
        Return the coordinator of a domain (``segment``, ``topic`` or ``persistent``), or of a namespace in that domain.

        :raises UnknownPlugin: the domain's plugins are not installed.
        """
        return await self._coordinator(self.config.domain(namespace, domain).coordinator)

    async def coordinators(self) -> tuple[ITransactionCoordinator, ...]:
        """Return one coordinator of each configured and installed family, always in the same order."""
        return tuple([await self._coordinator(name) for name in dict.fromkeys(self._by_family.values())])

    async def coordinator_for(self, txn_id: TxnID) -> ITransactionCoordinator:
        """
        Return the coordinator of a transaction's family, which is part of its id.

        :raises TransactionDomainMismatch: no coordinator of that family is installed and configured.
        """
        name = self._by_family.get(txn_id.family)
        if name is None:
            reason = "no coordinator of that family is installed and configured"
            raise TransactionDomainMismatch(txn_id, txn_id.family, "any topic here", reason)
        return await self._coordinator(name)

    def shared_domain(self, *names: str) -> str | None:
        """Return the domain whose transactions can include all of these topics or segments; None if there is none."""
        served = list(map(self._opener.plugins_of, names))
        for domain in TRANSACTION_DOMAINS:
            own = getattr(self.config.domains, domain).coordinator
            if all(isinstance(one, DomainPlugins) and one.coordinator.name == own for one in served):
                return domain
        return None

    def transaction_place(self, *names: str) -> tuple[str, str] | None:
        """
        Return domain and namespace of a transaction that can include all of these topics or segments, or None.

        Topics without transactions are not excluded: the transaction or its operations report what is missing.
        """
        served = {one.coordinator.name for one in map(self._opener.plugins_of, names) if isinstance(one, DomainPlugins)}
        topic = topic_of(names[0])
        return None if len(served) > 1 else (topic.domain, f"{topic.tenant}/{topic.namespace}")

    async def segment(self, name: str, life: int | None = None) -> OpenSegment:
        """
        Return a segment by its full name; ``life``: see ``SegmentCache.segment``.

        :raises LedgerNotFound: the segment does not exist.
        """
        return await self.segments.segment(name, life)

    async def subscription(self, topic: str, name: str, segment: str, life: int | None = None) -> SegmentSubscription:
        """Return a subscription on one segment; ``cursor.load`` raises if it does not exist."""
        self._require_open()
        return await self.segments.subscription(topic, name, segment, life)

    async def close(self) -> None:
        """
        Wait for steps and settling, then close everything; a second call waits for the first one.

        Steps may take at most ``client.close_timeout_ms``, and settling as long again. The rest is then cancelled, with
        the same effect as a crash. Closing continues if the caller is cancelled or if a part of it fails.
        """
        if self._closing is None:
            self._closing = start_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self.steps.close, 0)  # steps that began in the meantime find closed stores
            for close in (self.metadata.close, self.ledgers.close, self.sessions.close, self._close_opened):
                last_first.push_async_callback(close)
            for background in (self._starting, self.sweeps, self.maintenance, self.own_transactions.deadlines):
                await background.stop()
            await self.steps.close(self.config.client.close_timeout_ms)
            await self.joint_steps.close()
            # First the dispatches: the shares would let consumers attach to further segments.
            await self.dispatches.close()
            await self.shares.close()
            # Settling may still open segments and subscriptions.
            await self.own_transactions.finish(self.config.client.close_timeout_ms)

    async def _close_opened(self) -> None:
        self.closed = True
        self._working.clear()
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self._coordinators.close)
            await self.segments.close()

    def _runs_background_work(self) -> bool:
        """Return whether this host does background work: it is configured to, and is not closing."""
        return self.config.transactions.sweep and self._closing is None

    # -- opening --------------------------------------------------------------------------------------

    @cached_property
    def _by_family(self) -> dict[str, str]:
        """The coordinator of each family; neither the configuration nor the plugins change while the host lives."""
        return coordinators_by_family(self.config, self.registry)

    async def _coordinator(self, name: str) -> ITransactionCoordinator:
        self._require_open()
        coordinator = self._working.get(name)
        if coordinator is not None:
            return coordinator
        served = await self._coordinators.get(name)
        if self._runs_background_work():
            served.election.start()
            self.sessions.start()
            self.sweeps.start()
            self.maintenance.start()
            self.own_transactions.deadlines.start()
            self._working[name] = served.coordinator
        return served.coordinator

    async def _open_coordinators(self) -> None:
        """
        Start sweeping without any caller: other processes may wait for transactions that a dead process left open.
        """
        await open_with_retries(dict.fromkeys(self._by_family.values()), self._coordinator, self.environment)

    async def _abort_overdue(self, txn_id: TxnID) -> None:
        for coordinator in self._coordinators.of(txn_id):
            await self.sessions.abort_overdue(coordinator, txn_id)

    def _start_maintenance(self) -> None:
        """Start the rounds over all topics, also in a host that has no coordinator to start them."""
        if self._runs_background_work():
            self.maintenance.start()

    async def _coordinator_of(self, name: str) -> ITransactionCoordinator | None:
        """Return the coordinator of a topic or segment; None if it is served without transactions."""
        plugins = self._opener.plugins_of(name)
        return None if isinstance(plugins, NoPlugins) else await self._coordinator(plugins.coordinator.name)

    async def prepare_rows(self, name: str, segments: Iterable[str] = ()) -> None:
        """
        Read and reserve what a step of a topic needs, if the store can do neither once an application has written rows.

        :param segments: those to which messages are sent.
        """
        if not ICoCommitStore.providedBy(self.metadata) or not self.metadata.has_one_writer:
            return
        coordinator = await self._coordinator_of(name)
        if IJointCoordinator.providedBy(coordinator):
            with suppress(Unavailable):  # a transaction tries again
                await coordinator.prepare()
        for segment in segments:
            buffer = (await self.segment(segment)).buffer
            if IPlannableBuffer.providedBy(buffer):
                await buffer.tail_seen()

    async def _release_segment(self, name: str, upto_ledger_id: int | None) -> None:
        """Close a deleted segment, and remove its compacted copies up to one ledger."""
        await self.compaction.attempts.remove(name, upto_ledger_id)
        await self.segments.release(name)

    async def _maintain(self, topic: TopicName, record: TopicRecord) -> None:
        """Do the periodic maintenance of a topic."""
        layout = from_record(topic, record)
        if layout.deleted:
            await self.topics.deletion.finish(topic)
            return
        if layout.is_migrating:
            await self.topics.finish_changes(topic)
            return
        await self._trimming.trim(layout, self.config.retention_of(f"{topic.tenant}/{topic.namespace}"))

    async def _dispatch_parts(self, ref: SubscriptionRef) -> DispatchParts:
        kind = ref.subscription_type
        provider = self.registry.dispatcher(kind)
        options = self.registry.decode_options(provider, self.config.dispatchers.get(kind, {}))
        context = DispatcherContext(ref.segment, ref.subscription, self.environment, options)
        segment = await self.segment(ref.segment, ref.life)
        return DispatchParts(
            segment=segment,
            subscription=await self.subscription(ref.topic, ref.subscription, ref.segment, ref.life),
            subscription_type=kind,
            dispatcher=await self.registry.open(provider, context),
            coordinator=await self._coordinator_of(str(segment.topic)),
            store=self.metadata,
            environment=self.environment,
            process=self.sessions.process,
            bounds=self.config.subscriptions,
            own_transactions=self.own_transactions,
        )

    def _require_open(self) -> None:
        if self.closed:
            raise Closed(f"the host of {self.stores} was closed")

"""The open coordinators of a host, and the participants that they settle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from zope.interface import implementer

from txnframework.broker.coordination import SWEEP, Election
from txnframework.broker.coordinators.shares import CoordinatorShare
from txnframework.broker.domains import DomainPlugins
from txnframework.broker.observers import observed_coordinator
from txnframework.broker.segment_cache import LATEST_LIFE, SegmentCache
from txnframework.broker.segment_opener import SegmentOpener
from txnframework.broker.segments import OpenSegment
from txnframework.broker.stores import HostContext
from txnframework.config import Config
from txnframework.errors import LedgerNotFound, Unavailable, UnknownPlugin
from txnframework.interfaces import IParticipants, ITransactionCoordinator
from txnframework.model.ids import LOG_FAMILY, LOG_FAMILY_BIT, TxnID
from txnframework.model.transactions import Participant, Transaction
from txnframework.plugin import CoordinatorContext, PluginRegistry
from txnframework.runtime.concurrency import SharedOpenings


def coordinators_by_family(config: Config, registry: PluginRegistry) -> dict[str, str]:
    """
    Return the coordinator plugin of each family that serves a domain, or a namespace of a domain.

    A transaction's id contains only its family, so each family has one coordinator. Plugins that are not installed are
    left out.
    """
    named = [config.domains.segment.coordinator, config.domains.persistent.coordinator]
    for overrides in config.namespaces.values():
        named += [one.coordinator for one in (overrides.segment, overrides.persistent) if one.coordinator]
    found: dict[str, str] = {}
    for name in named:
        try:
            families = registry.coordinator(name).families
        except UnknownPlugin:
            continue
        for family in sorted(families):
            found.setdefault(family, name)
    return found


@implementer(IParticipants)
class HostParticipants:
    """
    Opens the segments and subscriptions of a transaction and settles it there, if plugins of its family serve them.
    """

    def __init__(
        self, segments: SegmentCache, opener: SegmentOpener, is_deleted: Callable[[str], Awaitable[bool]]
    ) -> None:
        self._segments = segments
        self._opener = opener
        self._is_deleted = is_deleted

    async def settle(self, participant: Participant, ended: Transaction) -> None:
        """Make the outcome take effect on one segment, or on one subscription of it."""
        try:
            await self._settle(participant, ended)
        except LedgerNotFound as error:
            if await self._is_deleted(participant.segment):
                raise
            raise Unavailable(f"segment {participant.segment} cannot be opened") from error

    async def _settle(self, participant: Participant, ended: Transaction) -> None:
        segment = await self._segment(participant.segment, ended)
        if not participant.subscription:
            await segment.buffer.settle(ended)
            return
        topic = str(segment.topic)
        if not self._is_served(topic, ended.txn_id.family):
            return  # acknowledgments from before a migration: it settled them, or they never counted
        subscribed = await self._segments.subscription(topic, participant.subscription, participant.segment)
        await subscribed.pending_acks.settle(ended)

    async def _segment(self, name: str, ended: Transaction) -> OpenSegment:
        """
        Return a segment, unless plugins of another family serve it.

        They would find nothing to settle, which would count as settled. A host with the right plugins settles it. A
        segment whose topic has migrated has transactions of both families.
        """
        family = ended.txn_id.family
        if self._is_served(name, family):
            return await self._segments.segment(name)
        # Opening it here also forgets what was opened of it before a migration.
        segment = await self._segments.segment(name, LATEST_LIFE)
        if segment.origin is not None or self._is_served(str(segment.topic), family):
            return segment
        reason = f"plugins of another family serve {name} here"
        raise Unavailable(f"transaction {ended.txn_id} of the {family} family cannot be settled: {reason}")

    def _is_served(self, name: str, family: str) -> bool:
        """Return whether a topic or segment is served by plugins of a family, or by none."""
        plugins = self._opener.plugins_of(name)
        return not isinstance(plugins, DomainPlugins) or family in plugins.coordinator.families


@dataclass(frozen=True, slots=True)
class ServedCoordinator:
    """A coordinator, this host's share of its family's ids, and the election of the host that sweeps."""

    coordinator: ITransactionCoordinator
    share: CoordinatorShare
    election: Election

    async def close(self) -> None:
        """Stop the election and the share, and close the coordinator."""
        await self.election.stop()
        await self.share.stop()
        await self.coordinator.close()


class Coordinators:
    """
    Opens each coordinator on first use and keeps it; ``elected`` is called when this host is elected to sweep one.
    """

    def __init__(
        self,
        context: HostContext,
        participants: IParticipants,
        elected: Callable[[], None],
    ) -> None:
        self._context = context
        self._participants = participants
        self._elected = elected
        self._served: SharedOpenings[str, ServedCoordinator] = SharedOpenings()

    async def get(self, name: str) -> ServedCoordinator:
        """
        Return a coordinator by its plugin's name.

        :raises UnknownPlugin: the plugin is not installed.
        """
        return await self._served.get(name, lambda: self._open(name))

    def values(self) -> tuple[ServedCoordinator, ...]:
        """Return all open coordinators."""
        return self._served.values()

    def of(self, txn_id: TxnID) -> list[ITransactionCoordinator]:
        """Return the open coordinators that may have begun a transaction."""
        opened = [served.coordinator for served in self._served.values()]
        return [one for one in opened if one.family == txn_id.family]

    async def close(self) -> None:
        """Close all open coordinators, even if closing one of them fails."""
        async with AsyncExitStack() as stack:
            for served in await self._served.drain():
                stack.push_async_callback(served.close)

    async def _open(self, name: str) -> ServedCoordinator:
        host = self._context
        provider = host.registry.coordinator(name)
        options = host.registry.decode_options(provider, host.config.coordinators.get(name, {}))
        bounds = host.config.transactions
        first = LOG_FAMILY_BIT if LOG_FAMILY in provider.families else 0
        ids = tuple(range(first, first + bounds.coordinators))
        share = CoordinatorShare(host.metadata, host.environment, host.process, name, ids, bounds.sweep)
        opening = CoordinatorContext(
            host.metadata, host.ledgers, self._participants, host.environment, options, bounds, share, host.metrics
        )
        coordinator = observed_coordinator(await host.registry.open(provider, opening), host.observer)
        return ServedCoordinator(
            coordinator, share, Election(host.metadata, host.environment, host.process, f"{SWEEP}{name}", self._elected)
        )

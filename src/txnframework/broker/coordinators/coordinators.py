"""The open coordinators of a host, and the participants that they settle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from zope.interface import implementer

from txnframework.broker.coordination import SWEEP, Election
from txnframework.broker.coordinators.shares import CoordinatorShare
from txnframework.broker.domains import DomainPlugins, NoPlugins
from txnframework.broker.observers import observed_coordinator
from txnframework.broker.segments import OpenSegment, SegmentSubscription
from txnframework.broker.stores import HostContext
from txnframework.config import Config
from txnframework.errors import LedgerNotFound, Unavailable, UnknownPlugin
from txnframework.interfaces import IParticipants, ITransactionCoordinator
from txnframework.model.ids import LOG_FAMILY, LOG_FAMILY_BIT, TxnID
from txnframework.model.names import TopicName, topic_of
from txnframework.model.transactions import Participant, Transaction
from txnframework.plugin import CoordinatorContext, PluginRegistry
from txnframework.runtime.concurrency import SharedOpenings

OpenSegmentByName = Callable[[str], Awaitable[OpenSegment]]
OpenSubscription = Callable[[str, str, str], Awaitable[SegmentSubscription]]


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
        self,
        segment: OpenSegmentByName,
        subscription: OpenSubscription,
        is_deleted: Callable[[str], Awaitable[bool]],
        plugins_of: Callable[[str, TopicName | None], DomainPlugins | NoPlugins],
    ) -> None:
        self._segment = segment
        self._subscription = subscription
        self._is_deleted = is_deleted
        self._plugins_of = plugins_of

    async def settle(self, participant: Participant, ended: Transaction) -> None:
        """Make the outcome take effect on one segment, or on one subscription of it."""
        try:
            await self._settle(participant, ended)
        except LedgerNotFound as error:
            if await self._is_deleted(participant.segment):
                raise
            raise Unavailable(f"segment {participant.segment} cannot be opened") from error

    async def _settle(self, participant: Participant, ended: Transaction) -> None:
        await self._require_family(participant, ended)
        if participant.subscription:
            topic = str(topic_of(participant.segment))
            subscribed = await self._subscription(topic, participant.subscription, participant.segment)
            await subscribed.pending_acks.settle(ended)
            return
        segment = await self._segment(participant.segment)
        await segment.buffer.settle(ended)

    async def _require_family(self, participant: Participant, ended: Transaction) -> None:
        """
        Refuse to settle a transaction where plugins of another family serve the segment.

        They would find nothing to settle, which would count as settled. A host with the right plugins settles it. A
        segment whose topic has migrated has transactions of both families, and nothing is left of the former one.
        """
        plugins, family = self._plugins_of(participant.segment, None), ended.txn_id.family
        if isinstance(plugins, DomainPlugins) and family not in plugins.coordinator.families:
            # Opening it here also forgets what was opened of it before the migration.
            adopted_by = (await self._segment(participant.segment)).adopted_by
            plugins = self._plugins_of(participant.segment, adopted_by)
            if adopted_by is not None and (
                not isinstance(plugins, DomainPlugins) or family in plugins.coordinator.families
            ):
                return
            reason = f"plugins of another family serve {participant.segment} here"
            raise Unavailable(f"transaction {ended.txn_id} of the {family} family cannot be settled: {reason}")


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

"""The coordinators that a host has open."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from txnframework.broker._agreement.election import Election
from txnframework.broker._coordinating.shares import CoordinatorShare
from txnframework.broker._measuring.coordinator import measured_coordinator
from txnframework.broker._serving.foundation import Foundation
from txnframework.interfaces import IParticipants, ITransactionCoordinator
from txnframework.model.ids import LOG_FAMILY, LOG_FAMILY_BIT, TxnID
from txnframework.plugin import CoordinatorContext
from txnframework.runtime.concurrency import SharedOpenings


@dataclass(frozen=True, slots=True)
class ServedCoordinator:
    """A coordinator, this host's share of its family's ids, and whether this host is the one that sweeps."""

    coordinator: ITransactionCoordinator
    share: CoordinatorShare
    election: Election

    async def close(self) -> None:
        """Stand for nothing any more."""
        await self.election.stop()
        await self.share.stop()
        await self.coordinator.close()


class Coordinators:
    """Opens each coordinator on first use, and keeps it; ``elected`` is called when this host is to sweep one."""

    def __init__(
        self,
        foundation: Foundation,
        participants: IParticipants,
        elected: Callable[[], None],
    ) -> None:
        self._config = foundation.config
        self._registry = foundation.registry
        self._environment = foundation.environment
        self._metadata = foundation.metadata
        self._ledgers = foundation.ledgers
        self._participants = participants
        self._elected = elected
        self._metrics = foundation.metrics
        self._served: SharedOpenings[str, ServedCoordinator] = SharedOpenings()

    async def get(self, name: str) -> ServedCoordinator:
        """
        Return a coordinator by its plugin's name.

        :raises UnknownPlugin: it is not installed.
        """
        return await self._served.get(name, lambda: self._open(name))

    def values(self) -> tuple[ServedCoordinator, ...]:
        """Return all that are open by now."""
        return self._served.values()

    def of(self, txn_id: TxnID) -> list[ITransactionCoordinator]:
        """Return what is open of the coordinators that may have begun a transaction."""
        opened = [served.coordinator for served in self._served.values()]
        return [one for one in opened if one.family == txn_id.family]

    async def close(self) -> None:
        """Close all that are open, whatever of it fails."""
        async with AsyncExitStack() as stack:
            for served in await self._served.drain():
                stack.push_async_callback(served.close)

    async def _open(self, name: str) -> ServedCoordinator:
        provider = self._registry.coordinator(name)
        options = self._registry.decode_options(provider, self._config.coordinators.get(name, {}))
        bounds = self._config.transactions
        first = LOG_FAMILY_BIT if LOG_FAMILY in provider.families else 0
        ids = tuple(range(first, first + bounds.coordinators))
        share = CoordinatorShare(self._metadata, self._environment, name, ids, bounds.sweep)
        context = CoordinatorContext(
            self._metadata, self._ledgers, self._participants, self._environment, options, bounds, share, self._metrics
        )
        coordinator = measured_coordinator(await self._registry.open(provider, context), self._metrics)
        return ServedCoordinator(
            coordinator, share, Election(self._metadata, self._environment, f"sweep {name}", self._elected)
        )

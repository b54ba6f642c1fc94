"""What a host has open of a coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.broker._agreement.election import Election
from txnframework.broker._coordinating.shares import CoordinatorShare
from txnframework.interfaces import ITransactionCoordinator


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

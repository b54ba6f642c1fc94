"""Acknowledgments in transactions that another transaction is in the way of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnframework.broker._measuring.passing import Passing
from txnframework.errors import TransactionConflict
from txnframework.interfaces import IPendingAckStore
from txnframework.model.acks import AckRequest

if TYPE_CHECKING:
    from txnframework.metrics import Metrics


class MeasuredPendingAcks(Passing):
    """Counts conflicts."""

    _behind: IPendingAckStore

    def __init__(self, behind: IPendingAckStore, metrics: Metrics) -> None:
        super().__init__(behind)
        self._conflicts = metrics.counter(
            "txnframework_ack_conflicts_total",
            "Acknowledgments that were refused because another transaction holds the message or this one has ended.",
        )

    async def add(self, request: AckRequest) -> None:
        """Acknowledge in a transaction; conflicts are counted."""
        try:
            await self._behind.add(request)
        except TransactionConflict:
            self._conflicts.inc()
            raise


def measured_pending_acks(store: IPendingAckStore, metrics: Metrics | None) -> IPendingAckStore:
    """Return ``store``, measured where there is a ``Metrics``."""
    return store if metrics is None else IPendingAckStore(MeasuredPendingAcks(store, metrics))

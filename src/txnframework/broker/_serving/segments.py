"""Open segments, and open subscriptions on them."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.broker.cursors import StoredCursor
from txnframework.interfaces import IManagedLedger, IPendingAckStore, ITransactionBuffer
from txnframework.model.layout import FIRST_LIFE


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """
    A segment: ``ledger`` for facts about it, ``buffer`` for every append and every read.

    ``name_may_return``: after a deletion, a new topic may have a segment of the same name. ``life`` then says to which
    of these topics the segment belongs.
    """

    name: str
    ledger: IManagedLedger
    buffer: ITransactionBuffer
    name_may_return: bool = False
    life: int = FIRST_LIFE

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


def dispatching_lease(segment: str, subscription: str) -> str:
    """Return the name of the lease whose holder dispatches a segment's messages to the subscription's consumers."""
    return f"dispatch {subscription} of {segment}"

"""What a host has open of a segment and of a subscription on it."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.broker.cursors import StoredCursor
from txnframework.interfaces import IManagedLedger, IPendingAckStore, ITransactionBuffer
from txnframework.model.layout import FIRST_LIFE


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """
    A segment: ``ledger`` for facts about it, ``buffer`` for every append and every read.

    ``name_may_return``: a topic that is made after this one was deleted may have a segment of this very name. ``life``
    is then which of these topics it belongs to.
    """

    name: str
    ledger: IManagedLedger
    buffer: ITransactionBuffer
    name_may_return: bool = False
    life: int = FIRST_LIFE

    def is_of(self, life: int) -> bool:
        """Return whether it belongs to the topic that is this one of its name."""
        return not self.name_may_return or self.life == life


@dataclass(frozen=True, slots=True)
class SegmentSubscription:
    """A subscription on one segment: where its acknowledgments wait, and where they end."""

    topic: str
    name: str
    segment: str
    cursor: StoredCursor
    pending_acks: IPendingAckStore


def dispatching_lease(segment: str, subscription: str) -> str:
    """Return the name of the lease whose holder hands the messages of a segment to the subscription's consumers."""
    return f"dispatch {subscription} of {segment}"

"""The three roles, as the hooks provide them."""

from __future__ import annotations

from txnframework.interfaces import IPendingAckStore, ITransactionBuffer, ITransactionCoordinator
from txnframework.model.ids import LOG_FAMILY
from txnframework.plugin import CoordinatorContext, Provider, SegmentContext, SubscriptionContext
from txnframework_legacy.batching.following import SharedSwitches
from txnframework_legacy.batching.switches import LogKind
from txnframework_legacy.buffer.buffer import MarkerBuffer
from txnframework_legacy.coordinator.coordinator import LogCoordinator
from txnframework_legacy.options import BufferOptions, CoordinatorOptions, PendingAckOptions
from txnframework_legacy.pending_acks.store import LogPendingAcks

_FAMILIES = frozenset({LOG_FAMILY})


async def open_coordinator(context: CoordinatorContext) -> ITransactionCoordinator:
    """Open the coordinator; its logs are read when they are first asked."""
    return LogCoordinator(context)


async def open_buffer(context: SegmentContext) -> ITransactionBuffer:
    """Open the buffer of one topic; it recovers when it is first used."""
    return MarkerBuffer(context)


def coordinators() -> list[Provider[CoordinatorContext, ITransactionCoordinator]]:
    """Return ``log``."""
    return [Provider("log", open_coordinator, LogCoordinator, _FAMILIES, CoordinatorOptions)]


def buffers() -> list[Provider[SegmentContext, ITransactionBuffer]]:
    """Return ``marker``."""
    return [Provider("marker", open_buffer, MarkerBuffer, _FAMILIES, BufferOptions)]


def pending_ack_stores() -> list[Provider[SubscriptionContext, IPendingAckStore]]:
    """Return ``log``; what is opened by one provider shares what a host follows."""
    switches = SharedSwitches(LogKind.PENDING_ACKS)

    async def open_pending_acks(context: SubscriptionContext) -> IPendingAckStore:
        """Open the pending-ack store of one subscription; its log is made with the first acknowledgment."""
        return LogPendingAcks(context, switches)

    return [Provider("log", open_pending_acks, LogPendingAcks, _FAMILIES, PendingAckOptions)]

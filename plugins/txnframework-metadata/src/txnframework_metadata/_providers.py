"""The three roles, as the hooks provide them."""

from __future__ import annotations

from txnframework.interfaces import IPendingAckStore, ITransactionBuffer, ITransactionCoordinator
from txnframework.plugin import CoordinatorContext, Provider, SegmentContext, SubscriptionContext
from txnframework_metadata.buffer.buffer import MetadataBuffer
from txnframework_metadata.coordinator.coordinator import MetadataCoordinator
from txnframework_metadata.options import BufferOptions, CoordinatorOptions, PendingAckOptions
from txnframework_metadata.pending_acks.store import MetadataPendingAcks
from txnframework_metadata.records.views import FAMILY

_FAMILIES = frozenset({FAMILY})


async def open_coordinator(context: CoordinatorContext) -> ITransactionCoordinator:
    """Open the coordinator; nothing is read before it is used."""
    return MetadataCoordinator(context)


async def open_buffer(context: SegmentContext) -> ITransactionBuffer:
    """Open the buffer of one segment; it recovers when it is first used."""
    return MetadataBuffer(context)


async def open_pending_acks(context: SubscriptionContext) -> IPendingAckStore:
    """Open the pending-ack store of one subscription on one segment."""
    return MetadataPendingAcks(context)


def coordinators() -> list[Provider[CoordinatorContext, ITransactionCoordinator]]:
    """Return ``metadata``."""
    return [Provider(FAMILY, open_coordinator, MetadataCoordinator, _FAMILIES, CoordinatorOptions)]


def buffers() -> list[Provider[SegmentContext, ITransactionBuffer]]:
    """Return ``metadata``."""
    return [Provider(FAMILY, open_buffer, MetadataBuffer, _FAMILIES, BufferOptions)]


def pending_ack_stores() -> list[Provider[SubscriptionContext, IPendingAckStore]]:
    """Return ``metadata``."""
    return [Provider(FAMILY, open_pending_acks, MetadataPendingAcks, _FAMILIES, PendingAckOptions)]

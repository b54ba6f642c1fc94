"""
Plugin hooks of the coordinator, transaction buffer and pending-ack store ``metadata``.

Each hook imports its implementation itself, because the command line does not need the implementations to list
commands.
"""

from __future__ import annotations

from txnframework.interfaces import IPendingAckStore, ITransactionBuffer, ITransactionCoordinator
from txnframework.model.ids import METADATA_FAMILY
from txnframework.plugin import CoordinatorContext, Provider, SegmentContext, SubscriptionContext, hookimpl

_FAMILIES = frozenset({METADATA_FAMILY})


@hookimpl
def txnframework_coordinators() -> list[Provider[CoordinatorContext, ITransactionCoordinator]]:
    """Provide the coordinator ``metadata``; opening it reads nothing."""
    from txnframework_metadata.coordinator.coordinator import MetadataCoordinator
    from txnframework_metadata.options import CoordinatorOptions

    async def open_coordinator(context: CoordinatorContext) -> ITransactionCoordinator:
        return MetadataCoordinator(context)

    return [Provider(METADATA_FAMILY, open_coordinator, MetadataCoordinator, _FAMILIES, CoordinatorOptions)]


@hookimpl
def txnframework_buffers() -> list[Provider[SegmentContext, ITransactionBuffer]]:
    """Provide the transaction buffer ``metadata``; a buffer recovers when it is first used."""
    from txnframework_metadata.buffer.buffer import MetadataBuffer
    from txnframework_metadata.options import BufferOptions

    async def open_buffer(context: SegmentContext) -> ITransactionBuffer:
        return MetadataBuffer(context)

    return [Provider(METADATA_FAMILY, open_buffer, MetadataBuffer, _FAMILIES, BufferOptions)]


@hookimpl
def txnframework_pending_ack_stores() -> list[Provider[SubscriptionContext, IPendingAckStore]]:
    """Provide the pending-ack store ``metadata``."""
    from txnframework_metadata.options import PendingAckOptions
    from txnframework_metadata.pending_acks.store import MetadataPendingAcks

    async def open_pending_acks(context: SubscriptionContext) -> IPendingAckStore:
        return MetadataPendingAcks(context)

    return [Provider(METADATA_FAMILY, open_pending_acks, MetadataPendingAcks, _FAMILIES, PendingAckOptions)]

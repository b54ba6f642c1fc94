"""
The hooks: coordinator, transaction buffer and pending-ack store ``metadata``.

Each imports what it provides, which the command line does not need to list commands.
"""

from __future__ import annotations

from txnframework.interfaces import IPendingAckStore, ITransactionBuffer, ITransactionCoordinator
from txnframework.plugin import CoordinatorContext, Provider, SegmentContext, SubscriptionContext, hookimpl


@hookimpl
def txnframework_coordinators() -> list[Provider[CoordinatorContext, ITransactionCoordinator]]:
    """Provide ``metadata``."""
    from txnframework_metadata._providers import coordinators

    return coordinators()


@hookimpl
def txnframework_buffers() -> list[Provider[SegmentContext, ITransactionBuffer]]:
    """Provide ``metadata``."""
    from txnframework_metadata._providers import buffers

    return buffers()


@hookimpl
def txnframework_pending_ack_stores() -> list[Provider[SubscriptionContext, IPendingAckStore]]:
    """Provide ``metadata``."""
    from txnframework_metadata._providers import pending_ack_stores

    return pending_ack_stores()

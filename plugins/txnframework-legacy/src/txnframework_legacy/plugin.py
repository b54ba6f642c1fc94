"""
Plugin hooks: coordinator and pending-ack store ``log``, transaction buffer ``marker``, and the batching commands.

Each hook imports its implementation itself, so that listing commands on the command line does not import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnframework.interfaces import IPendingAckStore, ITransactionBuffer, ITransactionCoordinator
from txnframework.model.ids import LOG_FAMILY
from txnframework.plugin import (
    Command,
    CoordinatorContext,
    Provider,
    SegmentContext,
    SubscriptionContext,
    hookimpl,
)

if TYPE_CHECKING:
    import click

_FAMILIES = frozenset({LOG_FAMILY})


@hookimpl
def txnframework_coordinators() -> list[Provider[CoordinatorContext, ITransactionCoordinator]]:
    """Provide the coordinator ``log``; each log is read when it is first used."""
    from txnframework_legacy.coordinator.coordinator import LogCoordinator
    from txnframework_legacy.options import CoordinatorOptions

    async def open_coordinator(context: CoordinatorContext) -> ITransactionCoordinator:
        return LogCoordinator(context)

    return [Provider("log", open_coordinator, LogCoordinator, _FAMILIES, CoordinatorOptions)]


@hookimpl
def txnframework_buffers() -> list[Provider[SegmentContext, ITransactionBuffer]]:
    """Provide the buffer ``marker``; a buffer recovers when it is first used."""
    from txnframework_legacy.buffer.buffer import MarkerBuffer
    from txnframework_legacy.options import BufferOptions

    async def open_buffer(context: SegmentContext) -> ITransactionBuffer:
        return MarkerBuffer(context)

    return [Provider("marker", open_buffer, MarkerBuffer, _FAMILIES, BufferOptions)]


@hookimpl
def txnframework_pending_ack_stores() -> list[Provider[SubscriptionContext, IPendingAckStore]]:
    """
    Provide the pending-ack store ``log``; the stores that one provider opens share their watches on batching switches.
    """
    from txnframework_legacy.log.switches import LogKind, SwitchWatchers
    from txnframework_legacy.options import PendingAckOptions
    from txnframework_legacy.pending_acks.store import LogPendingAcks

    switches = SwitchWatchers(LogKind.PENDING_ACKS)

    async def open_pending_acks(context: SubscriptionContext) -> IPendingAckStore:
        return LogPendingAcks(context, switches)

    return [Provider("log", open_pending_acks, LogPendingAcks, _FAMILIES, PendingAckOptions)]


@hookimpl
def txnframework_commands() -> list[Command]:
    """Return the commands; click is imported when a command is used."""
    group = "transaction"
    return [
        Command("log-batching", "Enable or disable batching in the transaction logs.", _log_batching, group),
        Command(
            "pending-ack-batching",
            "Enable or disable batching in the logs of pending acknowledgments.",
            _pending_ack_batching,
            group,
        ),
    ]


def _log_batching() -> click.Command:
    from txnframework_legacy.command import log_batching

    return log_batching


def _pending_ack_batching() -> click.Command:
    from txnframework_legacy.command import pending_ack_batching

    return pending_ack_batching

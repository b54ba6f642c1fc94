"""
The hooks: coordinator and pending-ack store ``log``, transaction buffer ``marker``, and what switches batching.

Each imports what it provides, which the command line does not need to list commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnframework.interfaces import IPendingAckStore, ITransactionBuffer, ITransactionCoordinator
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


@hookimpl
def txnframework_coordinators() -> list[Provider[CoordinatorContext, ITransactionCoordinator]]:
    """Provide ``log``."""
    from txnframework_legacy._providers import coordinators

    return coordinators()


@hookimpl
def txnframework_buffers() -> list[Provider[SegmentContext, ITransactionBuffer]]:
    """Provide ``marker``."""
    from txnframework_legacy._providers import buffers

    return buffers()


@hookimpl
def txnframework_pending_ack_stores() -> list[Provider[SubscriptionContext, IPendingAckStore]]:
    """Provide ``log``."""
    from txnframework_legacy._providers import pending_ack_stores

    return pending_ack_stores()


@hookimpl
def txnframework_commands() -> list[Command]:
    """Return the commands; click is imported when one is used."""
    group = "transaction"
    return [
        Command("log-batching", "Let records of the transaction logs share entries.", _log_batching, group),
        Command(
            "pending-ack-batching",
            "Let records of the logs of pending acknowledgments share entries.",
            _pending_ack_batching,
            group,
        ),
    ]


def _log_batching() -> click.Command:
    from txnframework_legacy.administration.command import log_batching

    return log_batching


def _pending_ack_batching() -> click.Command:
    from txnframework_legacy.administration.command import pending_ack_batching

    return pending_ack_batching

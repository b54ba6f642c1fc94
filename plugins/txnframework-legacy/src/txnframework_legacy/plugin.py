"""The hooks: nothing yet, as a domain's three plugins are installed together or not at all, and not all are written."""

from __future__ import annotations

from txnframework.interfaces import ITransactionCoordinator
from txnframework.plugin import CoordinatorContext, Provider, hookimpl


@hookimpl
def txnframework_coordinators() -> list[Provider[CoordinatorContext, ITransactionCoordinator]]:
    """Provide none so far."""
    return []

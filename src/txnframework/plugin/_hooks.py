"""
The hooks by which a distribution declares its plugins.

pluggy finds plugins, and zope interfaces specify roles: a hook returns providers, and the role's interface says
everything else. Every hook is called once, while the plugins are loaded and before anything is opened, and must do no
I/O. Two providers of one role with the same name are an error that names both distributions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from txnframework.interfaces import (
        IDispatcher,
        ILedgerStore,
        IMetadataStore,
        IObserver,
        IPendingAckStore,
        ITransactionBuffer,
        ITransactionCoordinator,
    )
    from txnframework.plugin._contexts import (
        CoordinatorContext,
        DispatcherContext,
        ObserverContext,
        SegmentContext,
        StoreContext,
        SubscriptionContext,
    )
    from txnframework.plugin._providers import Command, EmbeddedServer, Provider

GROUP = "txnframework"
"""pluggy's project name, and the entry-point group in which plugins are found."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def txnframework_metadata_stores() -> Iterable[Provider[StoreContext, IMetadataStore]]:  # type: ignore[empty-body]
    """Return metadata stores; the name is the URL scheme."""


@hookspec
def txnframework_ledger_stores() -> Iterable[Provider[StoreContext, ILedgerStore]]:  # type: ignore[empty-body]
    """Return ledger stores; the name is the URL scheme."""


@hookspec
def txnframework_coordinators() -> Iterable[Provider[CoordinatorContext, ITransactionCoordinator]]:  # type: ignore[empty-body]
    """Return transaction coordinators, each with its family."""


@hookspec
def txnframework_buffers() -> Iterable[Provider[SegmentContext, ITransactionBuffer]]:  # type: ignore[empty-body]
    """Return transaction buffers, each with the families of the coordinators that it works with."""


@hookspec
def txnframework_pending_ack_stores() -> Iterable[Provider[SubscriptionContext, IPendingAckStore]]:  # type: ignore[empty-body]
    """Return pending-ack stores, each with the families of the coordinators that it works with."""


@hookspec
def txnframework_dispatchers() -> Iterable[Provider[DispatcherContext, IDispatcher]]:  # type: ignore[empty-body]
    """Return dispatchers; the name is the subscription type that clients request."""


@hookspec
def txnframework_observers() -> Iterable[Provider[ObserverContext, IObserver]]:  # type: ignore[empty-body]
    """Return observers; ``[observers.NAME]`` in the configuration enables one."""


@hookspec
def txnframework_commands() -> Iterable[Command]:  # type: ignore[empty-body]
    """Return commands for the command line; click is imported by ``Command.load``, not before."""


@hookspec
def txnframework_servers() -> Iterable[EmbeddedServer]:  # type: ignore[empty-body]
    """Return servers that commands and tests can start; ``EmbeddedServer.launch`` imports what a server needs."""

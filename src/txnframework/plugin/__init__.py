"""
Plugins: what their authors need, and the registry that finds them.

A plugin is a distribution with an entry point in the group ``txnframework`` that names a module::

    [project]
    name = "txnframework-example"
    dependencies = ["txnframework>=0.1.0,<0.2"]

    [project.entry-points.txnframework]
    example = "txnframework_example.plugin"

The module declares the plugins of the distribution, with one hook for each role::

    from txnframework.interfaces import IMetadataStore
    from txnframework.plugin import Provider, StoreContext, hookimpl, options_as
    from txnframework_example.store import ExampleOptions, ExampleStore

    async def open_store(context: StoreContext) -> IMetadataStore:
        options = options_as(context.options, ExampleOptions)  # a msgspec.Struct
        return await ExampleStore.connect(context.url, options, context.environment)

    @hookimpl
    def txnframework_metadata_stores() -> list[Provider[StoreContext, IMetadataStore]]:
        return [Provider("example", open_store, ExampleStore, options=ExampleOptions)]

The class names its role with ``@zope.interface.implementer(IMetadataStore)``; the role's docstring in
``txnframework.interfaces`` is its specification. A stronger guarantee is declared by a marker sub-interface in the
same place. ``txnframework plugins`` then lists it, and ``url = "example://..."`` in the configuration uses it.

The other hooks are ``txnframework_ledger_stores``, ``txnframework_coordinators``, ``txnframework_buffers``,
``txnframework_pending_ack_stores``, ``txnframework_dispatchers``, ``txnframework_commands``, which returns ``Command``
values, and ``txnframework_servers``, which returns ``EmbeddedServer`` values. A hook is called while plugins are
loaded, and must do no I/O. The command line lists commands without calling the other hooks. So a hook should itself
import the modules that only it needs, such as a driver.
"""

from __future__ import annotations

from txnframework.plugin._appender import AbortRetention, Admission, AppendingAdmission, SegmentAppender
from txnframework.plugin._contexts import (
    CoordinatorContext,
    DispatcherContext,
    ObserverContext,
    SegmentContext,
    StoreContext,
    SubscriptionContext,
    TransactionsSection,
    options_as,
)
from txnframework.plugin._contract import verify_provider
from txnframework.plugin._discovery import load_commands, load_plugins
from txnframework.plugin._errors import Origin, foreign_data
from txnframework.plugin._hooks import GROUP, hookimpl
from txnframework.plugin._leases import HEARTBEATS, MARGIN, SESSION_TTL_MS, SessionLease, SessionTtlMs, SessionValidity
from txnframework.plugin._providers import Command, EmbeddedServer, Provider, Role, Server, ServerMember
from txnframework.plugin._registry import PluginDescription, PluginRegistry, RegisteredCommand
from txnframework.plugin._txn_ids import SharedTransactionIds, TransactionIds

__all__ = [
    "GROUP",
    "HEARTBEATS",
    "MARGIN",
    "SESSION_TTL_MS",
    "AbortRetention",
    "Admission",
    "AppendingAdmission",
    "Command",
    "CoordinatorContext",
    "DispatcherContext",
    "EmbeddedServer",
    "ObserverContext",
    "Origin",
    "PluginDescription",
    "PluginRegistry",
    "Provider",
    "RegisteredCommand",
    "Role",
    "SegmentAppender",
    "SegmentContext",
    "Server",
    "ServerMember",
    "SessionLease",
    "SessionTtlMs",
    "SessionValidity",
    "SharedTransactionIds",
    "StoreContext",
    "SubscriptionContext",
    "TransactionIds",
    "TransactionsSection",
    "foreign_data",
    "hookimpl",
    "load_commands",
    "load_plugins",
    "options_as",
    "verify_provider",
]

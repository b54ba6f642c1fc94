"""The plugin hook: one dispatcher for each subscription type."""

from __future__ import annotations

from txnframework.interfaces import IDispatcher
from txnframework.plugin import DispatcherContext, Provider, hookimpl
from txnframework_dispatchers._shared import KeySharedDispatcher, SharedDispatcher, open_key_shared, open_shared
from txnframework_dispatchers._single_active import (
    ExclusiveDispatcher,
    FailoverDispatcher,
    open_exclusive,
    open_failover,
)


@hookimpl
def txnframework_dispatchers() -> list[Provider[DispatcherContext, IDispatcher]]:
    """Provide all dispatchers of this distribution."""
    return [
        Provider("exclusive", open_exclusive, ExclusiveDispatcher),
        Provider("failover", open_failover, FailoverDispatcher),
        Provider("shared", open_shared, SharedDispatcher),
        Provider("key_shared", open_key_shared, KeySharedDispatcher),
    ]

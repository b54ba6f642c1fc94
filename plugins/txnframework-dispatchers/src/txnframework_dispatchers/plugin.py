"""The hooks: ``exclusive`` and ``shared``."""

from __future__ import annotations

from txnframework.interfaces import IDispatcher
from txnframework.plugin import DispatcherContext, Provider, hookimpl
from txnframework_dispatchers._exclusive import ExclusiveDispatcher, open_exclusive
from txnframework_dispatchers._shared import SharedDispatcher, open_shared


@hookimpl
def txnframework_dispatchers() -> list[Provider[DispatcherContext, IDispatcher]]:
    """Provide both."""
    return [
        Provider("exclusive", open_exclusive, ExclusiveDispatcher),
        Provider("shared", open_shared, SharedDispatcher),
    ]

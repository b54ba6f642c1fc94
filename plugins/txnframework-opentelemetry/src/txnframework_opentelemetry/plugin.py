"""The plugin hook: the observer ``opentelemetry``."""

from __future__ import annotations

from txnframework.interfaces import IObserver
from txnframework.plugin import ObserverContext, Provider, hookimpl
from txnframework_opentelemetry._options import ObserverOptions
from txnframework_opentelemetry._spans import TracingObserver, open_observer


@hookimpl
def txnframework_observers() -> list[Provider[ObserverContext, IObserver]]:
    """Provide the observer of this distribution."""
    return [Provider("opentelemetry", open_observer, TracingObserver, options=ObserverOptions)]

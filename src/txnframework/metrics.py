"""
Metrics of a process, in Prometheus' terms.

::

    from prometheus_client import start_http_server

    metrics = Metrics()
    start_http_server(9464, registry=metrics.registry)
    async with txnframework.open("txnframework.toml", metrics=metrics) as client:
        ...

Needs the extra ``metrics``. Without a ``Metrics`` nothing is measured, at no cost. The state of the stores, such as the
number of open transactions, belongs to no single process: ``txnframework metrics`` exports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from txnframework.errors import MissingExtra
from txnframework.instruments import LATENCY_BUCKETS_S

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
except ImportError as error:
    raise MissingExtra("txnframework.metrics", "metrics", "prometheus_client") from error

M = TypeVar("M", Counter, Gauge, Histogram)


class Metrics:
    """
    Metric families of one registry by name; the first request for a family creates it, so that several hosts may share
    it.

    ``registry``: the registry that collects the metrics; by default a new one.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._families: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str, description: str, labels: Sequence[str] = ()) -> Counter:
        """Return the counter of that name; ``name`` ends with ``_total``."""
        return self._family(Counter, name, lambda: Counter(name, description, labels, registry=self.registry))

    def gauge(self, name: str, description: str, labels: Sequence[str] = ()) -> Gauge:
        """Return the gauge of that name."""
        return self._family(Gauge, name, lambda: Gauge(name, description, labels, registry=self.registry))

    def histogram(
        self,
        name: str,
        description: str,
        labels: Sequence[str] = (),
        bounds: Sequence[float] = LATENCY_BUCKETS_S,
    ) -> Histogram:
        """
        Return the histogram of that name; ``bounds``: upper bounds of its buckets, in the unit that the name contains.
        """
        return self._family(
            Histogram, name, lambda: Histogram(name, description, labels, buckets=bounds, registry=self.registry)
        )

    def _family(self, kind: type[M], name: str, make: Callable[[], M]) -> M:
        known: Any = self._families.get(name)
        if known is None:
            known = self._families[name] = make()
        if not isinstance(known, kind):
            raise ValueError(f"{name} is a {type(known).__name__.lower()} already, not a {kind.__name__.lower()}")
        return known

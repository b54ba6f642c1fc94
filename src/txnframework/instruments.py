"""
What records numbers: counters, gauges and histograms by name.

``txnframework.metrics.Metrics`` implements this for Prometheus, and plugins may implement it for other systems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, Self

LATENCY_BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds in seconds; they distinguish an in-memory store, a database nearby and one that is far away."""


class Counter(Protocol):
    """A number that only grows."""

    def labels(self, *values: str) -> Self:
        """Return the counter for these values of its labels, in their order."""

    def inc(self, amount: float = 1) -> None:
        """Add ``amount``."""


class Gauge(Protocol):
    """A number that goes up and down."""

    def labels(self, *values: str) -> Self:
        """Return the gauge for these values of its labels, in their order."""

    def set(self, value: float) -> None:
        """Set the number."""


class Histogram(Protocol):
    """The distribution of numbers."""

    def labels(self, *values: str) -> Self:
        """Return the histogram for these values of its labels, in their order."""

    def observe(self, amount: float) -> None:
        """Add a number."""


class Instruments(Protocol):
    """Instruments by name; the first request for a name creates it, so that several hosts may share it."""

    def counter(self, name: str, description: str, labels: Sequence[str] = ()) -> Counter:
        """Return the counter of that name; ``name`` ends with ``_total``."""

    def gauge(self, name: str, description: str, labels: Sequence[str] = ()) -> Gauge:
        """Return the gauge of that name."""

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

"""Counters, gauges and histograms of a meter of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from opentelemetry.metrics import Meter, get_meter

from txnframework.instruments import LATENCY_BUCKETS_S, Counter, Gauge, Histogram

NAME = "txnframework"

_UNITS = {"seconds": "s", "bytes": "By", "messages": "{message}"}

I = TypeVar("I")  # noqa: E741


class _Labelled:
    """A number with values of its labels, which are attributes in OpenTelemetry."""

    def __init__(
        self, record: Callable[[float, dict[str, str]], None], names: Sequence[str], values: Sequence[str] = ()
    ) -> None:
        self._record = record
        self._names = tuple(names)
        self._attributes = dict(zip(self._names, values, strict=False))

    def labels(self, *values: str) -> Self:
        """Return the instrument for these values of its labels, in their order."""
        return type(self)(self._record, self._names, values)

    def _note(self, number: float) -> None:
        self._record(number, self._attributes)


class _Counter(_Labelled):
    """A number that only grows."""

    def inc(self, amount: float = 1) -> None:
        """Add ``amount``."""
        self._note(amount)


class _Gauge(_Labelled):
    """A number that goes up and down."""

    def set(self, value: float) -> None:
        """Set the number."""
        self._note(value)


class _Histogram(_Labelled):
    """The distribution of numbers."""

    def observe(self, amount: float) -> None:
        """Add a number."""
        self._note(amount)


class OpenTelemetryInstruments:
    """
    Instruments of a meter by name; usable as ``metrics`` of ``txnframework.open`` too.

    ``meter``: by default that of the global provider. A counter's name has no ``_total`` here, because exporters to
    Prometheus add it.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = get_meter(NAME) if meter is None else meter
        self._known: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str, description: str, labels: Sequence[str] = ()) -> Counter:
        """Return the counter of that name; ``name`` ends with ``_total``."""
        shown = name.removesuffix("_total")
        return self._once(
            name, lambda: _Counter(self._meter.create_counter(shown, _unit(shown), description).add, labels)
        )

    def gauge(self, name: str, description: str, labels: Sequence[str] = ()) -> Gauge:
        """Return the gauge of that name."""
        return self._once(name, lambda: _Gauge(self._meter.create_gauge(name, _unit(name), description).set, labels))

    def histogram(
        self,
        name: str,
        description: str,
        labels: Sequence[str] = (),
        bounds: Sequence[float] = LATENCY_BUCKETS_S,
    ) -> Histogram:
        """Return the histogram of that name; ``bounds`` are advice to the SDK."""

        def made() -> _Histogram:
            created = self._meter.create_histogram(
                name, _unit(name), description, explicit_bucket_boundaries_advisory=list(bounds)
            )
            return _Histogram(created.record, labels)

        return self._once(name, made)

    def _once(self, name: str, make: Callable[[], I]) -> I:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = make()  # type: ignore[assignment]
        return known  # type: ignore[return-value]


def _unit(name: str) -> str:
    """Return the unit that a name ends with, as OpenTelemetry writes it."""
    return _UNITS.get(name.rpartition("_")[2], "")

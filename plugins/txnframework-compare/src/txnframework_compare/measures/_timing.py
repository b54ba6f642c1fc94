"""Durations in milliseconds, and their statistics."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Sequence


async def timed_ms(work: Awaitable[object]) -> float:
    """Return the duration of ``work`` in milliseconds."""
    begun = time.perf_counter()
    await work
    return (time.perf_counter() - begun) * 1e3


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile; with fewer than 100 values, the largest."""
    return statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) >= 100 else max(values)

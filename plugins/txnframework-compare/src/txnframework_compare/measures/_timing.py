"""Time, in milliseconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Sequence


async def timed_ms(work: Awaitable[object]) -> float:
    """Return how long ``work`` takes."""
    begun = time.perf_counter()
    await work
    return (time.perf_counter() - begun) * 1e3


def median(values: Sequence[float]) -> float:
    """Return the one in the middle."""
    return statistics.median(values)


def p99(values: Sequence[float]) -> float:
    """Return what 99 of 100 do not exceed; of fewer, the largest."""
    return statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) >= 100 else max(values)

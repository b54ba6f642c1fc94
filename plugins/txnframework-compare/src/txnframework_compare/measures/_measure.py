"""
The structure of a measure: a function over an opened system, and the display of its figures.

Also the measuring of durations.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from txnframework_compare.system import System, Workload


@dataclass(frozen=True, slots=True)
class NotMeasurable:
    """The value of a figure that the family cannot provide, with the reason."""

    why: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, with its unit."""

    name: str
    value: float | NotMeasurable
    unit: str


TakeMeasure = Callable[[System, int], Awaitable[tuple[Figure, ...]]]
"""Measures a system once at one size; each call returns figures with the same names."""


@dataclass(frozen=True, slots=True)
class TableView:
    """
    One table: figures under a title, and one sentence that explains it.

    A measure with sizes shows one figure, with a column for each size. A measure without sizes has a column for each
    figure, with the title mapped to it in ``figures``. ``compared``: values are also shown as a multiple of the first
    family's.
    """

    title: str
    figures: Mapping[str, str]
    explanation: str
    compared: bool = True


@dataclass(frozen=True, slots=True)
class Plot:
    """
    One picture: ``lines`` of one figure over the sizes, ``dots`` of each figure, or ``stacks`` of them.

    ``figures`` maps each figure to its name in the legend. ``label`` is the label of the value axis, with its unit.
    """

    kind: Literal["lines", "dots", "stacks"]
    figures: Mapping[str, str]
    label: str


@dataclass(frozen=True, slots=True)
class Measure:
    """
    A measurement that is taken for every family.

    ``sizes`` returns the workload's sizes for the measure, smallest first. ``axis`` names the unit of the sizes, or is
    None without sizes. ``transactions``: the options that the measure sets in the configuration section
    ``[transactions]``.
    """

    name: str
    title: str
    take: TakeMeasure
    views: tuple[TableView, ...]
    plot: Plot
    axis: str | None = None
    sizes: Callable[[Workload], tuple[int, ...]] = lambda _: (1,)
    transactions: Mapping[str, object] = field(default_factory=dict)


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

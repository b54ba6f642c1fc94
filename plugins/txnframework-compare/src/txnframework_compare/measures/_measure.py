"""What a measure is: a function over an opened system, and how what it returns is shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from txnframework_compare.system import System
from txnframework_compare.workload import Workload


@dataclass(frozen=True, slots=True)
class Unable:
    """Stands where a number would: what the family cannot do, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured, with its unit."""

    name: str
    value: float | Unable
    unit: str


Take = Callable[[System, int], Awaitable[tuple[Figure, ...]]]
"""Measures a system once at one size; returns figures of the same names each time."""


@dataclass(frozen=True, slots=True)
class View:
    """
    One table: figures under a title, and one sentence that says what it shows.

    A measure of several sizes shows one figure, a column for each size; one without sizes a column for each figure,
    under the name that stands beside it. ``compared``: each family also as a multiple of the first one.
    """

    title: str
    figures: Mapping[str, str]
    says: str
    compared: bool = True


@dataclass(frozen=True, slots=True)
class Plot:
    """
    One picture: ``lines`` of one figure over the sizes, ``dots`` of each figure, or ``stacks`` of them.

    Beside each figure stands its name in the legend. ``label`` is that of the value's axis, with its unit.
    """

    kind: Literal["lines", "dots", "stacks"]
    figures: Mapping[str, str]
    label: str


@dataclass(frozen=True, slots=True)
class Measure:
    """
    Something that every family is measured for.

    ``sizes`` are those of the workload that it is taken at, smallest first, and ``axis`` what they count; None: it has
    no sizes. ``transactions``: what it asks of that section of the configuration.
    """

    name: str
    title: str
    take: Take
    views: tuple[View, ...]
    plot: Plot
    axis: str | None = None
    sizes: Callable[[Workload], tuple[int, ...]] = lambda _: (1,)
    transactions: Mapping[str, object] = field(default_factory=dict)

"""The structure of a measure: a function over an opened system, and how its figures are shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from txnframework_compare.system import System
from txnframework_compare.workload import Workload


@dataclass(frozen=True, slots=True)
class Unable:
    """The value of a figure that the family cannot provide, with the reason."""

    why: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, with its unit."""

    name: str
    value: float | Unable
    unit: str


Take = Callable[[System, int], Awaitable[tuple[Figure, ...]]]
"""Measures a system once at one size; each call returns figures with the same names."""


@dataclass(frozen=True, slots=True)
class View:
    """
    One table: figures under a title, and one sentence that explains it.

    A measure with sizes shows one figure, with a column for each size. A measure without sizes has a column for each
    figure, with the title mapped to it in ``figures``. ``compared``: values are also shown as a multiple of the first
    family's.
    """

    title: str
    figures: Mapping[str, str]
    says: str
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
    One thing that is measured for every family.

    ``sizes`` returns the workload's sizes for it, smallest first, and ``axis`` is what they count; None if it has no
    sizes. ``transactions`` are the options that it sets in that configuration section.
    """

    name: str
    title: str
    take: Take
    views: tuple[View, ...]
    plot: Plot
    axis: str | None = None
    sizes: Callable[[Workload], tuple[int, ...]] = lambda _: (1,)
    transactions: Mapping[str, object] = field(default_factory=dict)

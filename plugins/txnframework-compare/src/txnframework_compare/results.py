"""Results: figures by measure, size and family, with a value for each round."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from txnframework_compare.families import Family
from txnframework_compare.measures import Figure, Measure, Unable


@dataclass(frozen=True, slots=True)
class Taken:
    """One figure over all rounds. If it could not be measured, ``rounds`` is empty and ``unable`` gives the reason."""

    name: str
    unit: str
    rounds: tuple[float, ...]
    unable: str | None = None

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of a family at one size. If it cannot be measured, there are none and ``unable`` gives the reason."""

    family: Family
    size: int
    figures: Mapping[str, Taken]
    unable: str | None = None

    def figure(self, name: str) -> Taken:
        """Return a figure; if the family cannot be measured, the figure has the reason instead of rounds."""
        return self.figures.get(name) or Taken(name, "", (), self.unable or "it was not measured")


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure of all families: sizes ascending, families in the order of display."""

    measure: Measure
    sizes: tuple[int, ...]
    results: tuple[Result, ...]

    def of(self, family: Family) -> dict[int, Result]:
        """Return a family's results by size."""
        return {one.size: one for one in self.results if one.family is family}


def result_of(family: Family, size: int, rounds: Iterable[tuple[Figure, ...]]) -> Result:
    """Combine the figures of several rounds. A figure that failed in one round counts as not measured."""
    by_name: dict[str, list[Figure]] = {}
    for figures in rounds:
        for figure in figures:
            by_name.setdefault(figure.name, []).append(figure)
    return Result(family, size, {name: _taken(name, figures) for name, figures in by_name.items()})


def _taken(name: str, figures: list[Figure]) -> Taken:
    values = tuple(one.value for one in figures if not isinstance(one.value, Unable))
    unable = next((one.value.why for one in figures if isinstance(one.value, Unable)), None)
    return Taken(name, figures[0].unit, () if unable else values, unable)

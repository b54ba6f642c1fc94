"""What was measured: figures by measure, size and family, a value for each round."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from txnframework_compare.families import Family
from txnframework_compare.measures import Figure, Measure, Unable


@dataclass(frozen=True, slots=True)
class Taken:
    """One figure over all rounds; ``rounds`` is empty if it could not be taken, and ``unable`` says why."""

    name: str
    unit: str
    rounds: tuple[float, ...]
    unable: str | None = None

    @property
    def median(self) -> float:
        """The one in the middle."""
        return statistics.median(self.rounds)


@dataclass(frozen=True, slots=True)
class Result:
    """What a family was measured to at one size; no figures where it cannot be measured, and ``unable`` says why."""

    family: Family
    size: int
    figures: Mapping[str, Taken]
    unable: str | None = None

    def figure(self, name: str) -> Taken:
        """Return a figure, of a family that cannot be measured too."""
        return self.figures.get(name) or Taken(name, "", (), self.unable or "it was not measured")


@dataclass(frozen=True, slots=True)
class Measured:
    """A measure of all families, sizes ascending, families in their order."""

    measure: Measure
    sizes: tuple[int, ...]
    results: tuple[Result, ...]

    def of(self, family: Family) -> dict[int, Result]:
        """Return a family's results by size."""
        return {one.size: one for one in self.results if one.family is family}


def result_of(family: Family, size: int, rounds: Iterable[tuple[Figure, ...]]) -> Result:
    """Unite the figures of several rounds; one that could not be taken in one of them was not taken."""
    by_name: dict[str, list[Figure]] = {}
    for figures in rounds:
        for figure in figures:
            by_name.setdefault(figure.name, []).append(figure)
    return Result(family, size, {name: _taken(name, figures) for name, figures in by_name.items()})


def _taken(name: str, figures: list[Figure]) -> Taken:
    values = tuple(one.value for one in figures if not isinstance(one.value, Unable))
    unable = next((one.value.why for one in figures if isinstance(one.value, Unable)), None)
    return Taken(name, figures[0].unit, () if unable else values, unable)

"""
Taking measures, and their results: figures by measure, size and family, with a value for each round.

The families alternate in each round, so that a slow phase of the machine affects all of them.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

from txnframework.errors import EndTransactionTimeout
from txnframework.plugin import PluginRegistry
from txnframework_compare.backends import Backend
from txnframework_compare.families import Family
from txnframework_compare.measures import Figure, Measure, NotMeasurable
from txnframework_compare.system import System, Workload, opened_system


@dataclass(frozen=True, slots=True)
class FigureResult:
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
class FamilyResult:
    """The figures of a family at one size. If it cannot be measured, there are none and ``unable`` gives the reason."""

    family: Family
    size: int
    figures: Mapping[str, FigureResult]
    unable: str | None = None

    def figure(self, name: str) -> FigureResult:
        """Return a figure; if the family cannot be measured, the figure has the reason instead of rounds."""
        return self.figures.get(name) or FigureResult(name, "", (), self.unable or "not measured")


@dataclass(frozen=True, slots=True)
class MeasureResults:
    """One measure of all families: sizes ascending, families in the order of display."""

    measure: Measure
    sizes: tuple[int, ...]
    results: tuple[FamilyResult, ...]

    def of(self, family: Family) -> dict[int, FamilyResult]:
        """Return a family's results by size."""
        return {one.size: one for one in self.results if one.family is family}


def result_of(family: Family, size: int, rounds: Iterable[tuple[Figure, ...]]) -> FamilyResult:
    """Combine the figures of several rounds. A figure that failed in one round counts as not measured."""
    by_name: dict[str, list[Figure]] = {}
    for figures in rounds:
        for figure in figures:
            by_name.setdefault(figure.name, []).append(figure)
    return FamilyResult(family, size, {name: _taken(name, figures) for name, figures in by_name.items()})


def _taken(name: str, figures: list[Figure]) -> FigureResult:
    values = tuple(one.value for one in figures if not isinstance(one.value, NotMeasurable))
    unable = next((one.value.why for one in figures if isinstance(one.value, NotMeasurable)), None)
    return FigureResult(name, figures[0].unit, () if unable else values, unable)


class ProgressListener(Protocol):
    """Receives reports of progress."""

    def begin(self, measure: Measure, steps: int) -> None:
        """A measure begins, with this number of steps."""

    def step(self, doing: str) -> None:
        """The next step begins."""

    def end(self) -> None:
        """The measure has ended."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The families, measures, workload and backend of one comparison."""

    families: Sequence[Family]
    measures: Sequence[Measure]
    workload: Workload
    backend: Backend
    registry: PluginRegistry
    listener: ProgressListener

    async def measured(self) -> AsyncIterator[MeasureResults]:
        """Yield the results of each measure in order."""
        for measure in self.measures:
            sizes = measure.sizes(self.workload)
            self.listener.begin(measure, len(sizes) * self.workload.rounds * len(self.families))
            results = await self._results(measure, sizes)
            self.listener.end()
            yield MeasureResults(measure, sizes, results)

    async def _results(self, measure: Measure, sizes: tuple[int, ...]) -> tuple[FamilyResult, ...]:
        unable: dict[str, str] = {}
        results: list[FamilyResult] = []
        async with AsyncExitStack() as stack:
            systems: dict[str, System] = {}
            for family in self.families:
                missing = family.missing(self.registry)
                if missing is not None:
                    unable[family.name] = missing
                    continue
                # Creating stores may wait for a server, and runs an event loop of its own.
                urls = await asyncio.to_thread(self.backend.create_stores)
                opening = opened_system(family, urls, self.workload, self.registry, measure.transactions)
                systems[family.name] = await stack.enter_async_context(opening)
            for size in sizes:
                taken = await self._rounds(measure, size, systems, unable)
                for family in self.families:
                    if family.name in unable:
                        results.append(FamilyResult(family, size, {}, unable[family.name]))
                    else:
                        results.append(result_of(family, size, taken[family.name]))
        return tuple(results)

    async def _rounds(
        self, measure: Measure, size: int, systems: dict[str, System], unable: dict[str, str]
    ) -> dict[str, list[tuple[Figure, ...]]]:
        """
        Take all rounds of one size; every second round takes the families in reverse order.

        Families in ``unable`` are left out. A family whose transaction cannot be ended in time is added to it with the
        reason, and is left out for larger sizes too.
        """
        names = [family.name for family in self.families]
        taken: dict[str, list[tuple[Figure, ...]]] = {name: [] for name in names}
        for number in range(self.workload.rounds):
            for name in names if number % 2 == 0 else reversed(names):
                self.listener.step(_doing(measure, size, name, number + 1, self.workload.rounds))
                if name in unable:
                    continue
                try:
                    taken[name].append(await measure.take(systems[name], size))
                except EndTransactionTimeout as error:
                    unable[name] = str(error)
        return taken


def _doing(measure: Measure, size: int, family: str, number: int, rounds: int) -> str:
    at = "" if measure.axis is None else f", {size:,} {measure.axis}"
    return f"{family}{at}, round {number}/{rounds}"

"""Taking measures: the families alternate in each round, so that a slow phase of the machine affects all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

from txnframework.errors import EndTransactionTimeout
from txnframework.plugin import PluginRegistry
from txnframework_compare.backends import Backend
from txnframework_compare.families import Family
from txnframework_compare.measures import Figure, Measure
from txnframework_compare.results import Measured, Result, result_of
from txnframework_compare.system import System, opened
from txnframework_compare.workload import Workload


class Listener(Protocol):
    """Receives reports of progress."""

    def begin(self, measure: Measure, steps: int) -> None:
        """A measure begins, with this number of steps."""

    def step(self, doing: str) -> None:
        """The next step begins."""

    def end(self) -> None:
        """The measure has ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """The families, measures, workload and backend of one comparison."""

    families: Sequence[Family]
    measures: Sequence[Measure]
    workload: Workload
    backend: Backend
    registry: PluginRegistry
    listener: Listener

    async def measured(self) -> AsyncIterator[Measured]:
        """Yield the results of each measure in order."""
        for measure in self.measures:
            sizes = measure.sizes(self.workload)
            self.listener.begin(measure, len(sizes) * self.workload.rounds * len(self.families))
            results = await self._results(measure, sizes)
            self.listener.end()
            yield Measured(measure, sizes, results)

    async def _results(self, measure: Measure, sizes: tuple[int, ...]) -> tuple[Result, ...]:
        unable: dict[str, str] = {}
        results: list[Result] = []
        async with AsyncExitStack() as stack:
            systems: dict[str, System] = {}
            for family in self.families:
                missing = family.missing(self.registry)
                if missing is not None:
                    unable[family.name] = missing
                    continue
                # Creating a place may wait for a server, and runs an event loop of its own.
                place = await asyncio.to_thread(self.backend.place)
                opening = opened(family, place, self.workload, self.registry, measure.transactions)
                systems[family.name] = await stack.enter_async_context(opening)
            for size in sizes:
                taken = await self._rounds(measure, size, systems, unable)
                for family in self.families:
                    if family.name in unable:
                        results.append(Result(family, size, {}, unable[family.name]))
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

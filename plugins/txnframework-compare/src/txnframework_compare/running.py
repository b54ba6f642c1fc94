"""Taking measures: all families in turn, round after round, so that what is slow for a while is so for all of them."""

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
    """Is told what is being done."""

    def begin(self, measure: Measure, steps: int) -> None:
        """A measure begins, with so many steps."""

    def step(self, doing: str) -> None:
        """The next step begins."""

    def end(self) -> None:
        """The measure has ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is compared, how, and where."""

    families: Sequence[Family]
    measures: Sequence[Measure]
    workload: Workload
    backend: Backend
    registry: PluginRegistry
    listener: Listener

    async def measured(self) -> AsyncIterator[Measured]:
        """Take one measure after the other."""
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
                # Making one may wait for a server, and has an event loop of its own.
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
        Take every round of one size, every other one in the other order.

        A family that ``unable`` names is left out; one that gives up is named there, with why, for larger sizes too.
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

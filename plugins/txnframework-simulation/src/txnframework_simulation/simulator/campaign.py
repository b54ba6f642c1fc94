"""Campaigns: many seeds in several processes."""

from __future__ import annotations

import gc
import logging
import multiprocessing
from collections.abc import Generator, Iterable
from dataclasses import dataclass

from txnframework_simulation.simulator.machines import registry
from txnframework_simulation.simulator.run import run
from txnframework_simulation.simulator.scenario import Scenario, load_scenario

SEEDS_AT_A_TIME = 4


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The summary of a run in a worker process; ``repeatable`` is False if a second run differed."""

    scenario: str
    seed: int
    operations: int
    faults: int
    failed: bool
    repeatable: bool = True


def scenario_of(seed: int, scenarios: tuple[str, ...]) -> str:
    """Return which of several scenarios a seed runs."""
    return scenarios[seed % len(scenarios)]


def runs(
    seeds: Iterable[int], scenarios: tuple[str, ...], workers: int, twice: bool = False
) -> Generator[RunSummary, None, None]:
    """
    Yield the summary of each seed, in order; close the generator to stop.

    ``twice``: run each seed a second time in the same process, where memory addresses differ, and compare.

    Each worker is a new process, which inherits no memory from this one.
    """
    work = ((scenario_of(seed, scenarios), seed, twice) for seed in seeds)
    if workers == 1:
        _begin()
        yield from map(_ran, work)
        return
    with multiprocessing.get_context("spawn").Pool(workers, _begin) as pool:
        yield from pool.imap(_ran, work, SEEDS_AT_A_TIME)


def _begin() -> None:
    # Errors are expected, so they are not logged.
    logging.disable(logging.CRITICAL)
    registry()
    # Frozen objects are skipped by each collection: runs create much garbage, but loaded modules stay.
    gc.collect()
    gc.freeze()


def _ran(work: tuple[str, int, bool]) -> RunSummary:
    name, seed, twice = work
    result = run(_loaded(name), seed)
    repeatable = not twice or run(_loaded(name), seed).digest == result.digest
    return RunSummary(name, seed, result.operations, len(result.faults), bool(result.violations), repeatable)


def _loaded(name: str) -> Scenario:
    if name not in _scenarios:
        _scenarios[name] = load_scenario(name)
    return _scenarios[name]


_scenarios: dict[str, Scenario] = {}

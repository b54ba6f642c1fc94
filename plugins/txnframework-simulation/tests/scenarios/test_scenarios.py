"""The real code in simulations: whatever a seed lets go wrong, nothing is lost, doubled, torn or stuck."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain

import pytest
from failed_seeds import FAILED

from txnframework_simulation.simulator.results import describe
from txnframework_simulation.simulator.run import run
from txnframework_simulation.simulator.scenario import load_scenario, scenario_names

SEEDS = range(1, 6)
REPEATED = range(1, 2)
DIGESTS = """
from txnframework_simulation.simulator.run import run
from txnframework_simulation.simulator.scenario import load_scenario, scenario_names
for name in scenario_names():
    for seed in {seeds}:
        print(name, seed, run(load_scenario(name), seed).digest)
"""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What goes wrong is meant to: nobody reads of it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", scenario_names())
def test_seeds(name: str) -> None:
    """What clients see in any run is what was promised; the seeds that once showed otherwise are run again."""
    scenario = load_scenario(name)
    for seed in chain(SEEDS, FAILED.get(name, ())):
        result = run(scenario, seed)
        assert not result.violations, "\n".join(describe(result))


def test_failed_seeds_are_of_scenarios_that_there_are() -> None:
    """A scenario that is renamed takes its seeds along."""
    assert set(FAILED) <= set(scenario_names())


def test_one_seed_is_one_run() -> None:
    """Another process, with other hashes and addresses, does the same in every step."""
    first, second = (_digests(hash_seed) for hash_seed in ("1", "2"))
    assert first == second
    assert len(set(first)) == len(first) == len(REPEATED) * len(scenario_names())


def _digests(hash_seed: str) -> list[str]:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    program = DIGESTS.format(seeds=list(REPEATED))
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()

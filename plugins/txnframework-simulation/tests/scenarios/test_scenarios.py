"""The real code in simulations: whatever a seed lets go wrong, nothing is lost, doubled, torn or stuck."""

from __future__ import annotations

import json
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
REPEATED = 1
"""The seed of each scenario that is run again elsewhere."""
DIGESTS = """
import json
from txnframework_simulation.simulator.run import run
from txnframework_simulation.simulator.scenario import load_scenario, scenario_names
print(json.dumps({{name: run(load_scenario(name), {seed}).digest for name in scenario_names()}}))
"""
OTHER_HASHES = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hide the logs of intended failures."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def digests() -> dict[str, str]:
    """What the runs of the repeated seed in this process came to, as far as they were made."""
    return {}


@pytest.mark.parametrize("name", scenario_names())
def test_seeds(name: str, digests: dict[str, str]) -> None:
    """What clients see in any run is what was promised; the seeds that once showed otherwise are run again."""
    scenario = load_scenario(name)
    for seed in chain(SEEDS, FAILED.get(name, ())):
        result = run(scenario, seed)
        if seed == REPEATED:
            digests[name] = result.digest
        assert not result.violations, "\n".join(describe(result))


def test_failed_seeds_are_of_scenarios_that_there_are() -> None:
    """A scenario that is renamed takes its seeds along."""
    assert set(FAILED) <= set(scenario_names())


def test_one_seed_is_one_run(digests: dict[str, str]) -> None:
    """Another process, with other hashes and addresses, does the same in every step."""
    environment = os.environ | {"PYTHONHASHSEED": OTHER_HASHES}
    program = DIGESTS.format(seed=REPEATED)
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    elsewhere = json.loads(ran.stdout)
    assert elsewhere == {
        name: digests.get(name) or run(load_scenario(name), REPEATED).digest for name in scenario_names()
    }
    assert len({*elsewhere.values()}) == len(elsewhere)

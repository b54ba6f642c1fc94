"""A family of one's own under simulation, as the page on it shows."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from txnframework_simulation.simulator.run import run
from txnframework_simulation.simulator.scenario import parse_scenario

SCENARIO = """
workload = "mixture"

[options]
topics = { "persistent://public/default/ledger" = 1 }
subscriptions = [{ topic = "persistent://public/default/ledger", name = "audit" }]
actions = { transfer = 3, consume_in_transaction = 2, read = 1 }

[host.domains.persistent]
coordinator = "metadata"
buffer = "metadata"
pending_ack = "metadata"
"""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_my_family() -> None:
    """Whatever a seed lets go wrong, nothing is lost, doubled or torn."""
    scenario = parse_scenario(SCENARIO, "mine")
    for seed in range(1, 10):
        assert run(scenario, seed).violations == ()

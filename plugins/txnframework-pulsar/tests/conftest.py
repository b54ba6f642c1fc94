from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for what several of these tests have in common

from gateway_world import World

# The jars of the client for Java come from Maven, which not every machine can reach.
collect_ignore = [] if "TXN_PULSAR_JARS" in os.environ else ["test_java.py"]


@pytest.fixture(params=["topic", "persistent"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A gateway of stores in memory, for each domain of topics."""
    with World(request.param) as opened:
        yield opened


@pytest.fixture
def scalable() -> Iterator[World]:
    """A gateway of scalable topics."""
    with World("topic") as opened:
        yield opened

"""Makes the world of these tests importable: test modules are imported by path, so their folder is not on it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from txnframework.testing import WorldHarness
from txnframework.testing.world import World

sys.path.insert(0, str(Path(__file__).parent))

from test_conformance import LogFamilyInMemory


@pytest.fixture
def kind() -> type[WorldHarness]:
    """The stores and settings that most tests run with; a test names others as a parameter."""
    return LogFamilyInMemory


@pytest.fixture
async def harness(kind: type[WorldHarness], tmp_path: Path) -> AsyncIterator[WorldHarness]:
    harness = kind(tmp_path)
    yield harness
    await harness.destroy()


@pytest.fixture
async def world(harness: WorldHarness) -> AsyncIterator[World]:
    """One process over the stores."""
    async with harness.open() as world:
        yield world


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to a request what a class does not name to be run always, if it names anything."""
    for item in items:
        always = getattr(getattr(item, "cls", None), "always", None)
        if always is not None and getattr(item, "originalname", "") not in always:
            item.add_marker(pytest.mark.slow)

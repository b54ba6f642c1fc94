"""Makes the world of these tests importable: test modules are imported by path, so their folder is not on it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from txnframework.testing import WorldHarness

sys.path.insert(0, str(Path(__file__).parent))

Scenario = Callable[[WorldHarness], Awaitable[None]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[type[WorldHarness], Scenario], None]:
    def run(kind: type[WorldHarness], test: Scenario) -> None:
        async def main() -> None:
            harness = kind(tmp_path)
            async with asyncio.timeout(60):
                await test(harness)
            await harness.destroy()

        asyncio.run(main())

    return run

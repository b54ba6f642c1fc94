"""What is said while stores do not answer."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.cli._waiting import QUIET_MS, told_if_slow
from txnframework.testing.clock import VirtualEnvironment


@pytest.mark.parametrize(
    ("for_ms", "told"), [(QUIET_MS - 1, ""), (QUIET_MS, "Waiting.\n"), (10 * QUIET_MS, "Waiting.\n")]
)
def test_who_waits_is_told_once(for_ms: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Not before two seconds have passed; on standard error, where it is in no program's way."""
    environment = VirtualEnvironment()

    async def main() -> None:
        async with told_if_slow("Waiting.", environment):
            await environment.advance(for_ms)

    asyncio.run(main())
    assert capsys.readouterr() == ("", told)

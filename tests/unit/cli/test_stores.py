"""The message while stores do not answer."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.cli.stores import NOTICE_DELAY_MS, notice_if_slow
from txnframework.testing.clock import VirtualEnvironment


@pytest.mark.parametrize(
    ("for_ms", "told"),
    [(NOTICE_DELAY_MS - 1, ""), (NOTICE_DELAY_MS, "Waiting.\n"), (10 * NOTICE_DELAY_MS, "Waiting.\n")],
)
def test_who_waits_is_told_once(for_ms: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message appears once after two seconds, on standard error."""
    environment = VirtualEnvironment()

    async def main() -> None:
        async with notice_if_slow("Waiting.", environment):
            await environment.advance(for_ms)

    asyncio.run(main())
    assert capsys.readouterr() == ("", told)

"""What the options of ledgers mean for their operator."""

from __future__ import annotations

import asyncio
import logging

import pytest

from txnframework.environment import SystemEnvironment
from txnframework_nats.ledgers import NatsLedgerOptions, open_ledger_store


@pytest.mark.parametrize("sync_always", [True, False])
def test_a_warning_of_loss(url: str, caplog: pytest.LogCaptureFixture, sync_always: bool) -> None:
    """One replica is reported, unless the operator says that the server syncs each message."""

    async def main() -> None:
        options = NatsLedgerOptions(streams=1, sync_always=sync_always)
        await (await open_ledger_store(url, SystemEnvironment(), options, None)).close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert ("loss of power" in caplog.text) is not sync_always

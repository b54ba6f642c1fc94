"""Opening ledgers: messages to the operator, and missing streams."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import StoreMismatch, Unavailable
from txnframework.testing import run_ready
from txnframework_nats.ledgers import NatsLedgerOptions, open_ledger_store
from txnframework_nats.ledgers._shard import Shard


@pytest.mark.parametrize("sync_always", [True, False])
def test_a_warning_of_loss(url: str, caplog: pytest.LogCaptureFixture, sync_always: bool) -> None:
    """One replica is reported, unless the operator says that the server syncs each message."""

    async def main() -> None:
        options = NatsLedgerOptions(streams=1, sync_always=sync_always)
        await (await open_ledger_store(url, SystemEnvironment(), options, None)).close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert ("loss of power" in caplog.text) is not sync_always


@pytest.mark.parametrize("answers", [3, 1 << 30], ids=["late", "lost"])
async def test_a_stream_that_servers_do_not_know(url: str, monkeypatch: pytest.MonkeyPatch, answers: int) -> None:
    """Servers that do not know a stream yet are asked again; one that stays missing is reported."""
    describe, left = Shard.describe, iter(range(answers))

    async def not_yet(shard: Shard) -> dict[str, Any] | None:
        missing = shard.number == 1 and next(left, None) is not None
        return None if missing else await describe(shard)

    options = NatsLedgerOptions(streams=2, patience_ms=500 if answers > 3 else 60_000)
    await (await open_ledger_store(url, SystemEnvironment(), options, None)).close()
    monkeypatch.setattr(Shard, "describe", not_yet)
    opening = open_ledger_store(url, SystemEnvironment(), options, None)
    if answers > 3:
        with pytest.raises(StoreMismatch, match="is missing"):
            await opening
    else:
        await (await opening).close()


async def test_a_reading_whose_caller_is_gone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a cancelled reading is not logged as never retrieved."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    store = await open_ledger_store(url, SystemEnvironment(), NatsLedgerOptions(streams=1), None)
    await store.create("orders")
    log = (await store._log("orders")).log
    away = asyncio.Event()

    async def fail(*_: object) -> None:
        await away.wait()
        raise Unavailable("the servers are away")

    with monkeypatch.context() as patch:
        patch.setattr(log.requests, "next_at_leader", fail)
        reader = asyncio.ensure_future(log.refresh())
        await run_ready()
        reader.cancel()
        await asyncio.wait([reader])
        away.set()
        await run_ready()
    await log.refresh()
    await store.close()
    del reader  # which keeps the reading
    gc.collect()
    assert reported == []

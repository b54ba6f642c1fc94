"""The health check: both stores answer, or one error says within the time which of them does not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import txnframework
from txnframework import Client, Closed, InvalidInput, Ping, Unavailable
from txnframework.config import redact_url
from txnframework.testing import VirtualEnvironment
from txnframework_memory import MemoryLedgerStore, MemoryMetadataStore

if TYPE_CHECKING:
    from conftest import Stores


def stores_of(client: Client) -> tuple[MemoryMetadataStore, MemoryLedgerStore]:
    metadata, ledgers = client.host.metadata, client.host.ledgers
    assert isinstance(metadata, MemoryMetadataStore)
    assert isinstance(ledgers, MemoryLedgerStore)
    return metadata, ledgers


def test_both_stores_answer(stores: Stores) -> None:
    """The answer names both, and how long each took; it is the same without ``await``."""

    async def check() -> None:
        async with stores.open() as client:
            found = await client.ping()
            urls = [redact_url(url) for url in (stores.url, stores.ledger_url or stores.url)]
            assert [found.metadata_url, found.ledger_url] == urls
            assert found.metadata_ms >= 0
            assert found.ledger_ms >= 0

    stores.run(check())
    with stores.open_blocking() as client:
        assert isinstance(client.ping(timeout_ms=60_000), Ping)


async def test_a_store_that_is_cut_off(memory: Stores) -> None:
    """Is named with the reason, whichever it is; when it is back, the same client answers again."""
    async with memory.open(transactions={"sweep": False}) as client:
        for store, kind in zip(stores_of(client), ("metadata", "ledger"), strict=True):
            store.cut()
            with pytest.raises(Unavailable, match=f"^the {kind} store {memory.url} is unavailable: .* is cut off$"):
                await client.ping()
            store.restore()
            await client.ping()


async def test_a_store_that_never_answers(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the check when its time is over, also where it does not notice that the call was cancelled."""
    memory.environment = environment = VirtualEnvironment()

    async with memory.open(transactions={"sweep": False}) as client:
        released = asyncio.Event()

        async def hang(*_: object) -> None:
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    continue

        monkeypatch.setattr(stores_of(client)[0], "get", hang)
        asked = asyncio.ensure_future(client.ping(timeout_ms=2_000))
        await environment.advance(1_999)
        assert not asked.done()
        await environment.advance(1)
        with pytest.raises(Unavailable, match=f"^the metadata store {memory.url} did not answer in time$"):
            asked.result()
        released.set()


async def test_a_client_that_is_closed(memory: Stores) -> None:
    """Says so, also to a check that was waiting; what is no time is refused."""
    async with memory.open() as client:
        with pytest.raises(InvalidInput, match="timeout_ms"):
            await client.ping(timeout_ms=0)
    with pytest.raises(Closed, match="the client of"):
        await client.ping()


async def test_a_check_during_the_close(memory: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends with the client."""
    async with memory.open(client={"close_timeout_ms": 1}) as client:
        monkeypatch.setattr(stores_of(client)[1], "list_names", lambda *_: asyncio.Event().wait())
        asked = asyncio.ensure_future(client.ping(timeout_ms=3_600_000))
        await asyncio.sleep(0)
    with pytest.raises(txnframework.Closed, match="the client of"):
        await asked

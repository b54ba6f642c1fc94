"""A store that was restored from a backup is detected."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txnframework
from txnframework.errors import StoreMismatch

if TYPE_CHECKING:
    from conftest import Stores


async def test_a_metadata_store_from_a_backup(sqlite: Stores, tmp_path: Path) -> None:
    """A restored metadata store lacks ids that the ledger has: continuing would show aborted messages as committed."""
    metadata, ledger = (f"sqlite:///{tmp_path}/{name}.db" for name in ("metadata", "ledger"))
    opening: dict[str, object] = {"metadata": {"url": metadata}, "ledger": {"url": ledger}}
    async with txnframework.open(opening, registry=sqlite.registry) as client:
        await client.create_topic("orders")
    shutil.copy(tmp_path / "metadata.db", tmp_path / "backup.db")
    async with txnframework.open(opening, registry=sqlite.registry) as client:
        producer = await client.producer("orders")
        async with client.transaction() as txn:
            await producer.send(b"one", txn=txn)
    async with txnframework.open(opening, registry=sqlite.registry) as client:
        assert await sqlite.read(client, "orders") == [b"one"]
    shutil.copy(tmp_path / "backup.db", tmp_path / "metadata.db")
    with pytest.raises(StoreMismatch, match="restore from a backup") as refused:
        async with txnframework.open(opening, registry=sqlite.registry):
            pass
    assert metadata in str(refused.value)
    assert ledger in str(refused.value)


async def test_a_ledger_store_from_a_backup(sqlite: Stores, tmp_path: Path) -> None:
    """A cursor beyond the end of its segment reveals a restored ledger store when the subscription is opened."""
    metadata, ledger = (f"sqlite:///{tmp_path}/{name}.db" for name in ("metadata", "ledger"))
    opening: dict[str, object] = {"metadata": {"url": metadata}, "ledger": {"url": ledger}}
    async with txnframework.open(opening, registry=sqlite.registry) as client:
        await client.create_topic("orders")
    shutil.copy(tmp_path / "ledger.db", tmp_path / "backup.db")
    async with txnframework.open(opening, registry=sqlite.registry) as client:
        await (await client.producer("orders")).send(b"one")
        async with await client.consumer("orders", "billing", start="earliest") as consumer:
            await consumer.ack(await consumer.receive(timeout_ms=60_000))
    async with txnframework.open(opening, registry=sqlite.registry) as client:
        await (await client.consumer("orders", "billing")).close()
    shutil.copy(tmp_path / "backup.db", tmp_path / "ledger.db")
    async with txnframework.open(opening, registry=sqlite.registry) as client:
        with pytest.raises(StoreMismatch, match="billing has acknowledged"):
            await client.consumer("orders", "billing")

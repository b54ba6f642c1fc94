"""Two stores in separate files, each of which can be restored to an earlier state."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txnframework
from txnframework import Client
from txnframework.broker import RestoreReport, RestoreRequest, restore
from txnframework.config import load_config
from txnframework.errors import StoreMismatch
from txnframework.testing.clock import VirtualEnvironment

if TYPE_CHECKING:
    from conftest import ServerStores, Stores

RETENTION_MS = 60_000
SESSION_TTL_MS = 12_000
TRANSACTIONS = {"retention_ms": RETENTION_MS, "max_clock_skew_ms": 0}
Scene = Callable[[Client], Awaitable[Any]]


async def nothing(_: Client) -> None:
    """Only open and close."""


class Pair:
    """A metadata store and a ledger store in two files, each of which can be backed up and restored."""

    def __init__(self, stores: Stores, directory: Path, **sections: Any) -> None:
        self.directory = directory
        self.registry = stores.registry
        self.run = stores.run
        self.clock = VirtualEnvironment()
        self.sections = sections
        self.urls = {name: f"sqlite:///{directory}/{name}.db" for name in ("metadata", "ledger")}

    def config(self, **urls: str) -> dict[str, Any]:
        named = self.urls | urls
        return {
            "metadata": {"url": named["metadata"]},
            "ledger": {"url": named["ledger"]},
            "transactions": TRANSACTIONS | {"sweep": False},
            **self.sections,
        }

    def back_up(self, name: str) -> int:
        """Copy one of the two files, even while it is open; return the time of the copy."""
        source, copy = (sqlite3.connect(self.directory / f"{name}.{kind}") for kind in ("db", "bak"))
        source.backup(copy)
        copy.close()
        source.close()
        return self.clock.now_ms()

    def put_back(self, name: str) -> None:
        """Restore one of the two."""
        shutil.copy(self.directory / f"{name}.bak", self.directory / f"{name}.db")

    async def play(self, scene: Scene, **urls: str) -> Any:
        """Run a scene in a process of its own."""
        config = self.config(**urls)
        async with txnframework.open(config, registry=self.registry, environment=self.clock) as client:
            return await scene(client)

    async def restore(self, request: RestoreRequest, **urls: str) -> RestoreReport:
        """Restore a pair, late enough that the sessions from the time of the backup have expired."""
        await self.clock.advance(SESSION_TTL_MS)
        return await self.restore_now(request, **urls)

    async def restore_now(self, request: RestoreRequest, **urls: str) -> RestoreReport:
        config = load_config(self.config(**urls))
        return await restore(config, request, self.registry, self.clock)

    async def refused(self) -> None:
        """Assert that opening is refused."""
        with pytest.raises(StoreMismatch):
            await self.play(nothing)


class DatabasePair(Pair):
    """The same in two databases of PostgreSQL, of which either is copied while no client is connected."""

    def __init__(self, stores: ServerStores, directory: Path, **sections: Any) -> None:
        super().__init__(stores, directory, **sections)
        self._copy = stores.copy_database
        self.urls = {name: stores.create_database(name) for name in ("metadata", "ledger")}

    def back_up(self, name: str) -> int:
        self._copy(name, f"{name}_backup")
        return self.clock.now_ms()

    def put_back(self, name: str) -> None:
        self._copy(f"{name}_backup", name)

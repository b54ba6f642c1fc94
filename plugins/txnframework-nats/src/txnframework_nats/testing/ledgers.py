"""Ledgers of one prefix on a real server for each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

import nats
from msgspec.structs import replace

from txnframework.errors import TxnFrameworkError
from txnframework.interfaces import ILedgerStore
from txnframework.model import Key
from txnframework.testing import Crashing, Disconnecting, Harness, Misleading, Paired, VirtualEnvironment, run_ready
from txnframework.testing.servers.proxy import Proxy, Side
from txnframework_nats.connection._failures import ReplyLost
from txnframework_nats.ledgers import NatsLedgerOptions, NatsLedgerStore, NatsManagedLedger, open_ledger_store
from txnframework_nats.testing import remove_streams
from txnframework_nats.testing.servers.nats import shared_hosts

OPTIONS = NatsLedgerOptions(streams=2, connect_timeout_ms=2_000, request_timeout_ms=500, patience_ms=1_500)
"""With the time limits of a client that was cut off; others are as patient as a busy machine needs."""


class PassingEnvironment:
    """
    The virtual environment of a test, whose clock also lets pauses end after as much real time.

    A store pauses between two requests to a server, and that server does not know virtual time.
    """

    def __init__(self, environment: VirtualEnvironment) -> None:
        self.now_ms = environment.now_ms
        self.monotonic_ms = environment.monotonic_ms
        self.random_bits = environment.random_bits
        self.process_name = environment.process_name
        self._environment = environment

    async def sleep_until(self, at_ms: int) -> None:
        """Return when the virtual clock reaches ``at_ms``, or when as much real time has passed."""
        await self.sleep(at_ms - self.now_ms())

    async def sleep(self, duration_ms: int) -> None:
        """Return when the virtual time, or the real time, has advanced by ``duration_ms``."""
        waiting = asyncio.ensure_future(self._environment.sleep(duration_ms))
        try:
            await asyncio.wait((waiting,), timeout=max(0, duration_ms) / 1_000)
        finally:
            waiting.cancel()


@dataclass
class _Opened:
    proxy: Proxy
    reconnected: asyncio.Event
    is_cut: bool = False


class NatsLedgerHarness(
    Harness[ILedgerStore],
    Paired[ILedgerStore],
    Crashing[ILedgerStore],
    Disconnecting[ILedgerStore],
    Misleading[ILedgerStore],
):
    """Opens ledger stores of one prefix, each with a connection of its own through a proxy, like several processes."""

    options: ClassVar[NatsLedgerOptions] = OPTIONS

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self.prefix = f"t{uuid4().hex[:16]}"
        self._opened: dict[ILedgerStore, _Opened] = {}

    def hosts(self) -> str:
        """Return the servers."""
        return shared_hosts()

    def open(self) -> AbstractAsyncContextManager[ILedgerStore]:
        """Open a client that may belong to any metadata store."""
        return self._open(None)

    def open_as(self, identity: str) -> AbstractAsyncContextManager[ILedgerStore]:
        """Open a client that belongs to this metadata store."""
        return self._open(identity)

    @asynccontextmanager
    async def _open(self, identity: str | None) -> AsyncIterator[ILedgerStore]:
        host, _, port = self.hosts().split(",")[0].rpartition(":")
        async with Proxy((host, int(port))) as proxy:
            here = "{}:{}".format(*proxy.address)
            url = f"nats://{here}/{self.prefix}"
            environment = PassingEnvironment(self.environment)
            store = await open_ledger_store(url, environment, _patient(self.options), identity)
            reconnected = asyncio.Event()
            store.connection.observe(lambda is_connected: reconnected.set() if is_connected else None)
            self._opened[store] = _Opened(proxy, reconnected)
            try:
                yield store
            finally:
                del self._opened[store]
                _limit(store, self.options)
                proxy.restore()
                await store.close()

    async def settle(self) -> None:
        """Wait for the messages that are under way."""
        for store, opened in tuple(self._opened.items()):
            assert isinstance(store, NatsLedgerStore)
            if not opened.is_cut and store.connection.is_connected:
                with suppress(TxnFrameworkError, ReplyLost):
                    await store.connection.api("INFO")
        await run_ready()

    async def destroy(self) -> None:
        """Remove the streams."""
        await remove_streams(f"nats://{self.hosts()}/{self.prefix}")

    async def crash(self, opened: ILedgerStore) -> None:
        """Reset the connection, and close the client."""
        self._opened[opened].proxy.cut()
        assert isinstance(opened, NatsLedgerStore)
        _limit(opened, self.options)
        with suppress(OSError):
            await opened.close()

    async def cut(self, opened: ILedgerStore) -> None:
        """Lose everything that the server sends."""
        assert isinstance(opened, NatsLedgerStore)
        _limit(opened, self.options)
        self._opened[opened].is_cut = True
        self._opened[opened].proxy.drop(Side.SERVER)

    async def restore(self, opened: ILedgerStore) -> None:
        """Connect again."""
        found = self._opened[opened]
        found.reconnected.clear()
        found.proxy.restore()
        found.proxy.reset_connections()
        async with asyncio.timeout(self.patience_s):
            await found.reconnected.wait()
        assert isinstance(opened, NatsLedgerStore)
        _limit(opened, _patient(self.options))
        found.is_cut = False

    async def mislead(self, opened: ILedgerStore, target: Key | str) -> None:
        """Send a notification of a record that does not exist."""
        assert isinstance(opened, NatsLedgerStore)
        ledger = await opened.open(str(target))
        assert isinstance(ledger, NatsManagedLedger)
        client = await nats.connect(f"nats://{self.hosts().split(',')[0]}")
        await client.publish(ledger.hints, b"forged", headers={"Nats-Sequence": str(10**9)})
        await client.flush()
        await client.close()
        await ledger.close()


def _patient(options: NatsLedgerOptions) -> NatsLedgerOptions:
    return replace(options, connect_timeout_ms=60_000, request_timeout_ms=10_000, patience_ms=60_000)


def _limit(store: NatsLedgerStore, options: NatsLedgerOptions) -> None:
    """Give a store the time limits of these options."""
    store.connection.options = options
    store.requests.patience_s = options.patience_ms / 1_000

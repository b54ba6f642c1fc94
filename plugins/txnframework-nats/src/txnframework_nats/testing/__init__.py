"""Harnesses for the suites of ``txnframework.testing``: real servers for a test run, and a prefix for each test."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from txnframework.errors import TxnFrameworkError, Unavailable
from txnframework.interfaces import IMetadataStore
from txnframework.model import Key
from txnframework.testing import (
    Crashing,
    Disconnecting,
    Expiring,
    Harness,
    Processes,
    VirtualEnvironment,
    run_ready,
)
from txnframework_nats._options import ConnectionOptions, MetadataOptions, locate
from txnframework_nats.connection._connection import NatsConnection
from txnframework_nats.connection._failures import RequestRefused
from txnframework_nats.records._metadata_store import NatsMetadataStore, open_metadata_store
from txnframework_nats.testing._proxies import ClientProxy
from txnframework_nats.testing.servers.nats import shared_cluster_hosts, shared_hosts

CONNECT_TIMEOUT_MS = 500
"""How long an operation of a client that was cut off waits for the lost connection in these tests."""
PATIENCE_MS = 60_000
SESSION_TTL_MS = 6_000

_STEPS_OF_A_SESSION = 24
_WRITES = ("put", "delete", "apply", "acquire_lease", "break_lease")
_READS = ("get", "scan", "scan_index", "watch")
_SERVER_SECONDS_MAX = 30.0
_ROUNDS_MAX = 20
"""The maximum number of rounds that ``settle`` waits for requests caused by earlier replies."""


async def remove_streams(url: str) -> None:
    """Delete the streams of the records and ledgers below a prefix."""
    servers = locate(url)
    connection = await NatsConnection.open(servers, ConnectionOptions())
    try:
        found = await connection.api("STREAM.NAMES", {"subject": f"{servers.prefix}.>"})
        for name in found.get("streams") or ():
            with suppress(RequestRefused):
                await connection.api(f"STREAM.DELETE.{name}")
    finally:
        await connection.close()


class Prefix:
    """A test's prefix on the servers; the test's directory identifies it, also in other processes."""

    def __init__(self, directory: Path, hosts: Callable[[], str]) -> None:
        self._file = directory / "nats"
        if not self._file.exists():
            self._file.write_text(f"{hosts()}\ntests-{secrets.token_hex(8)}")
        self.hosts, self.name = self._file.read_text().split("\n")

    @property
    def url(self) -> str:
        """The URL of a store below the prefix."""
        return f"nats://{self.hosts}/{self.name}"

    @property
    def server(self) -> tuple[str, int]:
        """The address of one of the servers."""
        host, _, port = self.hosts.split(",")[0].rpartition(":")
        return host, int(port)

    def url_at(self, address: tuple[str, int]) -> str:
        """Return the URL of the same store through a proxy."""
        return f"nats://{address[0]}:{address[1]}/{self.name}"

    async def remove(self) -> None:
        """Delete the stream."""
        await remove_streams(self.url)


class NatsMetadataHarness(
    Harness[IMetadataStore], Crashing[IMetadataStore], Disconnecting[IMetadataStore], Expiring[IMetadataStore]
):
    """Opens metadata stores below one prefix, each with its own connection through a proxy."""

    session_ms: ClassVar[int] = SESSION_TTL_MS
    replicas: ClassVar[int] = 1

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self.prefix = Prefix(directory, type(self).hosts)
        self._proxies: dict[NatsMetadataStore, ClientProxy] = {}

    @staticmethod
    def hosts() -> str:
        """Return the servers to test with."""
        return shared_hosts()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[IMetadataStore]:
        """Open a client; its session ends with the block."""
        proxied = ClientProxy(self.prefix.server, self.prefix.name)
        async with proxied.proxy as proxy:
            store = await self._open_store(self.prefix.url_at(proxy.address))
            for name in (*_WRITES, *_READS):
                setattr(store, name, _reporting_calls(proxied, getattr(store, name), name in _WRITES))
            self._proxies[store] = proxied
            try:
                yield store
            finally:
                del self._proxies[store]
                _limit(store, CONNECT_TIMEOUT_MS)
                with suppress(Unavailable):
                    await store.close()

    async def _open_store(self, url: str) -> NatsMetadataStore:
        """Open a store that is patient until it is cut off, because a server beside other tests may need longer."""
        options = MetadataOptions(
            connect_timeout_ms=PATIENCE_MS,
            request_timeout_ms=20 * CONNECT_TIMEOUT_MS,
            session_ttl_ms=SESSION_TTL_MS,
            replicas=self.replicas,
            sync_always=True,
        )
        return await open_metadata_store(url, self.environment, options)

    async def settle(self) -> None:
        """Wait until all messages of the consumers are received, and until their effects are complete."""
        for _ in range(_ROUNDS_MAX):
            reached = [store for store, proxied in self._proxies.items() if not proxied.is_cut]
            begun = sum(store.connection.requests for store in reached)
            for store in reached:
                with suppress(TxnFrameworkError):
                    await type(store).get(store, Key("/settle"))
            await run_ready()
            is_quiet = not any(store.connection.under_way for store in reached)
            if is_quiet and sum(store.connection.requests for store in reached) <= begun + len(reached):
                return

    async def crash(self, opened: IMetadataStore) -> None:
        """Cut the client off permanently, and wait until its session has expired for all others."""
        assert isinstance(opened, NatsMetadataStore)
        self._proxies[opened].is_cut = True
        self._proxies[opened].proxy.cut()
        _limit(opened, CONNECT_TIMEOUT_MS)
        await opened.abandon()
        for _ in range(_STEPS_OF_A_SESSION):
            await self.environment.advance(2 * SESSION_TTL_MS // _STEPS_OF_A_SESSION)
            await self.settle()

    async def cut(self, opened: IMetadataStore) -> None:
        """Lose the next reply, then the connection."""
        assert isinstance(opened, NatsMetadataStore)
        self._proxies[opened].cut()
        _limit(opened, CONNECT_TIMEOUT_MS)

    async def restore(self, opened: IMetadataStore) -> None:
        """Reconnect, and return when the connection is open."""
        assert isinstance(opened, NatsMetadataStore)
        self._proxies[opened].restore()
        async with asyncio.timeout(_SERVER_SECONDS_MAX):
            while True:
                with suppress(TxnFrameworkError):
                    await opened.get(Key("/settle"))
                    break
        _limit(opened, PATIENCE_MS)

    async def destroy(self) -> None:
        """Delete the stream."""
        await self.prefix.remove()


class NatsClusterMetadataHarness(NatsMetadataHarness):
    """Opens metadata stores whose records three servers keep."""

    replicas: ClassVar[int] = 3

    @staticmethod
    def hosts() -> str:
        """Return the servers to test with."""
        return shared_cluster_hosts()


def _limit(store: NatsMetadataStore, connect_timeout_ms: int) -> None:
    store.connection.options = replace(store.connection.options, connect_timeout_ms=connect_timeout_ms)


def _reporting_calls(proxied: ClientProxy, method: Callable[..., Any], writes: bool) -> Callable[..., Any]:
    @wraps(method)
    async def reporting(*arguments: Any) -> Any:
        proxied.begin_operation(writes)
        return await method(*arguments)

    return reporting


class NatsMetadataProcesses(Processes[IMetadataStore], Disconnecting[IMetadataStore]):
    """Clients that each run in a separate process."""

    client = NatsMetadataHarness
    session_ms: ClassVar[int] = 2 * SESSION_TTL_MS
    preload = ("nats",)

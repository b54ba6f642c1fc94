"""Harnesses for the suites of ``txnframework.testing``: one ZooKeeper for a test run, and a chroot for each test."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from txnframework.errors import TxnFrameworkError, Unavailable
from txnframework.interfaces import IMetadataStore
from txnframework.model import Key
from txnframework.plugin import StoreContext
from txnframework.testing import Crashing, Disconnecting, Harness, Processes, VirtualEnvironment, run_ready
from txnframework_zookeeper._options import MetadataOptions
from txnframework_zookeeper.plugin import txnframework_metadata_stores
from txnframework_zookeeper.testing._clients import end_session, with_client
from txnframework_zookeeper.testing._proxies import ClientProxy
from txnframework_zookeeper.testing.servers.frames import SessionCredentials
from txnframework_zookeeper.testing.servers.zookeeper import HOSTS_VARIABLE, shared_hosts

CONNECT_TIMEOUT_MS = 500
"""How long an operation waits for a lost connection in these tests."""
OPENING_ATTEMPTS = 20

_ALL_CHROOTS = "/txnframework-tests"
_WRITES = ("put", "delete", "apply", "acquire_lease", "break_lease")
_READS = ("get", "scan", "scan_index", "watch")
_SERVER_SECONDS_MAX = 30.0
_ROUNDS_MAX = 20
"""The maximum number of rounds that ``settle`` waits for requests caused by earlier replies."""


class Chroot:
    """A test's chroot on the servers; the test's directory identifies it, also in other processes."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "zookeeper"
        if not self._file.exists():
            self._file.write_text(f"{shared_hosts()}\n{_ALL_CHROOTS}/{secrets.token_hex(8)}")
        self.hosts, self.path = self._file.read_text().split("\n")

    @property
    def url(self) -> str:
        """The URL of a store in the chroot."""
        return f"zookeeper://{self.hosts}{self.path}"

    @property
    def server(self) -> tuple[str, int]:
        """The address of one of the servers."""
        host, _, port = self.hosts.split(",")[0].rpartition(":")
        return host, int(port)

    def url_at(self, address: tuple[str, int]) -> str:
        """Return the URL of the same store through a proxy."""
        return f"zookeeper://{address[0]}:{address[1]}{self.path}"

    async def remove(self) -> None:
        """Remove all nodes in the chroot; a server that ends with this run removes them itself."""
        if HOSTS_VARIABLE not in os.environ:
            return

        def remove(client: KazooClient) -> None:
            client.delete(self.path, recursive=True)

        await asyncio.to_thread(with_client, self.hosts, None, remove)

    async def end(self, session: SessionCredentials) -> None:
        """End a client's session immediately, as its timeout would."""
        await asyncio.to_thread(end_session, self.hosts, session.number, session.password)


class ZooKeeperMetadataHarness(Harness[IMetadataStore], Crashing[IMetadataStore], Disconnecting[IMetadataStore]):
    """Opens metadata stores in one chroot, each with its own connection through a proxy."""

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self.chroot = Chroot(directory)
        self._proxies: dict[IMetadataStore, ClientProxy] = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[IMetadataStore]:
        """Open a client; its session ends with the block."""
        proxied = ClientProxy(self.chroot.server)
        async with proxied.proxy as proxy:
            store = await open_store(self.chroot.url_at(proxy.address), self.environment)
            for name in (*_WRITES, *_READS):
                setattr(store, name, _reporting_calls(proxied, getattr(store, name), name in _WRITES))
            assert proxied.session is not None
            self._session_file(store).write_bytes(
                proxied.session.number.to_bytes(8, signed=True) + proxied.session.password
            )
            self._proxies[store] = proxied
            try:
                yield store
            finally:
                del self._proxies[store]
                await store.close()

    async def settle(self) -> None:
        """
        Wait until all sent watch events are received, and until their effects are complete.

        A server sends watch events before it answers later requests.
        """
        for _ in range(_ROUNDS_MAX):
            reached = [(store, proxied) for store, proxied in self._proxies.items() if not proxied.is_cut]
            begun = sum(proxied.calls_begun for _, proxied in reached)
            for store, _ in reached:
                with suppress(TxnFrameworkError):
                    await type(store).get(store, Key("/settle"))
            await run_ready()
            if begun == sum(proxied.calls_begun for _, proxied in reached) and not any(
                proxied.calls_under_way for _, proxied in reached
            ):
                return

    async def crash(self, opened: IMetadataStore) -> None:
        """Cut the client off permanently, and end its session."""
        self._proxies[opened].is_cut = True
        self._proxies[opened].proxy.cut()
        await self.end_session(opened)
        await self.settle()

    async def cut(self, opened: IMetadataStore) -> None:
        """Lose the next reply, then the connection."""
        self._proxies[opened].cut()

    async def restore(self, opened: IMetadataStore) -> None:
        """Reconnect, and return when the connection is open."""
        self._proxies[opened].restore()
        async with asyncio.timeout(_SERVER_SECONDS_MAX):
            while True:
                with suppress(TxnFrameworkError):
                    await opened.get(Key("/settle"))
                    return

    async def end_session(self, opened: IMetadataStore) -> None:
        """End the session of a client, also of another process."""
        written = self._session_file(opened).read_bytes()
        await self.chroot.end(SessionCredentials(int.from_bytes(written[:8], signed=True), written[8:]))

    async def destroy(self) -> None:
        """Remove the chroot."""
        await self.chroot.remove()

    def _session_file(self, store: IMetadataStore) -> Path:
        return self.directory / f"session-{store.session.encode().hex()}"


def _reporting_calls(proxied: ClientProxy, method: Callable[..., Any], writes: bool) -> Callable[..., Any]:
    @wraps(method)
    async def reporting(*arguments: Any) -> Any:
        proxied.begin_operation(writes)
        proxied.calls_begun += 1
        proxied.calls_under_way += 1
        try:
            return await method(*arguments)
        finally:
            proxied.calls_under_way -= 1

    return reporting


async def open_store(url: str, environment: VirtualEnvironment) -> IMetadataStore:
    """
    Open a store as a host does, with a short timeout for later losses of the connection.

    Opening is retried: beside other tests a running server may need longer for a new session.
    """
    (provider,) = txnframework_metadata_stores()
    options = MetadataOptions(connect_timeout_ms=CONNECT_TIMEOUT_MS)
    for _ in range(OPENING_ATTEMPTS - 1):
        with suppress(Unavailable):
            return await provider.open(StoreContext(url, environment, options))
    return await provider.open(StoreContext(url, environment, options))


class ZooKeeperMetadataProcesses(Processes[IMetadataStore], Disconnecting[IMetadataStore]):
    """Clients that each run in a separate process."""

    client = ZooKeeperMetadataHarness
    preload = ("kazoo.client", "txnframework_zookeeper._metadata_store")

    async def crash(self, opened: IMetadataStore) -> None:
        """Kill the client's process, and end its session."""
        await super().crash(opened)
        assert isinstance(self._data, ZooKeeperMetadataHarness)
        await self._data.end_session(opened)
        await self.settle()

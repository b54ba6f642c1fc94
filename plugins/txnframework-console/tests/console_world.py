"""A console of stores in memory, with a browser that knows no scripts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx

import txnframework
import txnframework_dispatchers.plugin
import txnframework_legacy.plugin
import txnframework_memory.plugin
import txnframework_metadata.plugin
from txnframework import Client
from txnframework.cli.background_client import BackgroundClient
from txnframework.plugin import PluginRegistry, load_plugins
from txnframework.testing import VirtualEnvironment
from txnframework.testing.clock import AdvanceableEnvironment
from txnframework_console.app import ConsoleApp
from txnframework_console.guards import allowed_hosts
from txnframework_memory import MemoryLedgerStore, MemoryMetadataStore

BASE = "http://127.0.0.1:8470"
SECRET = "pL4inS3cret"
"""The password in the URLs of the stores."""
TOKEN = "the token of this run"
LOG_FAMILY = {"coordinator": "log", "buffer": "marker", "pending_ack": "log"}
PATIENCE_S = 120
_names = itertools.count()


@dataclass
class Served:
    """A console, a browser that knows no scripts, and the client of a process that uses the same stores."""

    console: ConsoleApp
    browser: httpx.AsyncClient
    client: Client
    environment: VirtualEnvironment | AdvanceableEnvironment
    looking: Client

    async def page(self, path: str, status: int = 200) -> str:
        """Return a page; time passes, so that what was read before is not fresh any more."""
        await self.environment.advance(10_000)
        answer = await self.browser.get(path)
        while "data-reading" in answer.text:  # where time passes by itself, the first reading may take too long
            answer = await self.browser.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    def cut(self) -> None:
        for store in stores_of(self.looking):
            store.cut()

    def restore(self) -> None:
        for store in stores_of(self.looking):
            store.restore()


def stores_of(client: Client) -> tuple[MemoryMetadataStore, MemoryLedgerStore]:
    metadata, ledgers = client.host.metadata, client.host.ledgers
    assert isinstance(metadata, MemoryMetadataStore)
    assert isinstance(ledgers, MemoryLedgerStore)
    return metadata, ledgers


REGISTRY: PluginRegistry = load_plugins(
    [one.plugin for one in (txnframework_memory, txnframework_metadata, txnframework_dispatchers, txnframework_legacy)]
)


async def _pass(environment: VirtualEnvironment | AdvanceableEnvironment) -> None:
    while True:
        await environment.advance(1_000)


@asynccontextmanager
async def served(
    token: str | None = None, *, log_family: bool = False, consumes: bool = False
) -> AsyncIterator[Served]:
    """Serve a console of empty stores in memory, in virtual time."""
    url = f"memory://user:{SECRET}@console-{next(_names)}"
    # Consumers, and the log-driven family, wait for time to pass.
    environment = AdvanceableEnvironment() if consumes else VirtualEnvironment()
    config = {
        "metadata": {"url": url},
        "ledger": {"url": url},
        "transactions": {"sweep": False},
        "client": {"retries_max": 0},
        "domains": {"persistent": LOG_FAMILY} if log_family else {},
    }

    def open_client() -> AbstractAsyncContextManager[Client]:
        return txnframework.open(config, registry=REGISTRY, environment=environment)

    async with AsyncExitStack() as opened:
        passing: list[asyncio.Task[None]] = []
        opened.callback(lambda: [one.cancel() for one in passing])
        client = await opened.enter_async_context(open_client())
        connection = await opened.enter_async_context(BackgroundClient(open_client, environment))
        await connection.tried()
        console = ConsoleApp(connection, environment, allowed_hosts("127.0.0.1", 8470), token)
        opened.push_async_callback(console.close)
        transport = httpx.ASGITransport(console.app)
        browser = await opened.enter_async_context(httpx.AsyncClient(transport=transport, base_url=BASE))
        # A client that closes waits for its background work, which begins a little later.
        opened.callback(lambda: passing.append(asyncio.ensure_future(_pass(environment))))
        yield Served(console, browser, client, environment, connection.client())


def run(work: Awaitable[None]) -> None:
    """Run a test's coroutine; one that hangs fails."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work

    asyncio.run(bounded())

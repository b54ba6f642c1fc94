"""Test support for hosts with the log family, for each of its buffers."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import txnframework
from txnframework import Client
from txnframework.plugin import load_plugins

PLUGINS = ("memory", "metadata", "dispatchers", "legacy", "sidecar", "sql")
BACKENDS = [name for name in ("memory", "sql") if importlib.util.find_spec(f"txnframework_{name}")]
"""The backends that are installed."""
BUFFERS = ["marker", "sidecar"] if importlib.util.find_spec("txnframework_sidecar") else ["marker"]
PATIENCE_S = 60

_names = count()


class HostStores:
    """Stores of one test. Each ``open`` starts another process with this configuration; its sections override it."""

    def __init__(self, backend: str, directory: Path, **sections: Any) -> None:
        installed = [name for name in PLUGINS if importlib.util.find_spec(f"txnframework_{name}")]
        self._registry = load_plugins([importlib.import_module(f"txnframework_{name}.plugin") for name in installed])
        url = f"memory://log-family-{next(_names)}" if backend == "memory" else f"sqlite:///{directory}/txn.db"
        self._config: dict[str, Any] = {
            "metadata": {"url": url},
            "ledger": {"url": url},
            "subscriptions": {"redelivery_delay_ms": 0},
            **sections,
        }

    @asynccontextmanager
    async def open(self, **sections: Any) -> AsyncIterator[Client]:
        """Yield a client of another process."""
        async with txnframework.open(self._config | sections, registry=self._registry) as client:
            yield client

    @staticmethod
    def run(work: Awaitable[None]) -> None:
        """Run a test's coroutine; fail if it takes longer than ``PATIENCE_S``."""

        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await work

        asyncio.run(bounded())


async def read_all(client: Client, topic: str) -> list[bytes | None]:
    """Return the values of all messages of a topic that are readable now."""
    async with await client.reader(topic) as reader:
        return [message.value async for message in reader]

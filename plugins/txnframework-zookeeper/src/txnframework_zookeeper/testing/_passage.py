"""A proxy before a server, with which a test delays or drops replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from txnframework.testing.servers.proxy import Proxy
from txnframework_zookeeper.testing._clients import WAIT_S
from txnframework_zookeeper.testing.servers.frames import Operation, ZooKeeperTap


class Passage:
    """A proxy before a server that can pass a request and hold back everything that the server sends."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.proxy = Proxy(server, lambda: _PassageTap(self))
        self._held_at: Operation | None = None
        self._lost: Operation | None = None
        self._has_arrived = asyncio.Event()

    def hold_at(self, operation: Operation) -> None:
        """Pass the next request of this kind, and then hold back all data in both directions."""
        self._held_at = operation
        self._has_arrived.clear()

    def lose_reply_to(self, operation: Operation) -> None:
        """Drop the reply to the next request of this kind, and nothing else."""
        self._lost = operation

    async def held(self) -> None:
        """Return once that request has passed; the server's reply is held back."""
        await asyncio.wait_for(self._has_arrived.wait(), WAIT_S)

    def let_through(self) -> None:
        """Pass everything again, starting with the data held back."""
        self._held_at = None
        self.proxy.restore()

    def asks(self, operation: Operation | None) -> None:
        """Handle a request that is about to pass."""
        if operation is not None and operation is self._held_at:
            self._held_at = None
            self.proxy.stall()
            self._has_arrived.set()

    def passes_reply(self, operation: Operation | None) -> bool:
        """Return whether a reply passes."""
        is_lost = operation is not None and operation is self._lost
        if is_lost:
            self._lost = None
        return not is_lost


class _PassageTap(ZooKeeperTap):
    """One connection through the proxy."""

    def __init__(self, passage: Passage) -> None:
        super().__init__()
        self._passage = passage

    def request(self, operation: Operation | None) -> bool:
        """Report the request; all requests pass."""
        self._passage.asks(operation)
        return True

    def reply(self, operation: Operation | None) -> bool:
        """Report the reply; it may be dropped."""
        return self._passage.passes_reply(operation)


@asynccontextmanager
async def passage_to(url: str) -> AsyncIterator[tuple[Passage, str]]:
    """Open a proxy before the first server of a URL; yield it and the URL of the same store through it."""
    parts = urlsplit(url)
    host, _, port = parts.netloc.split(",")[0].rpartition(":")
    passage = Passage((host, int(port)))
    async with passage.proxy as proxy:
        here = "{}:{}".format(*proxy.address)
        yield passage, parts._replace(netloc=here).geturl()

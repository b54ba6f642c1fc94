"""A passage to a server, where a test holds answers back, or loses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from txnframework.testing.servers.proxy import Proxy
from txnframework_zookeeper.testing._clients import WAIT_S
from txnframework_zookeeper.testing.servers.frames import Operation, ZooKeeperTap


class Passage:
    """A proxy before a server that can be told to let a request arrive, and nothing of what comes back."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.proxy = Proxy(server, lambda: _PassageTap(self))
        self._held_at: Operation | None = None
        self._lost: Operation | None = None
        self._has_arrived = asyncio.Event()

    def hold_at(self, operation: Operation) -> None:
        """Let the next request of this kind arrive, and from then on nothing pass in either direction."""
        self._held_at = operation
        self._has_arrived.clear()

    def lose_reply_to(self, operation: Operation) -> None:
        """Lose the reply to the next request of this kind, and nothing else."""
        self._lost = operation

    async def held(self) -> None:
        """Return once that request has come by; how the server answers it, nobody hears yet."""
        await asyncio.wait_for(self._has_arrived.wait(), WAIT_S)

    def let_through(self) -> None:
        """Let everything pass again, and first what was held back."""
        self._held_at = None
        self.proxy.restore()

    def asks(self, operation: Operation | None) -> None:
        """See a request that is about to arrive."""
        if operation is not None and operation is self._held_at:
            self._held_at = None
            self.proxy.stall()
            self._has_arrived.set()

    def passes_reply(self, operation: Operation | None) -> bool:
        """Return whether a reply goes on."""
        is_lost = operation is not None and operation is self._lost
        if is_lost:
            self._lost = None
        return not is_lost


class _PassageTap(ZooKeeperTap):
    """One connection on the way."""

    def __init__(self, passage: Passage) -> None:
        super().__init__()
        self._passage = passage

    def request(self, operation: Operation | None) -> bool:
        """Show it; all of them arrive."""
        self._passage.asks(operation)
        return True

    def reply(self, operation: Operation | None) -> bool:
        """Show it; it may be lost."""
        return self._passage.passes_reply(operation)


@asynccontextmanager
async def passage_to(url: str) -> AsyncIterator[tuple[Passage, str]]:
    """Lead to the first server of a URL; with the passage, return the URL of the same store through it."""
    parts = urlsplit(url)
    host, _, port = parts.netloc.split(",")[0].rpartition(":")
    passage = Passage((host, int(port)))
    async with passage.proxy as proxy:
        here = "{}:{}".format(*proxy.address)
        yield passage, parts._replace(netloc=here).geturl()

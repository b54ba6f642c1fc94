"""Proxies between a client and a server, with which tests delay or drop data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from txnframework.testing.servers.proxy import Proxy
from txnframework_zookeeper.testing._clients import WAIT_S
from txnframework_zookeeper.testing.servers.frames import Operation, SessionCredentials, ZooKeeperTap


class ClientProxy:
    """
    One client's connection to the server, which tests can cut.

    After a cut, nothing passes until the client makes a request. If that is a write, its request passes, and everything
    from its reply on is lost. A read finds the connection broken.
    """

    def __init__(self, server: tuple[str, int]) -> None:
        self.proxy = Proxy(server, lambda: _ClientTap(self))
        self.session: SessionCredentials | None = None
        self.is_cut = False
        self.loses_reply = False
        self.calls_begun = 0
        self.calls_under_way = 0

    def cut(self) -> None:
        """Let nothing pass from now on."""
        self.is_cut = True
        self.proxy.stall()

    def restore(self) -> None:
        """Let everything pass."""
        self.is_cut = self.loses_reply = False
        self.proxy.restore()

    def begin_operation(self, writes: bool) -> None:
        """Decide which message the next operation of the client loses."""
        if self.is_cut and not self.loses_reply:
            self.proxy.restore()
            self.loses_reply = writes
            if not writes:
                self.proxy.cut()


class _ClientTap(ZooKeeperTap):
    """One connection of the client."""

    def __init__(self, owner: ClientProxy) -> None:
        super().__init__()
        self._owner = owner

    def reply(self, operation: Operation | None) -> bool:
        """Record the session; lose the reply to a write, and the connection with it."""
        self._owner.session = self.session
        if self._owner.loses_reply and operation is not None and operation.writes:
            self._owner.proxy.cut()
            return False
        return True

    def event(self) -> bool:
        """Pass watch events only while nothing is lost."""
        return not self._owner.is_cut


class ReplyProxy:
    """A proxy before a server that can pass a request and hold back everything that the server sends."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.proxy = Proxy(server, lambda: _ReplyTap(self))
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

    def passes_request(self, operation: Operation | None) -> None:
        """Handle a request that is about to pass; all requests pass."""
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


class _ReplyTap(ZooKeeperTap):
    """One connection through the proxy."""

    def __init__(self, owner: ReplyProxy) -> None:
        super().__init__()
        self._owner = owner

    def request(self, operation: Operation | None) -> bool:
        """Report the request; all requests pass."""
        self._owner.passes_request(operation)
        return True

    def reply(self, operation: Operation | None) -> bool:
        """Report the reply; it may be dropped."""
        return self._owner.passes_reply(operation)


@asynccontextmanager
async def reply_proxy(url: str) -> AsyncIterator[tuple[ReplyProxy, str]]:
    """Open a proxy before the first server of a URL; yield it and the URL of the same store through it."""
    parts = urlsplit(url)
    host, _, port = parts.netloc.split(",")[0].rpartition(":")
    proxied = ReplyProxy((host, int(port)))
    async with proxied.proxy as proxy:
        here = "{}:{}".format(*proxy.address)
        yield proxied, parts._replace(netloc=here).geturl()

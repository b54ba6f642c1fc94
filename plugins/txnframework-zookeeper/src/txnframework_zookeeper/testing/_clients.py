"""Clients for tests, what their sessions meet with, and plain clients that make them meet it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from txnframework_zookeeper._options import MetadataOptions, locate
from txnframework_zookeeper.connection._link import Session
from txnframework_zookeeper.connection._zookeeper import ZooKeeper

WAIT_S = 30
"""How long a test waits for something that should come at once."""


@asynccontextmanager
async def opened(url: str, options: MetadataOptions | None = None) -> AsyncIterator[ZooKeeper]:
    """Open a client for a while."""
    zookeeper = await ZooKeeper.open(locate(url), options or MetadataOptions())
    try:
        yield zookeeper
    finally:
        await zookeeper.close()


class Seen:
    """What a listener was told, and waiting for it."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self.states: list[Session] = []
        self.changes: list[str] = []
        self._woken = asyncio.Event()
        zookeeper.listen(self)

    def session_became(self, state: Session) -> None:
        """Note it."""
        self.states.append(state)
        self._woken.set()

    def node_changed(self, path: str) -> None:
        """Note it."""
        self.changes.append(path)
        self._woken.set()

    async def until(self, *states: Session) -> None:
        """Return once these have come, one after the other, whatever came between them."""
        async with asyncio.timeout(WAIT_S):
            while not self._have_come(states):
                self._woken.clear()
                await self._woken.wait()

    def _have_come(self, states: tuple[Session, ...]) -> bool:
        told = iter(self.states)
        return all(state in told for state in states)

    async def until_connected(self) -> None:
        """Return once there is a connection again, in whichever session."""
        async with asyncio.timeout(WAIT_S):
            while not {Session.NEW, Session.BACK} & {*self.states}:
                self._woken.clear()
                await self._woken.wait()


def wait_for_connections(zookeeper: ZooKeeper, timeout_ms: int) -> None:
    """
    Let a client that is connected wait for so long for each connection that it needs from now on.

    For its first one, a server that has just been started may need longer than a test wants to wait for none.
    """
    link = zookeeper.link
    link.options = msgspec.structs.replace(link.options, connect_timeout_ms=timeout_ms)


async def expire(zookeeper: ZooKeeper) -> None:
    """Let the server end the session: somebody else who knows its number and password closes it."""
    link = zookeeper.link
    session = link.session_id
    while link.session_id == session:
        seen = Seen(zookeeper)
        assert link.resumed is not None
        await asyncio.to_thread(end_session, link.servers.hosts, *link.resumed)
        # The client may have been quicker in taking its session back.
        await seen.until_connected()


def end_session(hosts: str, number: int, password: bytes) -> None:
    """End a session at once, as its timeout would; blocks."""
    # Whoever goes on with it and then takes leave ends it. Nobody can go on with one that has ended by itself.
    with suppress(KazooTimeoutError):
        with_client(hosts, (number, password), lambda _: None)


def with_client(hosts: str, resumed: tuple[int, bytes] | None, do: Callable[[KazooClient], None]) -> None:
    """Do something with a plain client, in a session of its own or in this one, which then ends; blocks."""
    client = KazooClient(hosts, client_id=resumed)
    try:
        client.start(WAIT_S)
        do(client)
    finally:
        client.stop()
        client.close()

"""Clients for tests, recorders of their sessions, and plain clients that cause events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from txnframework_zookeeper._options import MetadataOptions, locate
from txnframework_zookeeper.connection._client import ZooKeeperClient
from txnframework_zookeeper.connection._session import SessionState

WAIT_S = 120
"""How long a test waits for an event that should occur immediately."""


@asynccontextmanager
async def opened(url: str, options: MetadataOptions | None = None) -> AsyncIterator[ZooKeeperClient]:
    """Open a client for the length of the block."""
    zookeeper = await ZooKeeperClient.open(locate(url), options or MetadataOptions())
    try:
        yield zookeeper
    finally:
        await zookeeper.close()


class Seen:
    """The session states and changes that a listener received, and waits for them."""

    def __init__(self, zookeeper: ZooKeeperClient) -> None:
        self.states: list[SessionState] = []
        self.changes: list[str] = []
        self._woken = asyncio.Event()
        zookeeper.listen(self)

    def session_state_changed(self, state: SessionState) -> None:
        """Record the state."""
        self.states.append(state)
        self._woken.set()

    def node_changed(self, path: str) -> None:
        """Record the change."""
        self.changes.append(path)
        self._woken.set()

    async def until(self, *states: SessionState) -> None:
        """Return once these states have occurred in this order, with any others in between."""
        async with asyncio.timeout(WAIT_S):
            while not self._have_come(states):
                self._woken.clear()
                await self._woken.wait()

    def _have_come(self, states: tuple[SessionState, ...]) -> bool:
        reported = iter(self.states)
        return all(state in reported for state in states)

    async def wait_until_connected(self) -> None:
        """Return once there is a connection again, in any session."""
        async with asyncio.timeout(WAIT_S):
            while not {SessionState.NEW, SessionState.BACK} & {*self.states}:
                self._woken.clear()
                await self._woken.wait()


def wait_for_connections(zookeeper: ZooKeeperClient, timeout_ms: int) -> None:
    """
    Set how long a connected client waits for each later connection.

    A server that has just started may need longer for the first connection than a test wants to wait without a
    connection.
    """
    session = zookeeper.session
    session.options = msgspec.structs.replace(session.options, connect_timeout_ms=timeout_ms)


async def expire(zookeeper: ZooKeeperClient) -> None:
    """Let the server end the session: another client that knows its number and password closes it."""
    session = zookeeper.session
    session_id = session.session_id
    while session.session_id == session_id:
        seen = Seen(zookeeper)
        assert session.resumed is not None
        await asyncio.to_thread(end_session, session.servers.hosts, *session.resumed)
        # The client may have taken its session back first.
        await seen.wait_until_connected()


def end_session(hosts: str, number: int, password: bytes) -> None:
    """End a session immediately, as its timeout would; blocks."""
    # A client that resumes the session and closes it ends it. A session that has already ended cannot be resumed.
    with suppress(KazooTimeoutError):
        with_client(hosts, (number, password), lambda _: None)


def with_client(hosts: str, resumed: tuple[int, bytes] | None, do: Callable[[KazooClient], None]) -> None:
    """Call ``do`` with a plain client, in a new session or a resumed one, which then ends; blocks."""
    client = KazooClient(hosts, client_id=resumed)
    try:
        client.start(WAIT_S)
        do(client)
    finally:
        client.stop()
        client.close()

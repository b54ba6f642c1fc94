"""
The bridge between kazoo, which has a thread of its own, and asyncio: one client of an ensemble.

Requests go to the servers in the order in which they are asked, many under way at once, and are answered in that order.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, cast

from kazoo.protocol.states import KeeperState

from txnframework.errors import Closed, InvalidInput, TxnFrameworkError, Unavailable
from txnframework_zookeeper._client import acl_of, new_client
from txnframework_zookeeper._errors import (
    EXPECTED,
    LOST,
    AlreadyThere,
    MultiFailed,
    NotThere,
    lost,
    refused,
    to_blame,
    translated,
)
from txnframework_zookeeper._options import MetadataOptions, Servers
from txnframework_zookeeper._requests import (
    Children,
    Committed,
    CreateNode,
    Exists,
    Get,
    Multi,
    Node,
    OnPath,
    Op,
    Stat,
    Sync,
    Unwatch,
    Watch,
)
from txnframework_zookeeper._thread import Changed, Connected, Ended, Flight, Returns

_RESTART_S = 1.0


class _Landing:
    """Where the answer to a request arrives, in the loop; kazoo may answer twice."""

    __slots__ = ("_has_landed", "_room", "answer")

    def __init__(self, room: asyncio.Semaphore, loop: asyncio.AbstractEventLoop) -> None:
        self._room = room
        self._has_landed = False
        self.answer: asyncio.Future[Any] = loop.create_future()

    def take(self, found: object) -> None:
        """Take the answer, or the error as a value."""
        if self._has_landed:
            return
        self._has_landed = True
        # Not earlier, for a caller who was cancelled: the request is with kazoo until now.
        self._room.release()
        if not self.answer.done():
            self.answer.set_result(found)


class _Syncing:
    """One sync for the reads behind it; it is answered before them."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found: object = None

    def take(self, found: object) -> None:
        """Take the answer, or the error as a value."""
        self.found = found


@dataclass(slots=True)
class _Read:
    request: OnPath
    is_current: bool
    landing: _Landing
    sync: _Syncing | None = None


class Session(Enum):
    """What became of the session; what a listener is told."""

    NEW = "connected, and nothing of an earlier session is left"
    BACK = "connected again, in the session as it was; watches are gone"
    SUSPENDED = "the connection is lost; the session may go on or not"
    LOST = "the session has ended, and what lived with it"


class Listener(Protocol):
    """What wants to know, in the event loop; it must not wait."""

    def session_became(self, state: Session) -> None:
        """Take note of what became of the session."""

    def node_changed(self, path: str) -> None:
        """Take note of a change of a watched node, or of one below a watched one."""


class ZooKeeper:
    """
    A client of an ensemble, for the event loop in which it was opened. Paths are those below the store's chroot.

    Reads wait for a lost connection, and are asked again after it, for ``connect_timeout_ms``. A write that was on its
    way when the connection was lost raises OutcomeUnknown; one that was not waits like a read.

    :raises Unavailable: there was no connection for so long; nothing was changed.
    :raises Closed: it was closed, or this process was forked from the one that opened it.
    """

    def __init__(self, servers: Servers, options: MetadataOptions) -> None:
        self.shown_url = servers.shown_url
        self.session_id = 0
        self.timeout_ms = options.session_timeout_ms
        self._servers, self._options = servers, options
        self._acl = acl_of(servers, options)
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._returns = Returns(self._loop)
        self._room = asyncio.Semaphore(options.requests_max)
        self._connected = asyncio.Event()
        self._listeners: list[Listener] = []
        self._reads: list[_Read] = []
        self._must_sync = True
        self._refusal: TxnFrameworkError | None = None
        self._is_closed = False
        # A request and the end of a session must not pass each other: kazoo would then drop the request unanswered, or
        # send it in the next session.
        self._lock = threading.Lock()
        self._client: Any = None
        self._resumed: tuple[int, bytes] | None = None

    @classmethod
    async def open(cls, servers: Servers, options: MetadataOptions) -> ZooKeeper:
        """
        Connect, log in, and make the chroot if it is not there.

        :raises ConfigurationError: the login was refused.
        :raises InvalidInput: it may not read or write the chroot.
        :raises Unavailable: no server could be reached in time; the error says why the last one could not.
        """
        zookeeper = cls(servers, options)
        try:
            zookeeper._start()
            await zookeeper._until_connected()
            await zookeeper._make_root()
        except BaseException:
            await zookeeper.close()
            raise
        return zookeeper

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now, as far as anybody here knows."""
        return self._connected.is_set()

    def listen(self, listener: Listener) -> None:
        """Tell ``listener`` from now on."""
        self._listeners.append(listener)

    async def get(self, path: str, is_current: bool = True) -> Node | None:
        """
        Return a node, None if it is not there.

        It is what was confirmed to anybody before this call; without ``is_current``, what this client has seen before
        or something newer. (ZooKeeper's ``sync`` asks the leader, which asks nobody: one that was cut off and does not
        know it yet may answer for some seconds. Writes are decided by the versions they name.)
        """
        return cast("Node | None", await self._read(Get(self._full(path)), is_current))

    async def exists(self, path: str, is_current: bool = True) -> Stat | None:
        """Return what is known of a node, None if it is not there."""
        return cast("Stat | None", await self._read(Exists(self._full(path)), is_current))

    async def children(self, path: str, is_current: bool = True) -> list[str] | None:
        """Return the names below a node in no order, None if it is not there."""
        return cast("list[str] | None", await self._read(Children(self._full(path)), is_current))

    async def sync(self) -> None:
        """Let later reads without ``is_current`` show all that was confirmed before this call."""
        await self._read(Sync(self._full("/")), is_current=False)

    async def arm(self, path: str) -> None:
        """Be told of changes of a node, there or not, and of all below it, until the connection is lost."""
        await self._read(Watch(self._full(path)), is_current=False)

    async def disarm(self, path: str) -> None:
        """Be told of them no more."""
        await self._read(Unwatch(self._full(path)), is_current=False)

    async def multi(self, ops: Sequence[Op]) -> Committed:
        """
        Apply every op, or none.

        :raises MultiFailed: an op found a node there, not there, in another version or not empty; nothing was changed.
        :raises OutcomeUnknown: the reply was lost. What this raises it for is applied before any later read, or never.
        """
        steps = tuple(ops)
        await self._until_connected()
        await self._room.acquire()
        landing = _Landing(self._room, self._loop)
        self._hand_over(Multi(steps, self._servers.root, self._acl), landing)
        found = await landing.answer
        if isinstance(found, list):
            failure = to_blame(steps, found[1:])
            if failure is None:
                return Committed(found[0], tuple(found[1:]))
            if isinstance(failure.cause, EXPECTED):
                raise failure
            raise translated(failure.cause, self.shown_url, f"write {failure.op.path}") from failure.cause
        if isinstance(found, LOST):
            raise lost(found, self.shown_url) from found
        raise translated(found, self.shown_url, "write") from found

    async def close(self) -> None:
        """End the session; may be repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        was_connected = self._connected.is_set()
        self._connected.set()
        if self._process == os.getpid() and self._client is not None:
            if not was_connected:
                # Whatever kazoo's thread waits for, it is nothing that is still needed.
                self._client._connection.cut()
            await asyncio.to_thread(_stop, self._client)

    def cut(self) -> None:
        """Break the connection; it is made again, in the same session."""
        self._client._connection.cut()

    def require_open(self) -> None:
        """Raise Closed if this cannot be used any more."""
        if self._is_closed:
            raise Closed(f"the store {self.shown_url} was closed")
        if self._process != os.getpid():
            raise Closed(
                f"the store {self.shown_url} was opened before this process was forked, and belongs to its parent"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidInput(f"the store {self.shown_url} was opened in another event loop; open one in this loop")

    async def _read(self, request: OnPath, is_current: bool) -> object:
        """Ask until there is an answer; together with what else is asked in this turn of the loop, behind one sync."""
        until = None
        while True:
            await self._until_connected()
            await self._room.acquire()
            read = _Read(request, is_current, _Landing(self._room, self._loop))
            if not self._reads:
                self._loop.call_soon(self._send_reads)
            self._reads.append(read)
            found = await read.landing.answer
            if read.sync is not None and isinstance(read.sync.found, Exception):
                found = read.sync.found
            if isinstance(found, NotThere):
                return None
            if not isinstance(found, Exception):
                return found
            until = until or self._loop.time() + self._options.connect_timeout_ms / 1000
            if not isinstance(found, LOST) or self._loop.time() >= until:
                self.require_open()
                raise translated(found, self.shown_url, f"read {request.path}") from found

    def _send_reads(self) -> None:
        reads, self._reads = self._reads, []
        sync = None
        if self._must_sync or any(read.is_current for read in reads):
            # Each of them began before this is sent, so what it lets the server see is enough for all of them.
            sync = _Syncing()
            self._must_sync = False
            self._hand_over(Sync(self._full("/")), sync)
        for read in reads:
            read.sync = sync
            self._hand_over(read.request, read.landing)

    def _hand_over(self, request: object, landing: _Landing | _Syncing) -> None:
        with self._lock:
            self._client._call(request, Flight(self._returns, landing.take))

    async def _until_connected(self) -> None:
        self.require_open()
        if self._connected.is_set():
            return
        try:
            async with asyncio.timeout(self._options.connect_timeout_ms / 1000):
                while not self._connected.is_set():
                    if self._refusal is not None:
                        raise self._refusal
                    await self._connected.wait()
                    self.require_open()
        except TimeoutError:
            error = self._client.handler.last_error
            reason = f": {error}" if error else ""
            raise Unavailable(f"there is no connection to {self.shown_url}{reason}") from error

    async def _make_root(self) -> None:
        """Make the chroot, one node at a time; whoever else makes it is welcome."""
        names = self._servers.root.split("/")[1:]
        for depth in range(len(names)):
            path = "/" + "/".join(names[: depth + 1])
            found = await self._ask(Exists(path))
            if isinstance(found, NotThere) or found is None:
                found = await self._ask(Multi((CreateNode(path),), "", self._acl))
                found = to_blame((CreateNode(path),), found[1:]) if isinstance(found, list) else found
                found = found.cause if isinstance(found, MultiFailed) else found
            if isinstance(found, Exception) and not isinstance(found, AlreadyThere):
                raise translated(found, self.shown_url, f"make the chroot {path}") from found
        await self.children("/")

    async def _ask(self, request: object) -> object:
        await self._until_connected()
        await self._room.acquire()
        landing = _Landing(self._room, self._loop)
        self._hand_over(request, landing)
        return await landing.answer

    def _full(self, path: str) -> str:
        return self._servers.root + path if path != "/" else self._servers.root or "/"

    def _start(self) -> None:
        client = new_client(self._servers, self._options, self._resumed)

        def moved(_: object) -> None:
            with self._lock:
                state = client._state
            self._returns.put(self._take, (client, state))

        def receive(event: Connected | Changed | Ended) -> None:
            self._returns.put(self._take, (client, event))

        client.add_listener(moved)
        client._connection.receive = receive
        self._client = client
        client.start_async()

    def _take(self, taken: tuple[Any, object]) -> None:
        client, event = taken
        if client is not self._client or self._is_closed:
            return
        match event:
            case Changed():
                for listener in tuple(self._listeners):
                    listener.node_changed(event.path[len(self._servers.root) :] or "/")
            case Connected():
                is_new = event.session_id != self.session_id
                self.session_id, self.timeout_ms = event.session_id, event.timeout_ms
                self._resumed = (event.session_id, event.password)
                self._must_sync = self._must_sync or is_new
                self._refusal = None
                self._connected.set()
                self._tell(Session.NEW if is_new else Session.BACK)
            case KeeperState.CONNECTING:
                self._connected.clear()
                self._tell(Session.SUSPENDED)
            case KeeperState.EXPIRED_SESSION:
                self._connected.clear()
                self._tell(Session.LOST)
            case KeeperState.AUTH_FAILED:
                self._connected.clear()
                self._refusal = refused(self.shown_url)
                self._tell(Session.SUSPENDED)
            case Ended():
                # A login that was right before, or something unforeseen: it is tried again, in the session as it was.
                self._connected.clear()
                self._must_sync = True
                self._tell(Session.SUSPENDED)
                self._loop.call_later(_RESTART_S, self._restart, client)

    def _restart(self, client: Any) -> None:
        if client is self._client and not self._is_closed and self._process == os.getpid():
            self._start()

    def _tell(self, state: Session) -> None:
        for listener in tuple(self._listeners):
            listener.session_became(state)


def _stop(client: Any) -> None:
    client.stop()
    client.close()

"""
One client of an ensemble, through kazoo: what is read and written, awaited in the event loop.

Requests go to the servers in the order in which they are asked, many under way at once, and are answered in that order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from txnframework_zookeeper._options import MetadataOptions, Servers, check
from txnframework_zookeeper.connection._errors import (
    EXPECTED,
    LOST,
    AlreadyThere,
    MayNot,
    MultiFailed,
    NotSent,
    NotThere,
    lost,
    to_blame,
    translated,
)
from txnframework_zookeeper.connection._kazoo import acl_of
from txnframework_zookeeper.connection._link import Landing, Link, Listener
from txnframework_zookeeper.connection._looking import Look
from txnframework_zookeeper.connection._requests import (
    CheckNode,
    Children,
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
from txnframework_zookeeper.connection._roles import Role


class _Syncing:
    """One sync for the reads behind it; it is answered before them."""

    __slots__ = ("_link", "found")

    def __init__(self, link: Link) -> None:
        self._link = link
        self.found: object = None

    def take(self, found: object) -> None:
        """Take the answer, or the error as a value."""
        self.found = found
        if isinstance(found, Exception):
            self._link.may_lag = True


@dataclass(slots=True)
class _Read:
    request: OnPath
    is_current: bool
    landing: Landing
    sync: _Syncing | None = None
    connection: int = 0


class ZooKeeper:
    """
    A client of an ensemble, for the event loop in which it was opened. Paths are those below the store's chroot.

    Reads wait for a lost connection, and are asked again after it, for ``connect_timeout_ms``. A write that was on its
    way when the connection was lost raises OutcomeUnknown; one that was not waits like a read.

    :raises Unavailable: there was no connection for so long; nothing was changed.
    :raises Closed: it was closed, this process was forked from the one that opened it, or this is another event loop.
    """

    def __init__(self, servers: Servers, options: MetadataOptions) -> None:
        self.shown_url = servers.shown_url
        self.link = Link(servers, options)
        self._root = servers.root
        self._acl = acl_of(servers, options)
        self._patience_s = options.connect_timeout_ms / 1000
        self._room = asyncio.Semaphore(options.requests_max)
        self._reads: list[_Read] = []

    @classmethod
    async def open(cls, servers: Servers, options: MetadataOptions) -> ZooKeeper:
        """
        Connect, log in, and make the chroot if it is not there.

        :raises ConfigurationError: the options do not fit, or the login was refused.
        :raises InvalidInput: it may not read or write the chroot.
        :raises Unavailable: no server could be reached in time; the error says why the last one could not.
        """
        check(servers, options)
        zookeeper = cls(servers, options)
        try:
            zookeeper.link.start()
            await zookeeper.link.until_connected()
            await zookeeper._make_root()
        except BaseException:
            await zookeeper.close()
            raise
        return zookeeper

    def listen(self, listener: Listener) -> None:
        """Tell ``listener`` of the session and of changes from now on."""
        self.link.listen(listener)

    async def get(self, path: str, is_current: bool = True) -> Node | None:
        """
        Return a node, None if it is not there.

        It is what was confirmed to anybody before this call; without ``is_current``, what this client has seen before
        or something newer. (ZooKeeper's ``sync`` asks the leader, which asks nobody: one that was cut off and does not
        know it yet may be believed for some seconds. Writes are decided by the versions that they name.)
        """
        return cast("Node | None", await self._read(Get(self.full(path)), is_current))

    async def exists(self, path: str, is_current: bool = True) -> Stat | None:
        """Return what is known of a node, None if it is not there."""
        return cast("Stat | None", await self._read(Exists(self.full(path)), is_current))

    async def children(self, path: str, is_current: bool = True) -> list[str] | None:
        """Return the names below a node in no order, None if it is not there."""
        return cast("list[str] | None", await self._read(Children(self.full(path)), is_current))

    async def sync(self) -> None:
        """Let later reads without ``is_current`` show all that was confirmed before this call."""
        await self._read(Exists(self.full("/")), is_current=True)

    async def multi(self, ops: Sequence[Op], session_id: int | None = None) -> int:
        """
        Apply every op, or none; return the number of its transaction. With ``session_id``: in this session or never.

        :raises MultiFailed: an op found a node there, not there, in another version or not empty; nothing was changed.
        :raises OutcomeUnknown: the reply was lost. It is applied before any later read, or never.
        """
        steps = tuple(ops)
        found = await self._ask(Multi(steps, self._root, self._acl), session_id)
        if isinstance(found, list):
            failure = to_blame(steps, found[1:])
            if failure is None:
                return cast("int", found[0])
            if isinstance(failure.cause, EXPECTED):
                raise failure
            raise translated(failure.cause, self.shown_url, f"write {failure.op.path}") from failure.cause
        assert isinstance(found, Exception)
        if isinstance(found, LOST):
            raise lost(found, self.shown_url) from found
        raise translated(found, self.shown_url, "write") from found

    def arm(self, path: str) -> asyncio.Future[object]:
        """
        Ask at once to be told of changes of a node, there or not, and of all below it, until the connection is lost.

        The future becomes None, or the error. What is asked after this is answered from when it was armed, or later.
        """
        return self._hand_over(Watch(self.full(path)))

    def disarm(self, path: str) -> asyncio.Future[object]:
        """Ask at once to be told of them no more; as ``arm``."""
        return self._hand_over(Unwatch(self.full(path)))

    def look(self, path: str, receive: Callable[[Node | Exception | None], None], *, arms: bool) -> None:
        """
        Ask at once for a node, and give ``receive`` the node, None if it is not there, or the error.

        ``arms``: also to be told of its next change, and only of that, unless the connection is lost before. What is
        asked after this is answered from when that was armed, or later.
        """
        Look(self.link, self.full(path), receive, arms=arms).begin()

    async def close(self) -> None:
        """End the session; may be repeated."""
        await self.link.close()

    async def abandon(self) -> None:
        """Let go as a process does that is killed: the session goes on at the servers until it expires."""
        await self.link.abandon()

    def full(self, path: str) -> str:
        """Return a path with the chroot."""
        return self._root + path if path != "/" else self._root or "/"

    def without_root(self, path: str) -> str:
        """Return a full path without the chroot."""
        return path[len(self._root) :] or "/"

    async def _read(self, request: OnPath, is_current: bool) -> object:
        """Ask until there is an answer; together with what else is asked in this turn of the loop, behind one sync."""
        until: float | None = None
        while True:
            await self.link.until_connected()
            await self._room.acquire()
            read = _Read(request, is_current, Landing(self.link.loop, self._room))
            if not self._reads:
                self.link.loop.call_soon(self._send_reads)
            self._reads.append(read)
            found = await read.landing.answer
            if read.sync is not None and isinstance(read.sync.found, Exception):
                found = read.sync.found
            if read.connection != self.link.connections:
                # What was asked may have waited for another server, where another sync is needed.
                continue
            if isinstance(found, NotThere):
                return None
            if not isinstance(found, Exception):
                return found
            now = self.link.loop.time()
            until = until or now + self._patience_s
            if not isinstance(found, LOST) or now >= until:
                self.link.require_open()
                raise translated(found, self.shown_url, f"read {request.path}") from found

    def _send_reads(self) -> None:
        reads, self._reads = self._reads, []
        sync = None
        is_alone = self.link.role is Role.ALONE
        if not is_alone and (self.link.may_lag or any(read.is_current for read in reads)):
            # Each of them began before this is sent, so what it lets the server see is enough for all of them.
            sync = _Syncing(self.link)
            self.link.may_lag = False
            self.link.hand_over(self._barrier(), sync)
        for read in reads:
            read.sync, read.connection = sync, self.link.connections
            self.link.hand_over(read.request, read.landing)
        self.link.send()

    def _barrier(self) -> object:
        """Return what makes the server answer with what is current; see ``_roles``."""
        if self.link.role is Role.FOLLOWER:
            return Sync(self.full("/"))
        return Multi((CheckNode(self.full("/")),), "", self._acl)

    async def _ask(self, request: object, session_id: int | None = None) -> object:
        while True:
            await self.link.until_connected()
            await self._room.acquire()
            landing = Landing(self.link.loop, self._room)
            self.link.hand_over(request, landing, session_id)
            found = await landing.answer
            if not isinstance(found, NotSent):
                return found

    def _hand_over(self, request: object) -> asyncio.Future[object]:
        landing = Landing(self.link.loop)
        self.link.hand_over(request, landing)
        return landing.answer

    async def _make_root(self) -> None:
        """
        Make the chroot and what is missing above it, one node at a time; whoever else makes it is welcome.

        What is above a chroot that is there is not looked at: a login may have no right to see it.
        """
        missing: list[str] = []
        path = self._root
        while path and not await self._is_there(path):
            missing.append(path)
            path = path[: path.rfind("/")]
        for path in reversed(missing):
            found = await self._ask(Multi((CreateNode(path),), "", self._acl))
            failure = to_blame((CreateNode(path),), found[1:]) if isinstance(found, list) else None
            found = failure.cause if isinstance(failure, MultiFailed) else found
            if isinstance(found, Exception) and not isinstance(found, AlreadyThere):
                raise translated(found, self.shown_url, f"make the chroot {path}") from found
        await self.children("/")

    async def _is_there(self, path: str) -> bool:
        """Whether the chroot, or a node above it, is there; of one above it that may not be seen it is known."""
        found = await self._ask(Exists(path))
        if isinstance(found, Exception) and not isinstance(found, NotThere):
            if path != self._root and isinstance(found, MayNot):
                return True
            raise translated(found, self.shown_url, f"see the chroot {path}") from found
        return isinstance(found, Stat)

"""
One client of an ensemble, through kazoo: reads and writes, awaited in the event loop.

Many requests may run at the same time. They are sent and answered in the order of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from kazoo.protocol.states import ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from txnframework_zookeeper._options import MetadataOptions, Servers, check
from txnframework_zookeeper.connection._bridge import ServerRole
from txnframework_zookeeper.connection._requests import (
    EXPECTED,
    LOST,
    CheckNode,
    Children,
    Create,
    Exists,
    Get,
    Multi,
    Node,
    NodeExists,
    NodeRequest,
    NoNode,
    NoPermission,
    NotSent,
    Op,
    Stat,
    Sync,
    WatchLost,
    failed_op,
    reply_lost,
    translate_error,
)
from txnframework_zookeeper.connection._session import Listener, ReplyFuture, Session


class _SharedSync:
    """One sync for the later reads; the server replies to the sync first."""

    __slots__ = ("_session", "found")

    def __init__(self, session: Session) -> None:
        self._session = session
        self.found: object = None

    def take(self, found: object) -> None:
        """Take the reply, or the error as a value."""
        self.found = found
        if isinstance(found, Exception):
            self._session.may_be_stale = True


@dataclass(slots=True)
class _Read:
    request: NodeRequest
    is_current: bool
    reply: ReplyFuture
    sync: _SharedSync | None = None


class ZooKeeperClient:
    """
    A client of an ensemble, for the event loop in which it was opened. Paths are relative to the store's chroot.

    Reads wait for a lost connection, and are repeated after it, for ``connect_timeout_ms``. A write that was sent when
    the connection was lost raises OutcomeUnknown; one that was not sent waits like a read.

    :raises Unavailable: there was no connection for that time; nothing was changed.
    :raises Closed: it was closed, this process was forked from the one that opened it, or this is another event loop.
    """

    def __init__(self, servers: Servers, options: MetadataOptions) -> None:
        self.shown_url = servers.shown_url
        self.session = Session(servers, options)
        self._root = servers.root
        self._acl = _acl_of(servers, options)
        self._timeout_s = options.connect_timeout_ms / 1000
        self._slots = asyncio.Semaphore(options.requests_max)
        self._reads: list[_Read] = []

    @classmethod
    async def open(cls, servers: Servers, options: MetadataOptions) -> ZooKeeperClient:
        """
        Connect, log in, and create the chroot if it does not exist.

        :raises ConfigurationError: the options do not fit, or the login was refused.
        :raises InvalidInput: the login has no read or write permission for the chroot.
        :raises Unavailable: no server could be reached in time; the error contains the reason of the last failure.
        """
        check(servers, options)
        zookeeper = cls(servers, options)
        try:
            zookeeper.session.start()
            await zookeeper.session.wait_until_connected()
            await zookeeper._make_root()
        except BaseException:
            await zookeeper.close()
            raise
        return zookeeper

    def listen(self, listener: Listener) -> None:
        """Start reporting the session and changes to ``listener``."""
        self.session.listen(listener)

    async def get(self, path: str, is_current: bool = True) -> Node | None:
        """
        Return a node, or None if it does not exist.

        The result includes every write confirmed before this call. Without ``is_current``, the result is at least as
        new as the states that this client has seen before.

        ZooKeeper's ``sync`` asks the leader, which does not ask the other servers. A leader that was cut off without
        knowing it may answer for some seconds. The versions that writes name protect them from this.
        """
        found = await self._read(Get(self.full(path)), is_current)
        return None if found is None else Node(*cast("tuple[bytes, Stat]", found))

    async def exists(self, path: str, is_current: bool = True) -> Stat | None:
        """Return the Stat of a node, or None if it does not exist."""
        return cast("Stat | None", await self._read(Exists(self.full(path)), is_current))

    async def children(self, path: str, is_current: bool = True) -> list[str] | None:
        """Return the names below a node, unordered, or None if the node does not exist."""
        return cast("list[str] | None", await self._read(Children(self.full(path)), is_current))

    async def sync(self) -> None:
        """Let later reads without ``is_current`` include every write confirmed before this call."""
        await self._read(Exists(self.full("/")), is_current=True)

    async def multi(self, ops: Sequence[Op], session_id: int | None = None) -> int:
        """
        Apply every op, or none; with ``session_id``: in this session or not at all.

        Return the transaction number that a SetNode among the ops returns, or 0 without one.

        :raises MultiFailed: a node did or did not exist, had another version or had children; nothing was changed.
        :raises OutcomeUnknown: the reply was lost. The multi is applied before any later read, or never.
        """
        steps = tuple(ops)
        found = await self._call(Multi(steps, self._root, self._acl), session_id)
        if isinstance(found, list):
            failure = failed_op(steps, found)
            if failure is None:
                return next((one.mzxid for one in found if isinstance(one, ZnodeStat)), 0)
            if isinstance(failure.cause, EXPECTED):
                raise failure
            raise translate_error(failure.cause, self.shown_url, f"write {failure.op.path}") from failure.cause
        assert isinstance(found, Exception)
        if isinstance(found, LOST):
            raise reply_lost(found, self.shown_url) from found
        raise translate_error(found, self.shown_url, "write") from found

    async def watch_node(self, path: str) -> Node | None:
        """
        Return a node, or None if it does not exist, and report its next change to the listeners, once.

        The report arrives before the reply to any request made after the change. The servers drop a watch when it has
        reported a change, or the connection is lost.

        :raises WatchLost: the connection was lost before the watch was confirmed.
        :raises Closed, InvalidInput, Unavailable: as for ``get``.
        """
        while True:
            found = await self._watch(Get(self.full(path), self.session.node_changed))
            if found is not None:
                return Node(*found)
            # ZooKeeper sets no watch for the read of a missing node; a request for its Stat watches its creation. If it
            # was created in between, it is read again.
            if await self.watch_stat(path) is None:
                return None

    async def watch_stat(self, path: str) -> Stat | None:
        """
        Return the Stat of a node, None if it does not exist, and report its next change; otherwise like ``watch_node``.
        """
        return cast("Stat | None", await self._watch(Exists(self.full(path), self.session.node_changed)))

    async def watch_children(self, path: str) -> list[str] | None:
        """
        Return the names below a node, and report the next creation or deletion of a child, or its own deletion.

        None: the node does not exist, and nothing will be reported. Otherwise like ``watch_node``.
        """
        return cast("list[str] | None", await self._watch(Children(self.full(path), self.session.node_changed)))

    async def close(self) -> None:
        """End the session; idempotent."""
        await self.session.close()

    async def abandon(self) -> None:
        """Close like a killed process: the session continues on the servers until it expires."""
        await self.session.abandon()

    def full(self, path: str) -> str:
        """Return a path with the chroot."""
        return self._root + path if path != "/" else self._root or "/"

    def without_root(self, path: str) -> str:
        """Return a full path without the chroot."""
        return path[len(self._root) :] or "/"

    async def _read(self, request: NodeRequest, is_current: bool) -> object:
        """Repeat a read until it is answered; the reads of one turn of the loop share one sync."""
        until: float | None = None
        while True:
            await self.session.wait_until_connected()
            await self._slots.acquire()
            read = _Read(request, is_current, ReplyFuture(self.session.loop, self._slots))
            if not self._reads:
                self.session.loop.call_soon(self._send_reads)
            self._reads.append(read)
            found = await read.reply.answer
            if read.sync is not None and isinstance(read.sync.found, Exception):
                found = read.sync.found
            if isinstance(found, NoNode):
                return None
            if not isinstance(found, Exception):
                return found
            now = self.session.loop.time()
            until = until or now + self._timeout_s
            if not isinstance(found, LOST) or now >= until:
                self.session.require_open()
                raise translate_error(found, self.shown_url, f"read {request.path}") from found

    def _send_reads(self) -> None:
        reads, self._reads = self._reads, []
        sync = None
        is_alone = self.session.role is ServerRole.STANDALONE
        if not is_alone and (self.session.may_be_stale or any(read.is_current for read in reads)):
            # Each of them began before the sync is sent, so one sync is recent enough for all of them.
            sync = _SharedSync(self.session)
            self.session.may_be_stale = False
            self.session.submit(self._barrier_request(), sync)
        for read in reads:
            read.sync = sync
            self.session.submit(read.request, read.reply)

    def _barrier_request(self) -> object:
        """Return the request that makes the server's next replies current; see ``ServerRole``."""
        if self.session.role is ServerRole.FOLLOWER:
            return Sync(self.full("/"))
        return Multi((CheckNode(self.full("/")),), "", self._acl)

    async def _watch(self, request: NodeRequest) -> Any:
        found = await self._call(request)
        if isinstance(found, NoNode):
            return None
        if isinstance(found, LOST):
            raise WatchLost from found
        if isinstance(found, Exception):
            self.session.require_open()
            raise translate_error(found, self.shown_url, f"watch {request.path}") from found
        return found

    async def _call(self, request: object, session_id: int | None = None) -> Any:
        while True:
            await self.session.wait_until_connected()
            await self._slots.acquire()
            reply = ReplyFuture(self.session.loop, self._slots)
            self.session.submit(request, reply, session_id)
            found = await reply.answer
            if not isinstance(found, NotSent):
                return found

    async def _make_root(self) -> None:
        """
        Create the chroot and its missing ancestors, one node at a time; other clients may create them at the same time.

        The ancestors of an existing chroot are not read: a login may have no permission to do so.
        """
        missing: list[str] = []
        path = self._root
        while path and not await self._root_exists(path):
            missing.append(path)
            path = path[: path.rfind("/")]
        for path in reversed(missing):
            found = await self._call(Create(path, self._acl))
            if isinstance(found, Exception) and not isinstance(found, NodeExists):
                raise translate_error(found, self.shown_url, f"make the chroot {path}") from found
        await self.children("/")

    async def _root_exists(self, path: str) -> bool:
        """Return whether the chroot, or an ancestor, exists; an ancestor that may not be read is known to exist."""
        found = await self._call(Exists(path))
        if isinstance(found, Exception):
            if path != self._root and isinstance(found, NoPermission):
                return True
            raise translate_error(found, self.shown_url, f"see the chroot {path}") from found
        return found is not None


def _acl_of(servers: Servers, options: MetadataOptions) -> list[Any]:
    """Return the access control list of created nodes: for the own login, or for everyone."""
    has_login = bool(servers.user) or options.login == "sasl-gssapi"
    is_private = has_login if options.is_private is None else options.is_private
    return [make_acl("auth", "", all=True)] if is_private else list(OPEN_ACL_UNSAFE)

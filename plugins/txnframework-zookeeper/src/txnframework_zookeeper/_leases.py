"""
Leases: records with an ephemeral node, which is deleted with its session. Also the time for which a lease is reliable.

The servers measure a session's timeout from the time when the leader last heard of the client. The client does not know
that time. Its messages reach the server that it is connected to. That server informs the leader every half tick, while
the two are connected.

A reply that went through the leader proves that they were connected. The leader had then heard of every earlier
message, at most half a tick after the message. A tick is at most half of any session's timeout, unless
minSessionTimeout was set. A lease is dropped here when its session could have expired by that measure.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from txnframework.environment import Environment
from txnframework.errors import (
    Closed,
    CorruptRecord,
    LeaseHeld,
    OutcomeUnknown,
    TxnFrameworkError,
    Unavailable,
    UnknownFormat,
)
from txnframework.model import Key, Record
from txnframework.model.paths import lease_key
from txnframework.model.records import UNREADABLE
from txnframework.plugin import SessionLease
from txnframework.runtime.tasks import start_task
from txnframework_zookeeper._nodes import EmptyNodeCollector, ancestors, create_surplus_parents
from txnframework_zookeeper.connection._client import ZooKeeperClient
from txnframework_zookeeper.connection._requests import CreateNode, DeleteNode, MultiFailed, SetNode
from txnframework_zookeeper.connection._session import SessionState
from txnframework_zookeeper.tree._layout import liveness_node, node_of, not_utf8, partition_mark
from txnframework_zookeeper.tree._records import decode_node, encode_node

FORMAT = 1


class LeaseDocument(msgspec.Struct, kw_only=True):
    """The content of a lease's record."""

    format: int = FORMAT
    holder: str
    session: str


class _AnyLease(msgspec.Struct):
    format: int


def decode_lease(name: str, record: Record) -> LeaseDocument:
    """
    Return the content of the record of a lease.

    :raises UnknownFormat: a later release wrote it.
    :raises CorruptRecord: it is damaged.
    """
    try:
        form = msgspec.json.decode(record.value, type=_AnyLease).format
        if form != FORMAT:
            raise UnknownFormat(f"lease {name}", form)
        return msgspec.json.decode(record.value, type=LeaseDocument)
    except UNREADABLE as error:
        raise CorruptRecord(record.key.path, "its value", str(error)) from error


@dataclass(frozen=True, slots=True)
class LeaseState:
    """
    A lease that is held.

    ``fencing`` is the number of the transaction that created the node, and also the record's version. It only grows,
    over the whole life of the ensemble.
    """

    key: Key
    fencing: int
    holder: str
    session_id: int
    token: str


class LeaseNodes:
    """Creates, finds and deletes the nodes of leases."""

    def __init__(
        self, zookeeper: ZooKeeperClient, empty_nodes: EmptyNodeCollector, environment: Environment, attempts_max: int
    ) -> None:
        self._environment = environment
        self._zookeeper = zookeeper
        self._empty_nodes = empty_nodes
        self._attempts_max = attempts_max

    async def create(self, name: str, holder: str, session: str) -> LeaseState | None:
        """
        Acquire a lease that is not held; None: it is held.

        :raises OutcomeUnknown: the reply was lost; the lease may be held for as long as the session lives.
        """
        key = lease_key(name)
        node = node_of(key)
        document = LeaseDocument(holder=holder, session=session)
        token = f"{self._environment.random_bits(64):016x}"
        data = encode_node(msgspec.json.encode(document), None, (), token)
        life = liveness_node(token)
        # The life node is also written, because ZooKeeper returns the transaction number of a multi only for writes.
        lease = CreateNode(node, data, is_ephemeral=True), CreateNode(life, is_ephemeral=True), SetNode(life, b"")
        for _ in range(self._attempts_max):
            parents = ancestors(node)
            stats = await asyncio.gather(*map(self._zookeeper.exists, (*parents, node)))
            if stats[-1] is not None:
                return None
            missing = [parent for parent, stat in zip(parents, stats, strict=False) if stat is None]
            session_id = self._zookeeper.session.session_id
            try:
                rest = await create_surplus_parents(self._zookeeper, missing, self._empty_nodes.add)
                zxid = await self._zookeeper.multi((*map(CreateNode, rest), *lease), session_id)
            except MultiFailed:
                # Another client created a node, or deleted one that had become empty.
                continue
            return LeaseState(key, zxid, holder, session_id, token)
        raise Unavailable(f"{self._zookeeper.shown_url}: {key.path} was changed by others {self._attempts_max} times")

    async def find(self, name: str) -> LeaseState | None:
        """Return the current holder of a lease, or None."""
        key = lease_key(name)
        node = await self._zookeeper.get(node_of(key))
        if node is None:
            return None
        record, state = decode_node(key.path, partition_mark(key.path, key.partition), node)
        document = decode_lease(name, record)
        return LeaseState(key, node.stat.czxid, document.holder, node.stat.ephemeralOwner, state.token)

    async def delete(self, name: str, fencing: int, session_id: int | None = None) -> None:
        """
        Delete the node of a lease if it still has this fencing number, and, if given, this session.

        :raises OutcomeUnknown: the reply was lost.
        """
        found = await self.find(name)
        if found is None or found.fencing != fencing or session_id not in (None, found.session_id):
            return
        node = node_of(found.key)
        # The second node belongs to this very lease: if another lease was acquired meanwhile, nothing is deleted. A
        # multi for a lease of this client is sent in the lease's session or not at all.
        ops = DeleteNode(node), DeleteNode(liveness_node(found.token))
        with suppress(MultiFailed):
            await self._zookeeper.multi(ops, session_id or self._zookeeper.session.session_id)
            self._empty_nodes.add(node[: node.rfind("/")])


# Fractions of the session timeout: half a tick, kazoo's longest send interval, and the interval of this module's
# heartbeats with leases.
_HALF_TICK, _PING, _BEAT = 1 / 4, 1 / 3, 1 / 8
# kazoo spreads its pings over this time, however short the timeout is.
_PING_MIN_S = 0.4


class Lease(SessionLease):
    """A lease held by this client's session."""

    def __init__(self, leases: Leases, name: str, state: LeaseState) -> None:
        super().__init__(name, state.key, state.fencing, leases.release)
        self.state = state


class Leases:
    """The leases of one store, over successive sessions."""

    def __init__(self, zookeeper: ZooKeeperClient, nodes: LeaseNodes, session: str, attempts_max: int) -> None:
        self._zookeeper, self._connection = zookeeper, zookeeper.session
        self._nodes = nodes
        self._session = session
        self._attempts_max = attempts_max
        self._held: dict[str, Lease] = {}
        # Nodes in the current session of leases that were dropped here; bounded by the number of leases held.
        self._dropped: dict[str, LeaseState] = {}
        # ZooKeeper and the event loop both measure time by a monotonic clock.
        self._valid_until = self._last_sent = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._lock = asyncio.Lock()
        self._is_closed = False
        zookeeper.listen(self)

    async def acquire(self, name: str, holder: str) -> Lease:
        """
        Acquire a lease, or raise LeaseHeld; a session and holder that already hold it acquire it again.

        :raises InvalidInput: the name, or the holder's, cannot be stored.
        """
        for what, text in (("the name of the lease", name), ("the name of its holder", holder)):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise not_utf8(f"{what} {text!r}") from error
        async with self._lock:
            unknown: OutcomeUnknown | None = None
            for _ in range(self._attempts_max):
                try:
                    lease = await self._try_acquire(name, holder)
                except OutcomeUnknown as error:
                    # The next attempt finds out.
                    unknown = error
                    continue
                except Unavailable:
                    if unknown is None:
                        raise
                    raise unknown from None
                if lease is not None:
                    return lease
        raise Unavailable(f"{self._zookeeper.shown_url}: lease {name} changed hands {self._attempts_max} times")

    async def release(self, lease: Lease) -> None:
        """Release a lease; a lost one is ignored."""
        if self._held.get(lease.name) is not lease:
            return
        self._drop(lease)
        await self._nodes.delete(lease.name, lease.fencing, lease.state.session_id)
        self._dropped.pop(lease.name, None)

    async def end(self, name: str, fencing: int) -> None:
        """End another session's lease, if it still has this fencing number."""
        self._require_open()
        await self._nodes.delete(name, fencing)

    def session_state_changed(self, state: SessionState) -> None:
        """Drop all leases when the session ends; handle their remaining nodes when the session is connected again."""
        if state is SessionState.NEW:
            self._drop_all()
            self._dropped.clear()
            self._last_sent = float("-inf")
        elif state is SessionState.BACK:
            self._woken.set()

    def node_changed(self, path: str) -> None:
        """Do nothing: leases do not depend on watched nodes."""

    async def close(self) -> None:
        """Drop all leases; their nodes are deleted with the session. Idempotent."""
        self._is_closed = True
        self._drop_all()
        self._dropped.clear()
        beating, self._heartbeat_task = self._heartbeat_task, None
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _try_acquire(self, name: str, holder: str) -> Lease | None:
        """Acquire a lease if it is not held; None: not decided yet."""
        self._require_open()
        started = self._connection.loop.time()
        state = await self._nodes.create(name, holder, self._session)
        if state is None:
            found = await self._nodes.find(name)
            if found is None:
                return None
            held = self._held.get(name)
            if found.session_id != self._connection.session_id or (held is not None and found.holder != holder):
                raise LeaseHeld(name, found.holder, found.key)
            if held is not None:
                return held
            # The lease was dropped here, or its creation was never confirmed: another holder gets a higher number.
            await self._nodes.delete(name, found.fencing, found.session_id)
            return None
        self._require_open()
        if state.session_id != self._connection.session_id:
            return None
        self._extend(started)
        lease = Lease(self, name, state)
        self._held[name] = lease
        self._expire()
        if self._heartbeat_task is None:
            self._heartbeat_task = start_task(self._heartbeat(), name="txnframework-zookeeper heartbeat")
        self._woken.set()
        return lease

    def _require_open(self) -> None:
        self._connection.require_open()
        if self._is_closed:
            raise Closed(f"the store {self._zookeeper.shown_url} is being closed, and its leases with it")

    def _extend(self, started: float) -> None:
        """Record that a request sent at ``started`` went through the leader."""
        timeout_s = self._connection.timeout_ms / 1000
        before = max(self._last_sent, started - max(timeout_s * _PING, _PING_MIN_S))
        self._valid_until = max(self._valid_until, before + timeout_s * (1 - _HALF_TICK))
        self._last_sent = max(self._last_sent, started)

    def _expire(self) -> None:
        """Drop all leases once they can no longer be relied on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._held:
            return
        if self._connection.loop.time() >= self._valid_until:
            self._drop_all()
        else:
            self._timer = self._connection.loop.call_at(self._valid_until, self._expire)

    def _drop_all(self) -> None:
        self._valid_until = float("-inf")
        for lease in tuple(self._held.values()):
            self._drop(lease)
        self._expire()

    def _drop(self, lease: Lease) -> None:
        del self._held[lease.name]
        self._dropped[lease.name] = lease.state
        lease.end()

    async def _heartbeat(self) -> None:
        """Send requests to the leader at intervals while leases are held; delete the nodes of dropped leases."""
        while True:
            if not self._held and not self._dropped:
                self._woken.clear()
                await self._woken.wait()
            started = self._connection.loop.time()
            try:
                await self._zookeeper.sync()
                if self._held:
                    self._extend(started)
                    self._expire()
                await self._remove_dropped()
            except Closed:
                return
            except TxnFrameworkError:
                # The next request may succeed; if none succeeds in time, the leases are dropped.
                pass
            next_at = started + self._connection.timeout_ms / 1000 * _BEAT
            await asyncio.sleep(next_at - self._connection.loop.time())

    async def _remove_dropped(self) -> None:
        async with self._lock:
            for name, state in tuple(self._dropped.items()):
                await self._nodes.delete(name, state.fencing, state.session_id)
                self._dropped.pop(name, None)

"""
The leases bound to a session, and how long they can be relied on.

The servers measure a session's timeout from the time when the leader last heard of the client. The client does not know
that time. Its messages reach the server that it is connected to. That server informs the leader every half tick, while
the two are connected.

A reply that went through the leader proves that they were connected. The leader had then heard of every earlier
message, at most half a tick after the message. A tick is at most half of any session's timeout, unless
minSessionTimeout was set. A lease is dropped here when its session could have expired by that measure.
"""

from __future__ import annotations

import asyncio

from zope.interface import implementer

from txnframework.errors import Closed, LeaseHeld, OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework.interfaces import ILease
from txnframework_zookeeper._lease_nodes import LeaseNodes, Standing
from txnframework_zookeeper.connection._link import Session
from txnframework_zookeeper.connection._zookeeper import ZooKeeper
from txnframework_zookeeper.tree._layout import no_utf8

# Fractions of the session timeout: half a tick, kazoo's longest send interval, and the interval of this module's
# heartbeats with leases.
_HALF_TICK, _PING, _BEAT = 1 / 4, 1 / 3, 1 / 8
# kazoo spreads its pings over this time, however short the timeout is.
_PING_MIN_S = 0.4


@implementer(ILease)
class Lease:
    """A lease held by this client's session."""

    def __init__(self, leases: Leases, name: str, standing: Standing) -> None:
        self.name = name
        self.key = standing.key
        self.version = standing.fencing
        self.fencing = standing.fencing
        self.standing = standing
        self._leases = leases
        self._ended = asyncio.Event()

    async def lost(self) -> None:
        """Return when the lease can no longer be relied on; never later than another holder can acquire it."""
        await self._ended.wait()

    async def release(self) -> None:
        """Release the lease now; idempotent, also after it was lost."""
        await self._leases.release(self)

    def end(self) -> None:
        """Make ``lost`` return."""
        self._ended.set()


class Leases:
    """The leases of one store, over successive sessions."""

    def __init__(self, zookeeper: ZooKeeper, nodes: LeaseNodes, session: str, attempts_max: int) -> None:
        self._zookeeper, self._link = zookeeper, zookeeper.link
        self._nodes = nodes
        self._session = session
        self._attempts_max = attempts_max
        self._held: dict[str, Lease] = {}
        # Nodes in the current session of leases that were dropped here; bounded by the number of leases held.
        self._astray: dict[str, Standing] = {}
        # ZooKeeper and the event loop both measure time by a monotonic clock.
        self._relied_until = self._asked_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._changing = asyncio.Lock()
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
                raise no_utf8(f"{what} {text!r}") from error
        async with self._changing:
            unknown: OutcomeUnknown | None = None
            for _ in range(self._attempts_max):
                try:
                    lease = await self._try(name, holder)
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
        self._give_up(lease)
        await self._nodes.remove(lease.name, lease.standing)
        self._astray.pop(lease.name, None)

    async def end(self, name: str, fencing: int) -> None:
        """End another session's lease, if it still has this fencing number."""
        self._require_open()
        await self._nodes.end(name, fencing)

    def session_became(self, state: Session) -> None:
        """Drop all leases when the session ends; handle their remaining nodes when the session is connected again."""
        if state is Session.NEW:
            self._lapse()
            self._astray.clear()
            self._asked_at = float("-inf")
        elif state is Session.BACK:
            self._woken.set()

    def node_changed(self, path: str) -> None:
        """Do nothing: leases do not depend on watched nodes."""

    async def close(self) -> None:
        """Drop all leases; their nodes are deleted with the session. Idempotent."""
        self._is_closed = True
        self._lapse()
        self._astray.clear()
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _try(self, name: str, holder: str) -> Lease | None:
        """Acquire a lease if it is not held; None: not decided yet."""
        self._require_open()
        started = self._link.loop.time()
        standing = await self._nodes.make(name, holder, self._session)
        if standing is None:
            found = await self._nodes.find(name)
            if found is None:
                return None
            held = self._held.get(name)
            if found.session_id != self._link.session_id or (held is not None and found.holder != holder):
                raise LeaseHeld(name, found.holder, found.key)
            if held is not None:
                return held
            # The lease was dropped here, or its creation was never confirmed: another holder gets a higher number.
            await self._nodes.remove(name, found)
            return None
        self._require_open()
        if standing.session_id != self._link.session_id:
            return None
        self._heard(started)
        lease = Lease(self, name, standing)
        self._held[name] = lease
        self._expire()
        if self._beating is None:
            self._beating = self._link.loop.create_task(self._beat(), name="txnframework-zookeeper heartbeat")
        self._woken.set()
        return lease

    def _require_open(self) -> None:
        self._link.require_open()
        if self._is_closed:
            raise Closed(f"the store {self._zookeeper.shown_url} is being closed, and its leases with it")

    def _heard(self, started: float) -> None:
        """Record that a request sent at ``started`` went through the leader."""
        timeout_s = self._link.timeout_ms / 1000
        before = max(self._asked_at, started - max(timeout_s * _PING, _PING_MIN_S))
        self._relied_until = max(self._relied_until, before + timeout_s * (1 - _HALF_TICK))
        self._asked_at = max(self._asked_at, started)

    def _expire(self) -> None:
        """Drop all leases once they can no longer be relied on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._held:
            return
        if self._link.loop.time() >= self._relied_until:
            self._lapse()
        else:
            self._timer = self._link.loop.call_at(self._relied_until, self._expire)

    def _lapse(self) -> None:
        self._relied_until = float("-inf")
        for lease in tuple(self._held.values()):
            self._give_up(lease)
        self._expire()

    def _give_up(self, lease: Lease) -> None:
        del self._held[lease.name]
        self._astray[lease.name] = lease.standing
        lease.end()

    async def _beat(self) -> None:
        """Send requests to the leader at intervals while leases are held; delete the nodes of dropped leases."""
        while True:
            if not self._held and not self._astray:
                self._woken.clear()
                await self._woken.wait()
            started = self._link.loop.time()
            try:
                await self._zookeeper.sync()
                if self._held:
                    self._heard(started)
                    self._expire()
                await self._remove_astray()
            except Closed:
                return
            except TxnFrameworkError:
                # The next request may succeed; if none succeeds in time, the leases are dropped.
                pass
            next_at = started + self._link.timeout_ms / 1000 * _BEAT
            await asyncio.sleep(next_at - self._link.loop.time())

    async def _remove_astray(self) -> None:
        async with self._changing:
            for name, standing in tuple(self._astray.items()):
                await self._nodes.remove(name, standing)
                self._astray.pop(name, None)

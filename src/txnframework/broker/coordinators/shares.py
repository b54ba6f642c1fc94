"""Distribution of coordinator ids over hosts, with takeover from dead hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from logging import INFO

from zope.interface import implementer

from txnframework.broker.coordination import Holder, holder_of
from txnframework.broker.division import divide
from txnframework.broker.events import Event, log_event
from txnframework.broker.rosters import HeldLeases, Roster
from txnframework.environment import Environment
from txnframework.errors import Closed, LeaseHeld
from txnframework.interfaces import ICoordinatorShare, ILease, IMetadataStore
from txnframework.runtime.tasks import BackgroundTask, repeat_until_closed

HOST, ID = "host ", "id "
TOKEN_BITS = 64


@implementer(ICoordinatorShare)
class CoordinatorShare:
    """
    One host's share of the coordinator ids of one family.

    The participating hosts are a ``Roster``, and ``divide`` decides which host serves which id. Each host acquires the
    free ids that it is to serve, and releases those that another host is to serve.
    """

    def __init__(
        self,
        store: IMetadataStore,
        environment: Environment,
        process: str,
        name: str,
        ids: tuple[int, ...],
        participates: bool,
    ) -> None:
        self.ids: tuple[int, ...] = ids
        self._store = store
        self._process = process
        self._name = name
        self._prefix = f"coordinator {name} "
        self._roster = Roster(store, environment, self._prefix)
        self._token = f"{environment.random_bits(TOKEN_BITS):016x}"
        # The lease of the host names the process, for people. That of an id has the token alone: earlier releases
        # compare it, and would take an id whose lease says more for one that no host holds.
        self._holder = str(Holder("", process, self._token))
        # The last holder of each id that another host held.
        self._earlier: dict[int, Holder] = {}
        self._held: dict[int, ILease] = {}
        self._releasing: list[ILease] = []
        self._balanced = asyncio.Event()
        self._changed = asyncio.Event()
        self._work = BackgroundTask(lambda: repeat_until_closed(self._participate, environment))
        self._participates = participates
        self._is_stopped = False

    async def held(self) -> frozenset[int]:
        """Return the ids that this host holds now; the first call starts the participation."""
        if self._participates:
            self._work.start()
            await self._balanced.wait()
        return frozenset(self._held)

    async def changed(self, known: frozenset[int]) -> frozenset[int]:
        """
        Wait until this host holds other ids than ``known``, and return them.

        :raises Closed: the host no longer participates.
        """
        while (held := await self.held()) == known:
            if self._is_stopped:
                raise Closed("this host no longer takes coordinators")
            self._changed.clear()
            await self._changed.wait()
        return held

    async def stop(self) -> None:
        """Stop participating; held ids are free when the store is closed."""
        self._participates, self._is_stopped = False, True
        await self._work.stop()
        self._notify()

    async def _participate(self) -> None:
        """Follow the rule until this host's own lease is lost, which ends all its leases with the session."""
        try:
            await self._roster.take_part(self._lease_of(HOST, self._token), self._holder, self._rebalance, self._notify)
        finally:
            self._held, self._releasing = {}, []
            self._notify()

    async def _rebalance(self, leases: HeldLeases) -> None:
        """Acquire or release ids according to the leases that all hosts can see now."""
        of_hosts = self._prefix + HOST
        named = {
            name.removeprefix(of_hosts): Holder.parse(holder_of(lease))
            for name, lease in leases.items()
            if name.startswith(of_hosts)
        }
        hosts = sorted(named)
        if self._token not in named:
            return  # this host's own lease is lost, which is about to be noticed
        holders = {
            one: Holder.parse(holder_of(lease)).session
            for one in self.ids
            if (lease := leases.get(self._lease_of(ID, one)))
        }
        # A host whose own lease is gone already keeps the name under which it was seen before.
        self._earlier |= {one: named[holder] for one, holder in holders.items() if holder in named}
        self._earlier = {one: holder for one, holder in self._earlier.items() if holder.session != self._token}
        divided = divide(hosts, self.ids, holders)
        for one in [one for one in self._held if divided[one] != self._token]:
            # Stop using the id here before it becomes free for others.
            self._releasing.append(self._held.pop(one))
            self._notify()
        acquired: list[int] = []
        try:
            for one in self.ids:
                # This host may hold an id without knowing it: the reply to acquiring or releasing it was lost.
                if holders.get(one, self._token) == self._token and one not in self._held:
                    if divided[one] == self._token:
                        acquired += await self._acquire(one)
                    elif one in holders:
                        self._releasing.append(await self._store.acquire_lease(self._lease_of(ID, one), self._token))
        finally:
            self._report(acquired)
        while self._releasing:
            await self._releasing[-1].release()
            self._releasing.pop()
        self._notify()

    async def _acquire(self, one: int) -> list[int]:
        """Acquire an id, unless another host was faster; return the id if it was acquired."""
        try:
            self._held[one] = await self._store.acquire_lease(self._lease_of(ID, one), self._token)
        except LeaseHeld:
            return []
        self._notify()
        return [one]

    def _report(self, acquired: Iterable[int]) -> None:
        """Log the ids that were acquired after another host, once for each of these hosts."""
        taken: dict[str, list[int]] = {}
        for one in acquired:
            earlier = self._earlier.pop(one, None)
            if earlier is not None:
                taken.setdefault(earlier.process or earlier.session, []).append(one)
        for name, ids in taken.items():
            facts = {"coordinator": self._name, "ids": ", ".join(map(str, ids)), "earlier": name}
            sentence = f"{self._process} took over coordinator {self._name}, ids {facts['ids']}, from {name}"
            log_event(INFO, Event.COORDINATORS_TAKEN_OVER, sentence, process=self._process, **facts)

    def _lease_of(self, kind: str, one: int | str) -> str:
        return f"{self._prefix}{kind}{one}"

    def _notify(self) -> None:
        self._balanced.set()
        self._changed.set()

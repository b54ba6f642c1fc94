"""Distribution of coordinator ids over hosts, with takeover from dead hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from zope.interface import implementer

from txnframework.broker.coordination import held_leases
from txnframework.environment import Environment
from txnframework.errors import Closed, LeaseHeld, TxnFrameworkError
from txnframework.interfaces import ICoordinatorShare, ILease, IMetadataStore
from txnframework.model.paths import leases_range
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.tasks import RESTART_DELAY_MS, BackgroundTask, first_completed, repeat_until_closed

HOST, ID = "host ", "id "
TOKEN_BITS = 64


def share_size(host: str, hosts: Iterable[str], ids: int) -> int:
    """Return how many of ``ids`` a host serves; the shares of all hosts add up to ``ids`` and differ by at most one."""
    order = sorted(hosts)
    whole, rest = divmod(ids, len(order))
    return whole + (order.index(host) < rest)


def preference_order(free: Sequence[int], host: str, hosts: Iterable[str]) -> Sequence[int]:
    """
    Return free ids in the order in which a host tries them; each host starts elsewhere, so that few hosts collide.
    """
    order = sorted(hosts)
    start = order.index(host) * len(free) // len(order)
    return [*free[start:], *free[:start]]


@implementer(ICoordinatorShare)
class CoordinatorShare:
    """
    One host's share of the coordinator ids of one family.

    All hosts follow the same rule, without a central authority. Each participating host holds a lease of its own, so
    all hosts see which hosts are alive. Each host acquires free ids up to its share, and releases the ids above its
    share. It checks again whenever one of these leases is acquired or released.
    """

    def __init__(
        self, store: IMetadataStore, environment: Environment, name: str, ids: tuple[int, ...], participates: bool
    ) -> None:
        self.ids: tuple[int, ...] = ids
        self._store = store
        self._backoff = Backoff(environment, RESTART_DELAY_MS, RESTART_DELAY_MS)
        self._prefix = f"coordinator {name} "
        self._token = f"{environment.random_bits(TOKEN_BITS):016x}"
        self._held: dict[int, ILease] = {}
        self._releasing: list[ILease] = []
        self._requested: set[int] = set()  # the reply may have been lost: the id may be held
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
            member = await self._store.acquire_lease(f"{self._prefix}{HOST}{self._token}", self._token)
        except TxnFrameworkError:
            self._notify()
            raise
        lost = asyncio.ensure_future(member.lost())
        try:
            while not lost.done():
                try:
                    await self._follow_leases(lost)
                except Closed:
                    raise
                except TxnFrameworkError:
                    self._notify()
                    await first_completed(self._backoff.pause(1), asyncio.shield(lost))
        finally:
            lost.cancel()
            self._held, self._releasing = {}, []
            self._notify()

    async def _follow_leases(self, lost: asyncio.Future[None]) -> None:
        """Check again whenever a lease is acquired or released."""
        watch = await self._store.watch(leases_range(self._prefix))
        try:
            while not lost.done():
                await self._rebalance()
                await first_completed(watch.changed(), asyncio.shield(lost))
        finally:
            await watch.close()

    async def _rebalance(self) -> None:
        """Acquire or release ids according to the leases that all hosts can see now."""
        leases = {
            name.removeprefix(self._prefix): lease
            for name, lease in (await held_leases(self._store, self._prefix)).items()
        }
        hosts = [name.removeprefix(HOST) for name in leases if name.startswith(HOST)]
        if self._token not in hosts:
            return  # this host's own lease is lost, which is about to be noticed
        share = share_size(self._token, hosts, len(self.ids))
        while len(self._held) > share:
            # Stop using the id here before it becomes free for others.
            self._releasing.append(self._held.pop(max(self._held)))
            self._notify()
        while self._releasing:
            await self._releasing[-1].release()
            self._releasing.pop()
        free = [one for one in self.ids if f"{ID}{one}" not in leases or one in self._requested]
        for one in preference_order(free, self._token, hosts):
            if len(self._held) >= share:
                break
            await self._acquire(one)
        self._notify()

    async def _acquire(self, one: int) -> None:
        """Acquire an id, unless another host was faster."""
        self._requested.add(one)
        try:
            self._held[one] = await self._store.acquire_lease(f"{self._prefix}{ID}{one}", self._token)
            self._notify()
        except LeaseHeld:
            pass
        self._requested.discard(one)

    def _notify(self) -> None:
        self._balanced.set()
        self._changed.set()

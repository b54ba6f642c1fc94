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
    """Return how many of ``ids`` a host serves: the shares of all hosts add up to all, and differ by one at most."""
    order = sorted(hosts)
    whole, rest = divmod(ids, len(order))
    return whole + (order.index(host) < rest)


def preference_order(free: Sequence[int], host: str, hosts: Iterable[str]) -> Sequence[int]:
    """Return free ids in the order in which a host tries them: each host begins elsewhere, so that few of them meet."""
    order = sorted(hosts)
    start = order.index(host) * len(free) // len(order)
    return [*free[start:], *free[:start]]


@implementer(ICoordinatorShare)
class CoordinatorShare:
    """
    One host's share of the coordinator ids of one family.

    The rule that all follow, without a central authority: a host that takes part holds a lease of its own, so
    everybody sees who is alive. Each takes ids that are free up to its share and gives back what is above it, and looks
    again whenever one of these leases comes or goes.
    """

    def __init__(
        self, store: IMetadataStore, environment: Environment, name: str, ids: tuple[int, ...], takes_part: bool
    ) -> None:
        self.ids: tuple[int, ...] = ids
        self._store = store
        self._backoff = Backoff(environment, RESTART_DELAY_MS, RESTART_DELAY_MS)
        self._prefix = f"coordinator {name} "
        self._token = f"{environment.random_bits(TOKEN_BITS):016x}"
        self._held: dict[int, ILease] = {}
        self._leaving: list[ILease] = []
        self._asked: set[int] = set()  # the reply was lost, perhaps: it may be held
        self._looked = asyncio.Event()
        self._changed = asyncio.Event()
        self._work = BackgroundTask(lambda: repeat_until_closed(self._take_part, environment))
        self._takes_part = takes_part
        self._is_stopped = False

    async def held(self) -> frozenset[int]:
        """Return the ids that this host holds now, taking part from the first call on."""
        if self._takes_part:
            self._work.start()
            await self._looked.wait()
        return frozenset(self._held)

    async def changed(self, known: frozenset[int]) -> frozenset[int]:
        """Wait until this host holds others than ``known``; return those."""
        while (held := await self.held()) == known:
            if self._is_stopped:
                raise Closed("this host takes no coordinators any more")
            self._changed.clear()
            await self._changed.wait()
        return held

    async def stop(self) -> None:
        """Take no part any more; what is held is free when the store is closed."""
        self._takes_part, self._is_stopped = False, True
        await self._work.stop()
        self._tell()

    async def _take_part(self) -> None:
        """Keep to the rule until this host's own lease is lost, and every other one with its session."""
        try:
            member = await self._store.acquire_lease(f"{self._prefix}{HOST}{self._token}", self._token)
        except TxnFrameworkError:
            self._tell()
            raise
        lost = asyncio.ensure_future(member.lost())
        try:
            while not lost.done():
                try:
                    await self._keep_to_the_rule(lost)
                except Closed:
                    raise
                except TxnFrameworkError:
                    self._tell()
                    await first_completed(self._backoff.pause(1), asyncio.shield(lost))
        finally:
            lost.cancel()
            self._held, self._leaving = {}, []
            self._tell()

    async def _keep_to_the_rule(self, lost: asyncio.Future[None]) -> None:
        """Look again whenever a lease comes or goes."""
        watch = await self._store.watch(leases_range(self._prefix))
        try:
            while not lost.done():
                await self._look()
                await first_completed(watch.changed(), asyncio.shield(lost))
        finally:
            await watch.close()

    async def _look(self) -> None:
        """Take or give back, by what everybody can see now."""
        leases = {
            name.removeprefix(self._prefix): lease
            for name, lease in (await held_leases(self._store, self._prefix)).items()
        }
        hosts = [name.removeprefix(HOST) for name in leases if name.startswith(HOST)]
        if self._token not in hosts:
            return  # this host's own lease is gone, which is about to be noticed
        share = share_size(self._token, hosts, len(self.ids))
        while len(self._held) > share:
            # First it is no longer used here, then it is free for others.
            self._leaving.append(self._held.pop(max(self._held)))
            self._tell()
        while self._leaving:
            await self._leaving[-1].release()
            self._leaving.pop()
        free = [one for one in self.ids if f"{ID}{one}" not in leases or one in self._asked]
        for one in preference_order(free, self._token, hosts):
            if len(self._held) >= share:
                break
            await self._take(one)
        self._tell()

    async def _take(self, one: int) -> None:
        """Take an id, unless somebody was quicker."""
        self._asked.add(one)
        try:
            self._held[one] = await self._store.acquire_lease(f"{self._prefix}{ID}{one}", self._token)
            self._tell()
        except LeaseHeld:
            pass
        self._asked.discard(one)

    def _tell(self) -> None:
        self._looked.set()
        self._changed.set()

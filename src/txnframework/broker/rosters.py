"""Groups of hosts that divide leases among themselves, and the leases that their members see."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from txnframework.broker.coordination import held_leases
from txnframework.environment import Environment
from txnframework.errors import Closed, TxnFrameworkError
from txnframework.interfaces import IMetadataStore
from txnframework.model.metadata import Record
from txnframework.model.paths import leases_range
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.tasks import RESTART_DELAY_MS, first_completed, start_task

HeldLeases = Mapping[str, Record]
"""The records of leases that are held, by name."""


class Roster:
    """
    One host's membership of a group of hosts, without a central authority.

    Each member holds a lease of its own, so all members see who is alive. The leases that they divide are separate
    ones. The names of all these leases begin with ``prefix``. A member acts whenever one of them is acquired or
    released.
    """

    def __init__(self, store: IMetadataStore, environment: Environment, prefix: str) -> None:
        self._store = store
        self._backoff = Backoff(environment, RESTART_DELAY_MS, RESTART_DELAY_MS)
        self._prefix = prefix

    async def leases(self) -> HeldLeases:
        """Return the leases that are held now."""
        return await held_leases(self._store, self._prefix)

    async def take_part(
        self, name: str, holder: str, act: Callable[[HeldLeases], Awaitable[None]], failed: Callable[[], None]
    ) -> None:
        """
        Hold the member's lease ``name``, and call ``act`` with all leases, first now and then after each change.

        Return when the member's lease is lost, which ends all leases of the session. After an error of the framework in
        ``act``, call ``failed``, and try again soon.

        :raises LeaseHeld: another host has this lease.
        """
        lease = await self._store.acquire_lease(name, holder)
        lost = start_task(lease.lost())
        try:
            while not lost.done():
                try:
                    await self._follow(lost, act)
                except Closed:
                    raise
                except TxnFrameworkError:
                    failed()
                    await first_completed(self._backoff.pause(1), asyncio.shield(lost))
        finally:
            lost.cancel()

    async def wait_for(self, condition: Callable[[HeldLeases], bool]) -> None:
        """Wait until a condition holds for the leases."""
        watch = await self._store.watch(leases_range(self._prefix))
        try:
            while not condition(await self.leases()):
                await watch.changed()
        finally:
            await watch.close()

    async def _follow(self, lost: asyncio.Future[None], act: Callable[[HeldLeases], Awaitable[None]]) -> None:
        # The watch is armed before the leases are read, so that no change between the two is missed.
        watch = await self._store.watch(leases_range(self._prefix))
        try:
            while not lost.done():
                await act(await self.leases())
                await first_completed(watch.changed(), asyncio.shield(lost))
        finally:
            await watch.close()

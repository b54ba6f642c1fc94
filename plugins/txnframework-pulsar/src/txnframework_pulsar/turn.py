"""Which of several gateways over the same stores serves: the one that holds a lease; the others redirect to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from txnframework.broker import wait_until_free
from txnframework.client import Client
from txnframework.errors import Closed, LeaseHeld, TxnFrameworkError
from txnframework.interfaces import ILease
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.tasks import first_completed, start_task

_LOG = logging.getLogger(__name__)

RETRY_DELAY_MS = 100
RETRY_DELAY_MS_MAX = 2_000


class ServingTurn:
    """
    Holds the lease of a domain's gateways, or waits until it is free.

    One gateway serves all topics of a domain, as the operations of a transaction pass through one process. The lease's
    holder is the gateway's URL, so each gateway needs an address of its own. A gateway that starts at the address of
    the holder replaces it at once: the holder does not listen there any more.

    ``lost`` is called when this gateway no longer serves, and closes its connections. The lease saves nothing by
    itself: what a paused gateway had begun to store may still be stored after its successor began. Sequence ids keep
    messages from being stored twice, and acknowledgments and transactions are checked by the stores.
    """

    def __init__(self, client: Client, domain: str, url: str, lost: Callable[[], None]) -> None:
        self.holder = ""
        """The URL of the gateway that serves, as far as is known; empty: none is known."""
        self.is_held = False
        """Whether this gateway serves."""
        self._client = client
        self._name = f"pulsar-gateway/{domain}"
        self._url = url
        self._lost = lost
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to compete; return when this gateway serves, or knows which one does."""
        self._task = start_task(self._compete())
        await self._asked.wait()

    async def stop(self) -> None:
        """Give the lease back, so that another gateway serves at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _compete(self) -> None:
        backoff = Backoff(self._client.host.environment, RETRY_DELAY_MS, RETRY_DELAY_MS_MAX)
        failures = 0
        while True:
            try:
                await self._one_turn()
                failures = 0
            except Closed:
                self._asked.set()
                return
            except TxnFrameworkError as error:
                _LOG.warning("the gateway cannot ask for its lease: %s", error)
                failures += 1
                self._asked.set()
                await backoff.pause(failures)

    async def _one_turn(self) -> None:
        """Serve until the lease is lost; if another gateway holds it, wait until it is free."""
        store = self._client.host.metadata
        try:
            lease = await store.acquire_lease(self._name, self._url)
        except LeaseHeld as held:
            record = await store.get(held.key)
            if held.holder == self._url and record is not None:
                await store.break_lease(self._name, record.version)
                return
            self.holder = held.holder
            self._asked.set()
            await wait_until_free(store, held.key)
            self.holder = ""
            return
        self.holder, self.is_held = self._url, True
        self._asked.set()
        try:
            await first_completed(lease.lost(), self._replaced(lease))
        finally:
            self.holder, self.is_held = "", False
            self._lost()
            with suppress(TxnFrameworkError):
                await lease.release()  # otherwise it ends with the session

    async def _replaced(self, lease: ILease) -> None:
        """Return when a gateway at this address has broken the lease, which only its record shows."""
        store = self._client.host.metadata
        watch = await store.watch(lease.key)
        try:
            while (record := await store.get(lease.key)) is not None and record.version == lease.version:
                await watch.changed()
        finally:
            await watch.close()

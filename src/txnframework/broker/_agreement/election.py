"""One host of many does a work that nobody needs to do twice."""

from __future__ import annotations

from collections.abc import Callable

from txnframework.broker._agreement.leases import until_free
from txnframework.environment import Environment
from txnframework.errors import LeaseHeld
from txnframework.interfaces import IMetadataStore
from txnframework.runtime.tasks import BackgroundTask, repeat_until_closed


class Election:
    """
    Holds one lease, or waits until it is free; ``elected`` is called each time this host gets it.

    It saves work and is no guarantee: a host that was paused believes itself elected for a while when another is.
    """

    def __init__(self, store: IMetadataStore, environment: Environment, name: str, elected: Callable[[], None]) -> None:
        self.won = False
        """Whether this host is elected, as far as it knows."""
        self._store = store
        self._name = name
        self._elected = elected
        self._work = BackgroundTask(lambda: repeat_until_closed(self._stand, environment))

    def start(self) -> None:
        """Stand from now on; once is enough."""
        self._work.start()

    async def stop(self) -> None:
        """Stand no more; the lease is free when the store is closed, if not before."""
        self.won = False
        await self._work.stop()

    async def _stand(self) -> None:
        """Wait until the lease was won and lost again."""
        try:
            lease = await self._store.acquire_lease(self._name, self._store.session)
        except LeaseHeld as held:
            await until_free(self._store, held.key)
            return
        self.won = True
        try:
            self._elected()
            await lease.lost()
        finally:
            self.won = False

"""Sessions of processes; the open transactions of a process that died are aborted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine
from typing import Any

from txnframework.broker.coordination import held_leases
from txnframework.environment import Environment
from txnframework.errors import (
    EndTransactionTimeout,
    InvalidTransactionState,
    TransactionNotFound,
    TxnFrameworkError,
)
from txnframework.interfaces import ILease, IMetadataStore, ITransactionCoordinator
from txnframework.model.ids import TxnID
from txnframework.model.paths import leases_range
from txnframework.model.positions import Limit
from txnframework.model.transactions import Action, End, OpenQuery
from txnframework.runtime.tasks import BackgroundTask, repeat_until_closed

NAME_BITS = 64
PAGE = Limit(100)
SESSION = "session "


class Sessions:
    """
    A session is a lease with a random name. It is taken before the first transaction that names it begins, so whoever
    finds the transaction, and then no lease, knows that its process is gone.

    A process that was only paused, for longer than its lease lives, finds its transactions aborted: it can fail, but
    it cannot damage.
    """

    def __init__(
        self,
        store: IMetadataStore,
        environment: Environment,
        wake: Callable[[], None],
        aborted: Callable[[TxnID], None],
    ) -> None:
        self._store = store
        self._environment = environment
        self._wake = wake
        self._aborted = aborted
        self._own: tuple[str, ILease] | None = None
        # Asked for with the reply lost or given up, perhaps: it may be held, so it is the one that is asked for again.
        self._asked: str | None = None
        self._taking = asyncio.Lock()
        self._watching = BackgroundTask(lambda: repeat_until_closed(self._notice_ends, environment))
        self._tasks: set[asyncio.Task[None]] = set()

    async def own(self) -> str:
        """Return the name of this process's session: a new one if the last one was lost."""
        async with self._taking:
            if self._own is None:
                name = self._asked = self._asked or f"{self._environment.random_bits(NAME_BITS):016x}"
                lease = await self._store.acquire_lease(session_lease(name), name)
                self._own, self._asked = (name, lease), None
                self._run(self._forget_when_lost(lease))
            return self._own[0]

    def start(self) -> None:
        """Call ``wake`` from now on whenever a session may have ended; once is enough."""
        self._watching.start()

    async def abort_orphans(self, coordinator: ITransactionCoordinator) -> None:
        """
        Abort the open transactions of sessions that are gone.

        One that cannot be aborted now keeps no other one from it, nor does one whose participants are slow to be told,
        since those of a page are aborted at a time; what failed is told in the end.
        """
        failed: TxnFrameworkError | None = None
        page = await coordinator.list_open(OpenQuery(limit=PAGE))
        while page:
            if any(one.session is not None for one in page):
                # Looked for after the transactions were found: whose session lives took its lease before it began one.
                living = await held_leases(self._store, SESSION)
                orphans = [one for one in page if one.session is not None and self._is_gone(one.session, living)]
                aborting = [self.abort(coordinator, one.txn_id) for one in orphans]
                for answer in await asyncio.gather(*aborting, return_exceptions=True):
                    if isinstance(answer, TxnFrameworkError):
                        failed = answer
                    elif answer is not None:
                        raise answer
            if len(page) < PAGE.items:
                break
            page = await coordinator.list_open(OpenQuery(after=page[-1].txn_id, limit=PAGE))
        if failed is not None:
            raise failed

    async def abort(self, coordinator: ITransactionCoordinator, txn_id: TxnID) -> None:
        """Abort a transaction whosever it is, unless it has ended."""
        try:
            await coordinator.end(End(txn_id, Action.ABORT, operator=True))
        except (InvalidTransactionState, TransactionNotFound):
            return
        except EndTransactionTimeout:
            pass  # it is decided, and whoever was not told is told by a sweep
        self._aborted(txn_id)

    async def lives(self, session: str) -> bool:
        """Return whether the process of a session is alive, by a look at its lease."""
        return not self._is_gone(session, await held_leases(self._store, session_lease(session)))

    async def close(self) -> None:
        """End this process's session: what it left open is for others to abort."""
        await self._watching.stop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        own, self._own = self._own, None
        if own is not None:
            try:
                await own[1].release()
            except TxnFrameworkError:
                return  # it ends with the store's session

    def _is_gone(self, session: str, living: Container[str]) -> bool:
        own = self._own is not None and session == self._own[0]
        return not own and session_lease(session) not in living

    async def _notice_ends(self) -> None:
        """Wake at once, since some may have ended before this looked, and at every change from then on."""
        watch = await self._store.watch(leases_range(SESSION))
        try:
            while True:
                self._wake()
                await watch.changed()
        finally:
            await watch.close()

    async def _forget_when_lost(self, lease: ILease) -> None:
        await lease.lost()
        if self._own is not None and self._own[1] is lease:
            self._own = None

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def session_lease(session: str) -> str:
    """Return the name of the lease that lives as long as a session."""
    return f"{SESSION}{session}"

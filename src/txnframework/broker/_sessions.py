"""Sessions of processes that begin transactions: when one is known to be gone, what it left open is aborted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from txnframework.environment import Environment
from txnframework.errors import (
    InvalidTransactionState,
    LeaseHeld,
    TransactionNotFound,
    TxnFrameworkError,
)
from txnframework.interfaces import ILease, IMetadataStore, ITransactionCoordinator
from txnframework.model.ids import TxnID
from txnframework.model.metadata import Key
from txnframework.model.positions import Limit
from txnframework.model.transactions import Action, End, OpenQuery, Transaction

NAME_BITS = 64
PAGE = Limit(100)
WATCHED_MAX = 1_000
"""How many living sessions are watched; others are asked after again at each sweep."""


class Sessions:
    """
    A session is a lease with a random name. It is taken before the first transaction that names it begins, so whoever
    finds the transaction and can take the lease knows that its process is gone.

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
        self._taking = asyncio.Lock()
        self._alive: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def own(self) -> str:
        """Return the name of this process's session: a new one if the last one was lost."""
        async with self._taking:
            if self._own is None:
                name = f"{self._environment.random_bits(NAME_BITS):016x}"
                lease = await self._store.acquire_lease(session_lease(name), name)
                self._own = (name, lease)
                self._run(self._forget_when_lost(lease))
            return self._own[0]

    async def abort_orphans(self, coordinator: ITransactionCoordinator) -> None:
        """Abort the open transactions of sessions that are gone; watch those sessions that are not."""
        page = await coordinator.list_open(OpenQuery(limit=PAGE))
        while page:
            for session in sorted({one.session for one in page if one.session is not None}):
                if await self._is_gone(session):
                    for transaction in page:
                        if transaction.session == session:
                            await self._abort(coordinator, transaction)
            if len(page) < PAGE.items:
                return
            page = await coordinator.list_open(OpenQuery(after=page[-1].txn_id, limit=PAGE))

    async def close(self) -> None:
        """End this process's session: what it left open is for others to abort."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        own, self._own = self._own, None
        if own is not None:
            try:
                await own[1].release()
            except TxnFrameworkError:
                return  # it ends with the store's session

    async def _is_gone(self, session: str) -> bool:
        if session in self._alive or (self._own is not None and session == self._own[0]):
            return False
        try:
            lease = await self._store.acquire_lease(session_lease(session), f"asking after {session}")
        except LeaseHeld as held:
            if len(self._alive) < WATCHED_MAX:
                self._alive.add(session)
                self._run(self._until_gone(session, held.key))
            return False
        await lease.release()
        return True

    async def _abort(self, coordinator: ITransactionCoordinator, transaction: Transaction) -> None:
        try:
            await coordinator.end(End(transaction.txn_id, Action.ABORT, operator=True))
        except (InvalidTransactionState, TransactionNotFound):
            return  # it ended before its process did
        self._aborted(transaction.txn_id)

    async def _until_gone(self, session: str, lease: Key) -> None:
        try:
            watch = await self._store.watch(lease)
            try:
                while await self._store.get(lease) is not None:
                    await watch.changed()
            finally:
                await watch.close()
        except TxnFrameworkError:
            return  # the next sweep asks again
        finally:
            self._alive.discard(session)
        self._wake()

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
    return f"session {session}"

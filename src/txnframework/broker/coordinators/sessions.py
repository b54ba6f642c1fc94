"""Sessions of processes, and the abort of open transactions whose process died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine
from logging import WARNING
from typing import Any

from txnframework.broker.coordination import Holder, held_leases
from txnframework.broker.events import Event, log_event
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
from txnframework.model.transactions import Action, End, OpenQuery, Transaction, session_name
from txnframework.runtime.tasks import BackgroundTask, repeat_until_closed, start_task

NAME_BITS = 64
PAGE = Limit(100)
SESSION = "session "


class Sessions:
    """
    The session of this process, and the detection of sessions that ended.

    A session is a lease whose name is unique, and names the process for people. A process acquires it before it begins
    the first transaction that names it. So a transaction without a lease, if the lease is read after the transaction,
    belongs to a process that is gone.

    A process that was paused for longer than its lease finds its transactions aborted: its calls may fail, but it
    cannot damage data.
    """

    def __init__(
        self,
        store: IMetadataStore,
        environment: Environment,
        process: str,
        wake: Callable[[bool], None],
        aborted: Callable[[TxnID], None],
    ) -> None:
        self._store = store
        self._environment = environment
        self.process = process
        self._wake = wake
        self._aborted = aborted
        self._own: tuple[str, ILease] | None = None
        # The session that may be held because a reply was lost or a call was cancelled; it is requested again.
        self._requested: str | None = None
        self._acquiring = asyncio.Lock()
        self._watching = BackgroundTask(lambda: repeat_until_closed(self._watch_ends, environment))
        self._tasks: set[asyncio.Task[None]] = set()

    async def own(self) -> str:
        """Return the name of this process's session; a new session if the last one was lost."""
        async with self._acquiring:
            if self._own is None:
                name = self._requested = self._requested or session_name(
                    self.process, self._environment.random_bits(NAME_BITS)
                )
                holder = Holder("", self.process, self._store.session)
                lease = await self._store.acquire_lease(session_lease(name), str(holder))
                self._own, self._requested = (name, lease), None
                self._run(self._forget_when_lost(lease))
            return self._own[0]

    def start(self) -> None:
        """Call ``wake`` whenever a session may have ended, True if probably none has; a second call does nothing."""
        self._watching.start()

    async def abort_orphans(self, coordinator: ITransactionCoordinator) -> None:
        """
        Abort the open transactions of sessions that have ended.

        The transactions of a page are aborted concurrently. So neither a failed abort nor slow participants delay other
        aborts. The last error of the framework is raised at the end.
        """
        failed: TxnFrameworkError | None = None
        page = await coordinator.list_open(OpenQuery(limit=PAGE))
        while page:
            if any(one.session is not None for one in page):
                # Read after the transactions were found: a live process acquired its session's lease before it began a
                # transaction.
                living = await held_leases(self._store, SESSION)
                orphans = [one for one in page if one.session is not None and self._is_gone(one.session, living)]
                aborting = [self._abort_orphan(coordinator, one) for one in orphans]
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

    async def _abort_orphan(self, coordinator: ITransactionCoordinator, orphan: Transaction) -> None:
        if await self.abort(coordinator, orphan.txn_id):
            txn_id, owner = str(orphan.txn_id), orphan.process or str(orphan.session)
            sentence = f"{self.process} aborted transaction {txn_id}, because {owner} has ended"
            log_event(WARNING, Event.ORPHAN_ABORTED, sentence, transaction=txn_id, process=self.process, owner=owner)

    async def abort(self, coordinator: ITransactionCoordinator, txn_id: TxnID) -> bool:
        """Abort a transaction of any principal; return False if it had ended otherwise, or is forgotten."""
        return (await self._abort(coordinator, txn_id))[0]

    async def abort_overdue(self, coordinator: ITransactionCoordinator, txn_id: TxnID) -> None:
        """Abort a transaction that this process began, whose deadline has passed."""
        _, ended = await self._abort(coordinator, txn_id)
        # Aborted before: by a program or an operator through another process.
        if ended is not None and (ended.finalized_ms or 0) >= ended.deadline_ms:
            self.report_overdue(ended)

    def report_overdue(self, ended: Transaction) -> None:
        """Log that this process aborted a transaction at its deadline."""
        facts = {"transaction": str(ended.txn_id), "process": self.process}
        by = ""
        if ended.session is not None:
            facts["owner"] = ended.process or ended.session
            by = f" of {facts['owner']}"
        sentence = f"{self.process} aborted transaction {ended.txn_id}{by}, because its timeout has passed"
        log_event(WARNING, Event.OVERDUE_ABORTED, sentence, **facts)

    async def _abort(self, coordinator: ITransactionCoordinator, txn_id: TxnID) -> tuple[bool, Transaction | None]:
        """Return whether a transaction is aborted now, and how it ended if it is settled."""
        ended: Transaction | None = None
        try:
            ended = await coordinator.end(End(txn_id, Action.ABORT, operator=True))
        except (InvalidTransactionState, TransactionNotFound):
            return False, None
        except EndTransactionTimeout:
            pass  # it is decided, and a sweep settles the remaining participants
        self._aborted(txn_id)
        return True, ended

    async def is_living(self, session: str) -> bool:
        """Return whether the process that began a session is alive, as far as its lease shows."""
        return not self._is_gone(session, await held_leases(self._store, session_lease(session)))

    async def close(self) -> None:
        """End this process's session; other processes abort its open transactions."""
        await self._watching.stop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        own, self._own = self._own, None
        if own is not None:
            try:
                await own[1].release()
            except TxnFrameworkError:
                return  # the lease ends with the store's session

    def _is_gone(self, session: str, living: Container[str]) -> bool:
        own = self._own is not None and session == self._own[0]
        return not own and session_lease(session) not in living

    async def _watch_ends(self) -> None:
        """
        Wake immediately, because sessions may have ended before the watch began, and then at every change.

        A change that the leases do not show is an unsure reason: a session began and ended between two looks, or the
        store reports more changes than there are. SQLite reports each commit of another process.
        """
        watch = await self._store.watch(leases_range(SESSION))
        try:
            before: set[str] | None = None
            while True:
                living = set(await held_leases(self._store, SESSION))
                self._wake(before == living)
                before = living
                await watch.changed()
        finally:
            await watch.close()

    async def _forget_when_lost(self, lease: ILease) -> None:
        await lease.lost()
        if self._own is not None and self._own[1] is lease:
            name, self._own = self._own[0], None
            sentence = f"{self.process} lost its session {name}: its open transactions are aborted"
            log_event(WARNING, Event.SESSION_LOST, sentence, session=name, process=self.process)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = start_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def session_lease(session: str) -> str:
    """Return the name of a session's lease."""
    return f"{SESSION}{session}"

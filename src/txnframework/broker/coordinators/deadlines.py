"""The timers of the transactions that began in a host."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable

from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError
from txnframework.model.ids import TxnID
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.tasks import BackgroundTask, first_completed

AT_ONCE_MAX = 16
"""The most overdue transactions that are aborted concurrently."""
STALE_MAX = 1_000
"""The most timers of ended transactions that are kept, in addition to the number of live timers."""
RETRY_MS = 100
"""The longest delay before the first retry of an abort that failed; each further one may be twice as long."""
RETRY_MS_MAX = 2_000
"""The longest delay between two retries of an abort."""


class Deadlines:
    """
    Aborts each transaction at its deadline, unless the transaction ended before and its timer was cancelled.

    A hastened transaction is aborted earlier, with retries until its deadline. At most ``timers_max`` timers are kept.
    The elected sweep finds further transactions, and those that could not be aborted in time.
    """

    def __init__(self, environment: Environment, timers_max: int, abort: Callable[[TxnID], Awaitable[None]]) -> None:
        self._environment = environment
        self._timers_max = timers_max
        self._abort = abort
        self._due_ms: dict[TxnID, int] = {}
        self._queue: list[tuple[int, TxnID]] = []
        # The hastened transactions: their deadlines, and how often their aborts failed.
        self._hastened: dict[TxnID, tuple[int, int]] = {}
        self._backoff = Backoff(environment, RETRY_MS, RETRY_MS_MAX)
        self._sooner = asyncio.Event()
        self._work = BackgroundTask(self._run)

    def __len__(self) -> int:
        return len(self._due_ms)

    def has(self, txn_id: TxnID) -> bool:
        """Return whether a timer is set for the transaction, or it is set again if a running abort fails."""
        return txn_id in self._due_ms or txn_id in self._hastened

    def set(self, txn_id: TxnID, due_ms: int) -> None:
        """Set a timer that aborts a transaction at ``due_ms``."""
        if len(self._due_ms) < self._timers_max:
            self._set(txn_id, due_ms)

    def hasten(self, txn_id: TxnID) -> None:
        """Abort a transaction soon instead of at its deadline; nothing without a timer, or if it is hastened."""
        deadline_ms = self._due_ms.get(txn_id)
        if deadline_ms is not None and txn_id not in self._hastened:
            self._retry(txn_id, deadline_ms, 1)

    def _retry(self, txn_id: TxnID, deadline_ms: int, failures: int) -> None:
        self._hastened[txn_id] = deadline_ms, failures
        self._set(txn_id, min(self._environment.now_ms() + self._backoff.delay_ms(failures), deadline_ms))

    def _set(self, txn_id: TxnID, due_ms: int) -> None:
        if not self._queue or due_ms < self._queue[0][0]:
            self._sooner.set()
        self._due_ms[txn_id] = due_ms
        heapq.heappush(self._queue, (due_ms, txn_id))

    def cancel(self, txn_id: TxnID) -> None:
        """Cancel the timer of a transaction that has ended."""
        self._hastened.pop(txn_id, None)
        if self._due_ms.pop(txn_id, None) is not None and len(self._queue) > 2 * len(self._due_ms) + STALE_MAX:
            self._queue = [(due_ms, one) for one, due_ms in self._due_ms.items()]
            heapq.heapify(self._queue)

    def start(self) -> None:
        """Start the timers; a second call does nothing."""
        self._work.start()

    async def stop(self) -> None:
        """Stop; a running abort is cancelled, which is safe at any point."""
        await self._work.stop()

    async def _run(self) -> None:
        while True:
            self._sooner.clear()
            if not self._queue:
                await self._sooner.wait()
            elif self._queue[0][0] > self._environment.now_ms():
                await first_completed(self._environment.sleep_until(self._queue[0][0]), self._sooner.wait())
            else:
                await asyncio.gather(*(self._end(txn_id) for txn_id in self._take_overdue()))

    def _take_overdue(self) -> list[TxnID]:
        """Return some transactions that are due, and drop their timers."""
        now_ms = self._environment.now_ms()
        overdue: list[TxnID] = []
        while self._queue and self._queue[0][0] <= now_ms and len(overdue) < AT_ONCE_MAX:
            due_ms, txn_id = heapq.heappop(self._queue)
            if self._due_ms.get(txn_id) != due_ms:
                continue  # it has ended, or is hastened
            del self._due_ms[txn_id]
            overdue.append(txn_id)
            if txn_id in self._hastened and self._hastened[txn_id][0] <= now_ms:
                del self._hastened[txn_id]  # the last attempt
        return overdue

    async def _end(self, txn_id: TxnID) -> None:
        try:
            await self._abort(txn_id)
        except TxnFrameworkError:
            if txn_id in self._hastened:
                deadline_ms, failures = self._hastened[txn_id]
                self._retry(txn_id, deadline_ms, failures + 1)
            # Otherwise the elected sweep finds it.
        except Exception as error:
            self.cancel(txn_id)
            report = {"message": f"transaction {txn_id} was not aborted at its deadline", "exception": error}
            asyncio.get_running_loop().call_exception_handler(report)

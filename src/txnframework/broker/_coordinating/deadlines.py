"""The timers of the transactions that this process began."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable

from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError
from txnframework.model.ids import TxnID
from txnframework.runtime.tasks import BackgroundTask, first_completed

AT_ONCE_MAX = 16
"""How many overdue transactions are aborted at the same time."""
STALE_MAX = 1_000
"""How many timers of ended transactions may wait to be forgotten, besides as many as there are live ones."""


class Deadlines:
    """
    Aborts each transaction at its deadline, unless it ended before and its timer was cancelled.

    At most ``timers_max`` are kept. What is beyond, and what cannot be aborted in time, is found by the elected sweep.
    """

    def __init__(self, environment: Environment, timers_max: int, abort: Callable[[TxnID], Awaitable[None]]) -> None:
        self._environment = environment
        self._timers_max = timers_max
        self._abort = abort
        self._due_ms: dict[TxnID, int] = {}
        self._queue: list[tuple[int, TxnID]] = []
        self._sooner = asyncio.Event()
        self._work = BackgroundTask(self._run)

    def __len__(self) -> int:
        return len(self._due_ms)

    def set(self, txn_id: TxnID, due_ms: int) -> None:
        """Abort a transaction at ``due_ms``."""
        if len(self._due_ms) >= self._timers_max:
            return
        if not self._queue or due_ms < self._queue[0][0]:
            self._sooner.set()
        self._due_ms[txn_id] = due_ms
        heapq.heappush(self._queue, (due_ms, txn_id))

    def cancel(self, txn_id: TxnID) -> None:
        """The transaction has ended."""
        if self._due_ms.pop(txn_id, None) is not None and len(self._queue) > 2 * len(self._due_ms) + STALE_MAX:
            self._queue = [(due_ms, one) for one, due_ms in self._due_ms.items()]
            heapq.heapify(self._queue)

    def start(self) -> None:
        """Begin; once is enough."""
        self._work.start()

    async def stop(self) -> None:
        """Stop; an abort under way is given up, which is safe at any point."""
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
        """Return some transactions whose time has come, and forget their timers."""
        now_ms = self._environment.now_ms()
        overdue: list[TxnID] = []
        while self._queue and self._queue[0][0] <= now_ms and len(overdue) < AT_ONCE_MAX:
            _, txn_id = heapq.heappop(self._queue)
            if self._due_ms.pop(txn_id, None) is not None:
                overdue.append(txn_id)
        return overdue

    async def _end(self, txn_id: TxnID) -> None:
        try:
            await self._abort(txn_id)
        except TxnFrameworkError:
            return  # the elected sweep finds it
        except Exception as error:
            report = {"message": f"transaction {txn_id} was not aborted at its deadline", "exception": error}
            asyncio.get_running_loop().call_exception_handler(report)

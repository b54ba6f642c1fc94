"""
The transactions that began or ended in a host: their timers, their settling, and their outcomes.

None of this is needed for correctness. If something here is lost, the sweeps of this or another host do the work.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from txnframework.broker.coordinators.deadlines import Deadlines
from txnframework.config import TransactionsSection
from txnframework.environment import Environment
from txnframework.errors import TransactionNotFound, TxnFrameworkError
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model.ids import Branch, TxnID
from txnframework.model.transactions import State, Transaction
from txnframework.runtime.deadline import Deadline
from txnframework.runtime.tasks import first_completed, start_task

OUTCOMES_MAX = 10_000
"""The number of branches whose outcomes a host remembers."""

QueuedWork = Callable[[], Coroutine[Any, Any, object]]
EndListener = Callable[[TxnID], None]


class OwnTransactions:
    """
    The transactions that began or ended in this process: aborted at their deadlines, and settled after their ends.

    ``abort`` aborts a transaction whose deadline has passed. ``coordinators_of`` returns the open coordinators that may
    have begun a transaction.
    """

    def __init__(
        self,
        environment: Environment,
        bounds: TransactionsSection,
        coordinators_of: Callable[[TxnID], Iterable[ITransactionCoordinator]],
        abort: Callable[[TxnID], Awaitable[None]],
    ) -> None:
        self.outcomes = KnownOutcomes(OUTCOMES_MAX)
        self.settles = True
        """Whether transactions are settled here; otherwise the sweeps settle them."""
        self.deadlines = Deadlines(environment, bounds.timers_max, self._abort_overdue)
        self._abort = abort
        # A dictionary without values: each listener is called once.
        self._listeners: dict[TxnID, dict[EndListener, None]] = {}
        self._coordinators_of = coordinators_of
        self._clock_skew_ms_max = bounds.max_clock_skew_ms
        self._settling = SettlingQueue(
            environment, bounds.settling_delay_ms, bounds.settling_max, bounds.settling_waiting_max
        )

    def abort_in_time(self, begun: Transaction) -> None:
        """At its deadline, abort a transaction, unless ``settle_soon`` is called for it earlier."""
        self.deadlines.set(begun.txn_id, begun.deadline_ms + self._clock_skew_ms_max)

    def abort_soon(self, txn_id: TxnID) -> None:
        """
        Abort a transaction in the background, because its abort failed, and retry until its deadline.

        Do nothing without a timer: the sweeps then abort it at its deadline.
        """
        self.deadlines.hasten(txn_id)

    def on_end(self, txn_id: TxnID, listener: EndListener) -> bool:
        """
        Call ``listener`` when an open transaction ends through this process, which began it.

        Return False if there is no timer for the transaction. It may have begun elsewhere, or have ended.
        """
        if not self.deadlines.has(txn_id):
            return False
        self._listeners.setdefault(txn_id, {})[listener] = None
        return True

    def settle_soon(self, txn_id: TxnID) -> None:
        """Settle an ended transaction in the background; the sweeps settle transactions that are missed here."""
        self.end_settled(txn_id)
        if self.settles:
            self._settling.start(partial(self._settle, txn_id))

    def settle_committed(self, txn_id: TxnID) -> None:
        """
        Settle a committed transaction in the background, and report its end afterwards.

        By then its messages are finished, so no listener has to look at the store for them. This is for transactions
        that this process settles by what it wrote. An aborted one is reported at once: its listeners deliver its
        messages again.
        """
        self.deadlines.cancel(txn_id)

        async def settle_and_report() -> None:
            try:
                await self._settle(txn_id)
            finally:
                self._report_end(txn_id)

        if not self.settles or not self._settling.start(settle_and_report):
            self._report_end(txn_id)

    def end_settled(self, txn_id: TxnID) -> None:
        """Note that a transaction has ended, and that nothing of it is left to be settled."""
        self.deadlines.cancel(txn_id)
        self._report_end(txn_id)

    async def finish(self, timeout_ms: int) -> None:
        """Wait at most ``timeout_ms`` for the settlings, and begin no others."""
        self.settles = False
        await self._settling.finish(timeout_ms)

    async def _abort_overdue(self, txn_id: TxnID) -> None:
        try:
            await self._abort(txn_id)
        except BaseException:
            # Without a timer, this is the last attempt, and perhaps the transaction ended elsewhere.
            if not self.deadlines.has(txn_id):
                self._report_end(txn_id)
            raise
        self.end_settled(txn_id)

    def _report_end(self, txn_id: TxnID) -> None:
        for listener in self._listeners.pop(txn_id, ()):
            listener(txn_id)

    async def _settle(self, txn_id: TxnID) -> None:
        for coordinator in self._coordinators_of(txn_id):
            await coordinator.settle(txn_id)


class SettlingQueue:
    """
    A bounded queue of transactions to settle; a sweep settles those that are dropped here.

    Work starts after ``delay_ms``, together with all that came meanwhile: transactions that are settled together share
    steps, and do not compete for the processor with callers that wait. At most ``at_once_max`` items run and
    ``waiting_max`` wait; further items are dropped. An item that fails with an error of the framework is dropped too.
    Any other exception is a defect, and goes to the loop's exception handler.
    """

    def __init__(self, environment: Environment, delay_ms: int, at_once_max: int, waiting_max: int) -> None:
        self._environment = environment
        self._delay_ms = delay_ms
        self._slots = asyncio.Semaphore(at_once_max)
        self._tasks_max = at_once_max + waiting_max
        self._held: deque[QueuedWork] = deque()
        self._delayed_starts: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: QueuedWork) -> bool:
        """Run ``work`` soon; return False if the queue is full."""
        if len(self._tasks) + len(self._held) >= self._tasks_max:
            return False
        if not self._delay_ms:
            self._begin(work)
            return True
        self._held.append(work)
        if self._delayed_starts is None:
            self._delayed_starts = start_task(self._start_delayed())
        return True

    async def finish(self, timeout_ms: int) -> None:
        """Start all delayed items, wait at most ``timeout_ms`` for all items, and cancel the rest."""
        self._delay_ms = 0
        if self._delayed_starts is not None:
            self._delayed_starts.cancel()
        while self._held:
            self._begin(self._held.popleft())
        deadline = Deadline(self._environment, timeout_ms)
        while self._tasks and deadline.left_ms:
            await first_completed(asyncio.wait(tuple(self._tasks)), deadline.passed())
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(tuple(self._tasks))

    async def _start_delayed(self) -> None:
        """Start all items when the delay of the first one has passed."""
        await Deadline(self._environment, self._delay_ms).passed()
        while self._held:
            self._begin(self._held.popleft())
        self._delayed_starts = None

    def _begin(self, work: QueuedWork) -> None:
        task = start_task(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def _run(self, work: QueuedWork) -> None:
        async with self._slots:
            try:
                await work()
            except TxnFrameworkError:
                return

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "background work failed", "exception": error})


class KnownOutcomes:
    """A bounded cache of outcomes, which never change; the oldest ones are dropped first and can be requested again."""

    def __init__(self, branches_max: int) -> None:
        self._branches_max = branches_max
        self._counts: OrderedDict[Branch, bool] = OrderedDict()

    def note(self, branch: Branch, *, counts: bool) -> None:
        """Note that the branch's transaction has ended, and whether its writes and acknowledgments count."""
        self._counts[branch] = counts
        self._counts.move_to_end(branch)
        if len(self._counts) > self._branches_max:
            self._counts.popitem(last=False)

    def counts(self, branch: Branch) -> bool | None:
        """Return whether a branch counts; None: the outcome is not cached, or its transaction is open."""
        return self._counts.get(branch)

    async def load(self, coordinator: ITransactionCoordinator, branch: Branch) -> None:
        """
        Ask the coordinator for the outcome of a transaction that is not cached, and note it if the transaction has
        ended.

        A forgotten transaction cannot be distinguished from an aborted one, so callers must not rely on its outcome.
        """
        try:
            found = await coordinator.describe(branch.txn_id)
        except TransactionNotFound:
            self.note(branch, counts=False)
            return
        if found.state in (State.COMMITTED, State.ABORTED):
            self.note(branch, counts=found.counts(branch.number))

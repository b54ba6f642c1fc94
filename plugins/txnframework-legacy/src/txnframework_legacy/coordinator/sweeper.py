"""Aborting overdue transactions, finishing decided ones, and forgetting old ones."""

from __future__ import annotations

from collections.abc import Iterator

from txnframework.config import TransactionsSection
from txnframework.errors import Corrupt, InvalidTransactionState, TransactionNotFound, TxnFrameworkError
from txnframework.model import Action, End, State, SweepResult, Transaction
from txnframework_legacy.coordinator.completion import TransactionCompletion
from txnframework_legacy.coordinator.log import TransactionLog, TransactionLogs
from txnframework_legacy.coordinator.records import Forget
from txnframework_legacy.coordinator.state import LoggedTransaction
from txnframework_legacy.options import CoordinatorOptions


class TransactionSweeper:
    """The two sweeps over every log; each handles a bounded number of transactions."""

    def __init__(
        self,
        logs: TransactionLogs,
        completion: TransactionCompletion,
        transactions: TransactionsSection,
        options: CoordinatorOptions,
    ) -> None:
        self._logs = logs
        self._completion = completion
        self._transactions = transactions
        self._options = options
        self._turn = 0

    async def expire(self, now_ms: int) -> SweepResult:
        """Abort overdue transactions, and settle decided ones whose process stopped before it had settled them."""
        skew_ms = self._transactions.max_clock_skew_ms
        overdue: list[LoggedTransaction] = []
        settling: list[tuple[TransactionLog, LoggedTransaction]] = []
        next_ms: int | None = None
        for log in await self._logs.all():
            for logged in (await log.catch_up()).all():
                if logged.settling:
                    settling.append((log, logged))
                elif logged.state is State.OPEN:
                    due_ms = logged.transaction.deadline_ms + skew_ms
                    if due_ms < now_ms:
                        overdue.append(logged)
                    else:
                        next_ms = due_ms + 1 if next_ms is None else min(next_ms, due_ms + 1)
        turn = self._transactions.sweep_transactions_max
        overdue.sort(key=lambda one: one.transaction.deadline_ms)
        aborted: list[Transaction] = []
        for logged in overdue[:turn]:
            aborted += await self._abort(logged)
        finished = await self._finish(settling, turn)
        left = max(0, len(overdue) - turn) + len(settling) - finished
        return SweepResult(len(aborted) + finished, left, next_ms, tuple(aborted))

    async def collect(self, now_ms: int) -> SweepResult:
        """Forget transactions that ended longer ago than the retention of outcomes, and trim the logs."""
        turn = self._transactions.sweep_transactions_max
        done = left = 0
        for log in await self._logs.all():
            known = (await log.catch_up()).all()
            settling = [(log, logged) for logged in known if logged.settling]
            finished = await self._finish(settling, max(0, turn - done))
            left += len(settling) - finished
            due = [one.transaction.txn_id.number for one in log.transactions.all() if self._is_due(one, now_ms)]
            forgotten = due[: max(0, turn - done)]
            if forgotten:
                await log.append(Forget(numbers=forgotten))
            left += len(due) - len(forgotten)
            done += finished + len(forgotten)
            await log.shrink(self._options.ledger_entries_max)
        return SweepResult(done, left)

    def _is_due(self, logged: LoggedTransaction, now_ms: int) -> bool:
        ended_ms = logged.transaction.finalized_ms
        if ended_ms is None or logged.state is State.OPEN or logged.settling:
            return False
        return ended_ms + self._transactions.retention_ms + self._transactions.max_clock_skew_ms < now_ms

    async def _abort(self, logged: LoggedTransaction) -> list[Transaction]:
        """Abort an overdue transaction and try once to settle it; return it if it was aborted."""
        request = End(logged.transaction.txn_id, Action.ABORT, operator=True)
        try:
            log, decided = await self._completion.decide(request)
        except (InvalidTransactionState, TransactionNotFound):
            return []  # another process ended it first
        await self._finish([(log, decided)], 1)
        return [decided.as_described()]

    async def _finish(self, settling: list[tuple[TransactionLog, LoggedTransaction]], items_max: int) -> int:
        """
        Try to settle some decided transactions; return how many are settled at every participant.

        Each sweep starts at another transaction, so that transactions that repeatedly fail do not block the others.
        """
        finished = 0
        for log, logged in self._in_turn(settling, items_max):
            try:
                finished += not await self._completion.settle_once(log, logged)
            except Corrupt:
                raise
            except TxnFrameworkError:
                continue
        return finished

    def _in_turn(
        self, settling: list[tuple[TransactionLog, LoggedTransaction]], items_max: int
    ) -> Iterator[tuple[TransactionLog, LoggedTransaction]]:
        start = 0
        if len(settling) > items_max:
            self._turn += items_max
            start = self._turn % len(settling)
        yield from [*settling[start:], *settling[:start]][:items_max]

"""The transactions of a handler loop: while one commits, the next one begins."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from txnframework.client._base import require_open
from txnframework.client._transaction import BlockTransaction, Transaction
from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError
from txnframework.model.transactions import Begin
from txnframework.model.transactions import Transaction as Begun

EARLY_MS_MAX = 1_000
"""The greatest age of a transaction that began early, when a handler begins to use it."""


class EarlyTransaction(BlockTransaction):
    """A transaction that may begin before a caller waits for it."""

    # The step of ``begin_early``, until ``begin`` or ``give_up_begin`` takes it.
    _beginning: asyncio.Task[Begun] | None = None

    def begin_early(self) -> None:
        """Start to begin without waiting; ``begin`` waits for it later. Do not call this twice."""
        require_open(self._host)
        self._beginning = self._host.steps.begin(self._begin_in_store)

    def give_up_begin(self) -> None:
        """Abort, in the background, what ``begin_early`` has begun; this object has not begun."""
        step, self._beginning = self._beginning, None
        if step is not None:
            self._host.steps.leave(partial(self._undo_begin, step))

    async def _undo_begin(self, step: asyncio.Task[Begun]) -> None:
        await asyncio.wait({step})
        if not step.cancelled() and step.exception() is None:
            await self._forget(step.result())

    async def _begin_for_caller(self) -> Begun:
        step, self._beginning = self._beginning, None
        if step is None:
            return await super()._begin_for_caller()
        return await self._host.steps.end_of(step, undo=self._forget)


@dataclass(frozen=True, slots=True)
class _Early:
    """A transaction that has begun, or is about to, before a handler needs it."""

    txn: EarlyTransaction
    domain: str
    since_ms: int


class HandlerTransactions:
    """
    Begins a transaction for each call of a handler.

    When a call's transaction is about to commit, and further messages wait, the transaction of the next call begins at
    the same time. A store may perform both in one step. This does not decide when the handler is called.

    A transaction that began early has no operations. If it is not used, it is aborted. If this process ends first, it
    is aborted like every open transaction of a process that ended.

    * ``create`` returns a new transaction of a domain. ``domain`` returns the present domain of the topics.
    * ``needed`` returns how many calls of the handler the received messages need.
    * ``request`` is what each transaction begins with.
    """

    def __init__(
        self,
        create: Callable[[str], EarlyTransaction],
        domain: Callable[[], str],
        needed: Callable[[], int],
        environment: Environment,
        request: Begin,
    ) -> None:
        self.request = request
        self._create = create
        self.domain = domain
        self._needed = needed
        self._environment = environment
        self._age_ms_max = min(EARLY_MS_MAX, request.timeout_ms // 10)
        self._early: deque[_Early] = deque()
        self._waits = False

    def open(self) -> AbstractAsyncContextManager[Transaction]:
        """Return the block of one call: its transaction is open in it, and ends with it."""
        return _Call(self)

    def messages_awaited(self) -> None:
        """Note that the loop has to wait for messages: abort what began early, and begin nothing early."""
        self._waits = True
        self.give_up()

    def messages_received(self) -> None:
        """Note that the loop has received messages: abort what began too early, and was not used since."""
        self._waits = False
        while self._early and self._is_old(self._early[0]):
            self._early.popleft().txn.give_up_begin()

    def give_up(self) -> None:
        """Abort the transactions that began early, without waiting for it."""
        while self._early:
            self._early.popleft().txn.give_up_begin()

    async def take(self) -> Transaction:
        """Return an open transaction; errors are those of ``Transaction.begin``."""
        domain = self.domain()
        while self._early:
            early = self._early.popleft()
            if early.domain != domain or self._is_old(early):
                early.txn.give_up_begin()
                continue
            try:
                await early.txn.begin()
            except TxnFrameworkError:
                continue  # the stores may answer now
            return early.txn
        txn = self._create(domain)
        await txn.begin()
        return txn

    def _is_old(self, early: _Early) -> bool:
        return self._environment.now_ms() - early.since_ms > self._age_ms_max

    def begin_early(self) -> None:
        """Let the transaction of the next call begin, if further messages wait."""
        if self._waits or len(self._early) >= self._needed():
            return
        try:
            domain = self.domain()
            txn = self._create(domain)
        except TxnFrameworkError:
            return  # reported to the next call
        txn.begin_early()
        self._early.append(_Early(txn, domain, self._environment.now_ms()))


class _Call(AbstractAsyncContextManager[Transaction]):
    """The block of one call of the handler."""

    def __init__(self, transactions: HandlerTransactions) -> None:
        self._transactions = transactions
        self._txn: Transaction | None = None

    async def __aenter__(self) -> Transaction:
        self._txn = await self._transactions.take()
        return self._txn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._txn is not None, "it was entered"
        if error is None:
            self._transactions.begin_early()
        await self._txn.__aexit__(kind, error, trace)

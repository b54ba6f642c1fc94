"""Appends to one managed ledger: calls that wait at the same time are stored as one record."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from txnframework.errors import Closed, OutcomeUnknown, Unavailable
from txnframework.model import Append, Appended
from txnframework.runtime.tasks import start_task
from txnframework_nats.ledgers._decisions import Decision, Limits, Wanted, decide_appends
from txnframework_nats.ledgers._log import Change, LedgerLog
from txnframework_nats.ledgers._numbers import TransactionNumbers
from txnframework_nats.ledgers._state import LedgerState

_REFUSALS_MAX = 10


class _Waiting(msgspec.Struct, frozen=True):
    wanted: Wanted
    size: int
    answered: asyncio.Future[tuple[Appended, ...]]


class Appender:
    """
    Stores the waiting calls of append, one record after another.

    A caller that is cancelled before its call is taken has appended nothing. After that all of it is stored, or none.
    """

    def __init__(
        self,
        log: LedgerLog,
        numbers: TransactionNumbers,
        limits: Limits,
        group_bytes_max: int,
        now_ms: Callable[[], int],
        new_token: Callable[[], bytes],
    ) -> None:
        self._log = log
        self._numbers = numbers
        self._limits = limits
        self._group_bytes_max = group_bytes_max
        self._now_ms = now_ms
        self._new_token = new_token
        self._waiting: deque[_Waiting] = deque()
        self._taken: list[_Waiting] = []
        self._working: asyncio.Task[None] | None = None
        self._is_closed = False

    async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """Append entries; see IManagedLedger."""
        if self._is_closed:
            raise Closed(f"the ledger store of {self._log.name} was closed")
        answered: asyncio.Future[tuple[Appended, ...]] = asyncio.get_running_loop().create_future()
        size = sum(len(entry.data) for entry in entries)
        self._waiting.append(_Waiting(Wanted(entries, ledger_id), size, answered))
        if self._working is None or self._working.done():
            self._working = start_task(self._work())
        return await answered

    async def close(self) -> None:
        """Stop; calls in flight raise OutcomeUnknown, and waiting ones Closed."""
        self._is_closed = True
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait((self._working,))
        for waiting in self._taken:
            if not waiting.answered.done():
                waiting.answered.set_exception(OutcomeUnknown(f"{self._log.name} was closed during an append"))
        for waiting in self._waiting:
            if not waiting.answered.done():
                waiting.answered.set_exception(Closed(f"the ledger store of {self._log.name} was closed"))
        self._waiting.clear()

    async def _work(self) -> None:
        while self._waiting:
            self._taken = self._take()
            if not self._taken:
                continue
            try:
                decision = await self._store([waiting.wanted for waiting in self._taken])
            except Exception as error:
                for waiting in self._taken:
                    if not waiting.answered.done():
                        waiting.answered.set_exception(_copy(error))
                continue
            for waiting, answer in zip(self._taken, decision.answers, strict=True):
                if waiting.answered.done():
                    continue
                if isinstance(answer, tuple):
                    waiting.answered.set_result(answer)
                else:
                    waiting.answered.set_exception(answer)
        self._taken = []

    def _take(self) -> list[_Waiting]:
        """Take calls as long as they fit into one record, and at least one."""
        taken: list[_Waiting] = []
        size = 0
        while self._waiting and (not taken or size + self._waiting[0].size <= self._group_bytes_max):
            waiting = self._waiting.popleft()
            if not waiting.answered.done():  # else its caller was cancelled
                taken.append(waiting)
                size += waiting.size
        return taken

    async def _store(self, calls: list[Wanted]) -> Decision:
        def decide(state: LedgerState) -> Change[Decision]:
            decision = decide_appends(state, calls, self._now_ms(), self._new_token(), self._limits)
            return Change(decision, decision.added, decision.data)

        branches = [entry.branch for call in calls for entry in call.entries if entry.branch is not None]
        beyond = self._numbers.beyond(branches)
        if not beyond:
            return await self._log.change(decide, _REFUSALS_MAX)
        noting = start_task(self._numbers.note(beyond))
        try:
            decision = await self._log.change(decide, _REFUSALS_MAX)
            try:
                await noting
            except Unavailable as error:
                raise OutcomeUnknown(f"entries of {self._log.name} may be stored, but {error}") from error
        finally:
            noting.cancel()
            await asyncio.wait((noting,))
        return decision


def _copy(error: Exception) -> Exception:
    """Return an error of the same kind for one of several callers; each has its own traceback."""
    copied = error.__class__.__new__(error.__class__)
    copied.__dict__.update(error.__dict__)
    copied.args = error.args
    copied.__cause__ = error
    return copied

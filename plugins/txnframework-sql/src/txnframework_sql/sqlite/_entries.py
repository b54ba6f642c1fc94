"""Entries of managed ledgers in SQLite: appends and tails of one turn of the event loop share their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from txnframework.model import (
    Append,
    Appended,
    Applied,
    EntryRange,
    LedgerEntry,
    Limit,
    Step,
    Tail,
)
from txnframework_sql._options import LedgerOptions
from txnframework_sql.sqlite._jobs import SharedWork
from txnframework_sql.steps import reads
from txnframework_sql.steps.ledger_references import deciding_put, ledger_of
from txnframework_sql.steps.ledgers import LedgerRef, tails_of
from txnframework_sql.steps.shared_appends import LedgerCall, append_calls
from txnframework_sql.steps.shared_steps import StepCall, apply_steps
from txnframework_sql.steps.statements import Executor, Steps

C = TypeVar("C")
T = TypeVar("T")


class SharingExecutor(Executor, Protocol):
    """An executor that performs calls of one kind together."""

    async def share(self, work: SharedWork[C, T], call: C, is_write: bool) -> T:
        """Return the result of a call; see ``SqliteDatabase.share``."""


class SqliteEntries:
    """The entries of one store's ledgers, however many ledgers a turn of the event loop appends to."""

    def __init__(self, executor: SharingExecutor, options: LedgerOptions) -> None:
        self._executor = executor
        self._options = options

    async def append(
        self, managed: LedgerRef, entries: tuple[Append, ...], ledger_id: int | None, now_ms: int
    ) -> tuple[Appended, ...]:
        """Append durably, in order, adjacent, to ledger ``ledger_id`` only."""
        call = LedgerCall(managed, entries, ledger_id, now_ms)
        return await self._executor.share(self._append_calls, call, is_write=True)

    async def apply(self, step: Step, now_ms: int, transaction: Any = None) -> Applied:
        """Make a step; see ``_database.Entries``."""
        if transaction is not None:
            work = apply_steps((StepCall(step, now_ms),), self._options)
            done = await transaction.step(work, deciding_put(step).key)
        elif step.intent is None:
            done = await self._executor.share(self._apply_steps, StepCall(step, now_ms), is_write=True)
        else:
            (append,) = step.appends
            call = LedgerCall(ledger_of(append.ledger), append.entries, None, now_ms, step)
            done = await self._executor.share(self._append_calls, call, is_write=True)
        applied: Applied = done
        return applied

    async def tail(self, managed: LedgerRef) -> Tail:
        """Return last confirmed position, open ledger and sealed flag, read at one moment."""
        return await self._executor.share(tails_of, managed, is_write=False)

    async def read(self, managed: LedgerRef, range_: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range in order."""
        return await self._executor.read(lambda: reads.read(managed, range_, limit))

    async def close(self) -> None:
        """Return immediately: the executor waits for its own running operations."""

    def _append_calls(self, calls: Sequence[LedgerCall]) -> Steps[Sequence[Any]]:
        return append_calls(calls, self._options)

    def _apply_steps(self, calls: Sequence[StepCall]) -> Steps[Sequence[Any]]:
        return apply_steps(calls, self._options)

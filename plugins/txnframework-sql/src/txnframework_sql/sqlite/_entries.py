"""Entries of managed ledgers in SQLite: appends and tails of one turn of the event loop share their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from txnframework.model import (
    Append,
    Appended,
    EntryRange,
    IntendedAppend,
    IntendedAppended,
    JointAppend,
    JointAppended,
    LedgerEntry,
    Limit,
    Tail,
)
from txnframework_sql._options import LedgerOptions
from txnframework_sql.sqlite._jobs import SharedWork
from txnframework_sql.steps import reads
from txnframework_sql.steps.joint_appends import JointCall, append_all_jointly
from txnframework_sql.steps.ledgers import LedgerRef, tails_of
from txnframework_sql.steps.shared_appends import LedgerAppend, append_calls
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
        call = LedgerAppend(managed, entries, ledger_id, now_ms)
        return await self._executor.share(self._append_calls, call, is_write=True)

    async def append_intended(self, managed: LedgerRef, request: IntendedAppend, now_ms: int) -> IntendedAppended:
        """Write a write operation and append its entries, in one step."""
        call = LedgerAppend(managed, request.entries, None, now_ms, request)
        done: IntendedAppended = await self._executor.share(self._append_calls, call, is_write=True)
        return done

    async def append_jointly(self, request: JointAppend, now_ms: int) -> JointAppended:
        """Append entries to several ledgers and apply a batch, in one step."""
        done: JointAppended = await self._executor.share(
            self._append_all_jointly, JointCall(request, now_ms), is_write=True
        )
        return done

    async def append_with(self, transaction: Any, request: JointAppend, now_ms: int) -> JointAppended:
        """As ``append_jointly``, in a transaction of an application that ``SqliteJoins`` has joined."""
        header = request.puts[0].key
        calls = (JointCall(request, now_ms),)
        (done,) = await transaction.step(append_all_jointly(calls, self._options), header)
        if isinstance(done, Exception):
            raise done
        appended: JointAppended = done
        return appended

    async def tail(self, managed: LedgerRef) -> Tail:
        """Return last confirmed position, open ledger and sealed flag, read at one moment."""
        return await self._executor.share(tails_of, managed, is_write=False)

    async def read(self, managed: LedgerRef, range_: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range in order."""
        return await self._executor.read(lambda: reads.read(managed, range_, limit))

    async def close(self) -> None:
        """Return immediately: the executor waits for its own running operations."""

    def _append_calls(self, calls: Sequence[LedgerAppend]) -> Steps[Sequence[Any]]:
        return append_calls(calls, self._options)

    def _append_all_jointly(self, calls: Sequence[JointCall]) -> Steps[Sequence[Any]]:
        return append_all_jointly(calls, self._options)

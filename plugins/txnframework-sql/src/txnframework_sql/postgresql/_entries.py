"""Entries of managed ledgers in PostgreSQL: each operation is one statement, and therefore reads one snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txnframework.errors import LedgerNotFound, TxnFrameworkError
from txnframework.model import (
    Append,
    Appended,
    Applied,
    EntryRange,
    LedgerEntry,
    Limit,
    Position,
    Step,
    Tail,
)
from txnframework_sql._database import EntrySteps
from txnframework_sql._options import LedgerOptions
from txnframework_sql.postgresql._append_columns import AppendCall
from txnframework_sql.postgresql._appends import Appends
from txnframework_sql.postgresql._call_groups import CallGroups
from txnframework_sql.postgresql._connection import SCHEMA
from txnframework_sql.postgresql._executor import PostgresqlExecutor
from txnframework_sql.postgresql._schema import READ_ENTRIES
from txnframework_sql.postgresql._step_calls import StepCalls
from txnframework_sql.schema import entry_id_of, ledger_id_of
from txnframework_sql.steps.ledger_references import ledger_of
from txnframework_sql.steps.ledgers import LedgerRef

_TAIL = f"""
SELECT m.id, m.sealed, m.open_ledger_id, m.last_ledger_id, m.last_entry_id, s.entries
FROM {SCHEMA}.managed_ledgers m JOIN {SCHEMA}.ledger_segments s ON s.ledger_id = m.open_ledger_id
WHERE m.id = ANY ($1) AND m.name IS NOT NULL
"""  # noqa: S608 - a name of our own
_TAILS_UNDER_WAY = 2
# No entry has a position beyond it, though a caller may name one as the end of a range.
_HIGHEST = (1 << 31) - 1


class PostgresqlEntries:
    """Entries by one statement for each operation; exceptional cases use the steps."""

    def __init__(self, executor: PostgresqlExecutor, options: LedgerOptions) -> None:
        self._executor = executor
        self._pool = executor.pool
        self._steps = EntrySteps(executor, options)
        self._appends = Appends(executor, self._steps, options)
        self._step_calls = StepCalls(executor, options, is_of_ledgers=True)
        # A client that starts to write to a topic reads the end of the ledger. Many clients often do so at the same
        # time for one ledger.
        self._tails: CallGroups[LedgerRef, Tail] = CallGroups(
            self._ends, queue_max=options.queue_max, group_max=options.group_max, under_way_max=_TAILS_UNDER_WAY
        )

    async def append(
        self, managed: LedgerRef, entries: tuple[Append, ...], ledger_id: int | None, now_ms: int
    ) -> tuple[Appended, ...]:
        """Append durably, in order, adjacent, to ledger ``ledger_id`` only."""
        appended: tuple[Appended, ...] = await self._appends.append(managed, AppendCall(entries, ledger_id, now_ms))
        return appended

    async def apply(self, step: Step, now_ms: int, transaction: Any = None) -> Applied:
        """Make a step with appends or vacant ranges; see ``_database.Entries``."""
        if transaction is not None:
            return await self._step_calls.apply_with(transaction, step, now_ms)
        if step.intent is None:
            return await self._step_calls.apply(step, now_ms)
        call = AppendCall(step.appends[0].entries, None, now_ms, step)
        applied: Applied = await self._appends.append(ledger_of(step.appends[0].ledger), call)
        return applied

    async def tail(self, managed: LedgerRef) -> Tail:
        """Return last confirmed position, open ledger and sealed flag."""
        self._executor.require_open()
        return await self._tails.submit(managed)

    async def read(self, managed: LedgerRef, range_: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range in order."""
        self._executor.require_open()
        bounds = (range_.after.ledger_id, range_.after.entry_id, range_.upto.ledger_id, range_.upto.entry_id)
        arguments = (managed.id, *(min(bound, _HIGHEST) for bound in bounds), max(limit.items, 1), limit.bytes)
        rows = await self._pool.run(lambda connection: connection.read(READ_ENTRIES.call, *arguments))
        if rows and rows[-1][0] is None:
            # The range is not complete, and the steps find out why.
            return await self._steps.read(managed, range_, limit)
        return tuple(LedgerEntry(Position(ledger_id_of(place), entry_id_of(place)), data) for place, data in rows)

    async def close(self) -> None:
        """Wait for the running operations, which return their results normally."""
        await self._tails.close()
        await self._appends.close()
        await self._step_calls.close()

    async def _ends(self, ledgers: Sequence[LedgerRef]) -> list[Tail | TxnFrameworkError]:
        """Return the ends of several managed ledgers, read at one moment."""
        ids = list({managed.id for managed in ledgers})
        rows = await self._pool.run(lambda connection: connection.read(_TAIL, ids))
        ends = {managed_id: _tail(*end) for managed_id, *end in rows}
        return [ends[managed.id] if managed.id in ends else LedgerNotFound(managed.name) for managed in ledgers]


def _tail(sealed: int, open_ledger_id: int, last_ledger_id: int, last_entry_id: int, size: int) -> Tail:
    last = Position(open_ledger_id, size - 1) if size else Position(last_ledger_id, last_entry_id)
    return Tail(last, open_ledger_id, bool(sealed))

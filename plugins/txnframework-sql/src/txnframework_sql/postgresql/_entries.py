"""Entries of managed ledgers in PostgreSQL: each operation is one statement, and so one consistent fact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from txnframework.errors import LedgerNotFound, TxnFrameworkError
from txnframework.model import Append, Appended, EntryRange, LedgerEntry, Limit, Position, Tail
from txnframework_sql._entries import EntrySteps
from txnframework_sql._executor import Executor
from txnframework_sql._options import LedgerOptions
from txnframework_sql.postgresql._appending import Appends
from txnframework_sql.postgresql._connections import Connections
from txnframework_sql.postgresql._functions import READ_ENTRIES
from txnframework_sql.postgresql._qualified import HERE
from txnframework_sql.postgresql._together import Together
from txnframework_sql.schema import entry_id_of, ledger_id_of
from txnframework_sql.steps.changes import Change
from txnframework_sql.steps.ledgers import Managed

_TAIL = f"""
SELECT m.id, m.sealed, m.open_ledger_id, m.last_ledger_id, m.last_entry_id, s.entries
FROM {HERE}.managed_ledgers m JOIN {HERE}.ledger_segments s ON s.ledger_id = m.open_ledger_id
WHERE m.id = ANY ($1) AND m.name IS NOT NULL
"""  # noqa: S608 - a name of our own
_TAILS_UNDER_WAY = 2
# Both in one view; the columns of the one are null in the rows of the other.
_END_AND_ENTRIES = f"""
SELECT m.id, m.sealed, m.open_ledger_id, m.last_ledger_id, m.last_entry_id, s.entries, NULL::bigint, NULL::bytea
FROM {HERE}.managed_ledgers m JOIN {HERE}.ledger_segments s ON s.ledger_id = m.open_ledger_id
WHERE m.id = $1 AND m.name IS NOT NULL
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, place, data FROM {READ_ENTRIES.applied}
"""  # noqa: S608 - a name of our own
# Positions beyond it, which a caller may name as the end of everything, hold nothing.
_HIGHEST = (1 << 31) - 1


@dataclass(slots=True, eq=False)
class _Beside:
    """The read that goes with the end of its ledger, if one is asked for before that is sent."""

    arguments: tuple[object, ...] = ()
    rows: asyncio.Future[Sequence[Any] | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    is_sent: bool = False

    def answer(self, rows: Sequence[Any] | None) -> None:
        """Tell whoever reads, if anybody does; None: it has to ask alone."""
        if not self.rows.done():
            self.rows.set_result(rows)


class PostgresqlEntries:
    """
    Entries by what is fast in PostgreSQL; by the steps, where something is out of the ordinary.

    Whoever asks for the end of a ledger and for what stands there, in one turn of the event loop, is answered by one
    statement: that is what everybody does who waits for entries.
    """

    def __init__(
        self,
        connections: Connections,
        executor: Executor,
        options: LedgerOptions,
        tell: Callable[[tuple[Change, ...]], None],
    ) -> None:
        self._connections = connections
        self._executor = executor
        self._steps = EntrySteps(executor, options)
        self._appends = Appends(connections, executor, self._steps, options, tell)
        # Whoever begins to write to a topic asks for its end: many at a time, and often for one ledger.
        self._tails: Together[Managed, Tail] = Together(
            self._ends, queue_max=options.queue_max, group_max=options.group_max, under_way_max=_TAILS_UNDER_WAY
        )
        # Of ledgers whose end was asked for and the question not sent yet.
        self._beside: dict[int, _Beside] = {}

    async def append(
        self, managed: Managed, entries: tuple[Append, ...], ledger_id: int | None, now_ms: int
    ) -> tuple[Appended, ...]:
        """Append durably, in order, adjacent, to ``ledger_id`` and no other."""
        return await self._appends.append(managed, entries, ledger_id, now_ms)

    async def tail(self, managed: Managed) -> Tail:
        """Return last confirmed position, open ledger and sealed flag."""
        self._executor.require_open()
        beside = self._beside.setdefault(managed.id, _Beside())
        try:
            return await self._tails.ask(managed)
        finally:
            # Also where this was cancelled before it was sent: nobody else may wait for it then.
            if not beside.is_sent:
                if self._beside.get(managed.id) is beside:
                    del self._beside[managed.id]
                beside.answer(None)

    async def read(self, managed: Managed, range_: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range in order."""
        self._executor.require_open()
        bounds = (range_.after.ledger_id, range_.after.entry_id, range_.upto.ledger_id, range_.upto.entry_id)
        arguments = (managed.id, *(min(bound, _HIGHEST) for bound in bounds), max(limit.items, 1), limit.bytes)
        rows: Sequence[Any] | None = await self._read_beside_end(managed, arguments)
        if rows is None:
            rows = list(await self._connections.run(lambda connection: connection.read(READ_ENTRIES.call, *arguments)))
        if rows and rows[-1][0] is None:
            # Something is not as it should be, and these say what.
            return await self._steps.read(managed, range_, limit)
        return tuple(LedgerEntry(Position(ledger_id_of(place), entry_id_of(place)), data) for place, data in rows)

    async def close(self) -> None:
        """Wait for what is under way; each still gets its true answer."""
        await self._tails.close()
        await self._appends.close()

    async def _read_beside_end(self, managed: Managed, arguments: tuple[object, ...]) -> Sequence[Any] | None:
        """Return the rows of a read that went with the end of its ledger; None if it did not."""
        beside = self._beside.get(managed.id)
        if beside is None or beside.arguments:
            return None
        beside.arguments = arguments
        return await beside.rows

    async def _ends(self, ledgers: Sequence[Managed]) -> list[Tail | TxnFrameworkError]:
        """Return the ends of several managed ledgers, as one consistent fact."""
        ids = list({managed.id for managed in ledgers})
        if len(ids) == 1 and (beside := self._beside.pop(ids[0], None)) is not None and beside.arguments:
            rows: Sequence[Any] = await self._end_and_entries(beside)
        else:
            rows = await self._connections.run(lambda connection: connection.read(_TAIL, ids))
        ends = {managed_id: _tail(*end) for managed_id, *end in rows}
        return [ends[managed.id] if managed.id in ends else LedgerNotFound(managed.name) for managed in ledgers]

    async def _end_and_entries(self, beside: _Beside) -> Sequence[Any]:
        """Return the row of a ledger's end, and answer the read that was asked for with it."""
        beside.is_sent = True
        rows = None
        try:
            rows = await self._connections.run(lambda one: one.read(_END_AND_ENTRIES, *beside.arguments))
        finally:
            beside.answer(None if rows is None else [row[6:] for row in rows if row[0] is None])
        return [row[:6] for row in rows if row[0] is not None]


def _tail(sealed: int, open_ledger_id: int, last_ledger_id: int, last_entry_id: int, size: int) -> Tail:
    last = Position(open_ledger_id, size - 1) if size else Position(last_ledger_id, last_entry_id)
    return Tail(last, open_ledger_id, bool(sealed))

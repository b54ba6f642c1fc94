"""A small database of the application beside the records of a server: tables of rows, transactions and row locks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Literal

from txnframework.errors import InvalidInput, OutcomeUnknown
from txnframework.model import Applied, Step
from txnframework_memory._link import Link, Pause, yield_once
from txnframework_memory._records import Locks, Records, Row

Constraint = Callable[[Mapping[Row, bytes]], None]
"""Called by each COMMIT with the rows after it; an error that it raises makes the COMMIT fail."""


LostCommit = Literal["applied", "dropped", "late"]
"""What happened to a COMMIT without a reply; "late": it is still on its way, until ``deliver``."""


class MemoryDatabase:
    """The tables of one space; ``constraints`` are checked by each COMMIT."""

    def __init__(self, records: Records, locks: Locks) -> None:
        self.constraints: list[Constraint] = []
        self.records = records
        self.locks = locks
        self.rows: dict[Row, bytes] = {}

    def connect(self, pause: Pause = yield_once) -> MemoryConnection:
        """Return a new connection; it awaits ``pause`` before and after every step."""
        return MemoryConnection(self, pause)


class OpenTransaction:
    """What one open transaction has written: rows (None: deleted), and a last step."""

    def __init__(self) -> None:
        self.rows: dict[Row, bytes | None] = {}
        self.step: Callable[[], object] | None = None
        self.ended = asyncio.Event()


class MemoryConnection:
    """
    A connection of the application to its tables, which are in the same space as the records.

    The first write or ``begin`` begins a transaction. Other connections read the last committed rows. Of two
    transactions that write one row, the second gets RowLocked.
    """

    def __init__(self, database: MemoryDatabase, pause: Pause) -> None:
        self.database = database
        self.link = Link("the connection to the rows", pause)
        self.open: OpenTransaction | None = None
        """The open transaction, if there is one."""
        self._loses: LostCommit | None = None
        self._on_its_way: OpenTransaction | None = None

    async def begin(self) -> None:
        """
        Begin a transaction.

        :raises InvalidInput: one is open already.
        """
        if self.open is not None:
            raise InvalidInput("a transaction of this connection is open already")
        await self.link.read(self._begun)

    async def put(self, table: str, key: str, value: bytes) -> None:
        """Insert or update a row in the open transaction."""
        await self.link.read(lambda: self._write((table, key), value))

    async def delete(self, table: str, key: str) -> None:
        """Delete a row in the open transaction; an absent row is ignored."""
        await self.link.read(lambda: self._write((table, key), None))

    async def get(self, table: str, key: str) -> bytes | None:
        """Return a row as this transaction sees it, or None."""
        return (await self.scan(table)).get(key)

    async def scan(self, table: str) -> dict[str, bytes]:
        """Return the rows of a table as this transaction sees them, by key."""
        rows = await self.link.read(self._seen)
        return {key: value for (its, key), value in sorted(rows.items()) if its == table}

    async def commit(self) -> None:
        """
        Commit the open transaction; without one do nothing.

        :raises OutcomeUnknown: the reply was lost.
        :raises Exception: the error of a constraint; the transaction was rolled back.
        """
        if self._loses is not None:
            await self._lose(self._loses)
        await self.link.write(self._commit_open)

    async def rollback(self) -> None:
        """Roll the open transaction back; without one, or without a connection, do nothing."""
        self._rollback()

    async def close(self) -> None:
        """Roll back and close; may be repeated."""
        self.crash()

    def crash(self) -> None:
        """Lose the connection immediately; the database rolls back everything that is not committed."""
        self.link.close()
        self._rollback()

    def lose_commit(self, fate: LostCommit) -> None:
        """Lose the reply to the next COMMIT, and the connection with it."""
        self._loses = fate

    def leave_commit(self) -> Callable[[], None]:
        """Lose the connection at once, with a COMMIT on its way; return what lets it arrive."""
        self.link.close()
        self._on_its_way, self.open = self.open, None
        return self.deliver

    def deliver(self) -> None:
        """Let a COMMIT arrive that was lost as "late"."""
        transaction, self._on_its_way = self._on_its_way, None
        if transaction is not None:
            self._commit(transaction)

    async def make_step(
        self,
        transaction: OpenTransaction,
        step: Step,
        examine: Callable[[], Applied],
        apply: Callable[[Applied], object],
    ) -> Applied:
        """
        Let a step be the last part of ``transaction``; return what it will have written.

        ``examine`` raises if it cannot be made. Its records are not changed before the end of the transaction; if it
        has more than records, nothing is.

        :raises InvalidInput: ``transaction`` has ended.
        """

        def make() -> Applied:
            if self.open is not transaction:
                raise InvalidInput(
                    "the application has ended the transaction of its connection; leave its end to 'txn'"
                )
            found = examine()
            self.database.locks.take_step(step, transaction.ended)
            transaction.step = partial(apply, found)
            return found

        return await self.link.read(make, lambda: self._other_end(transaction, step))

    def _other_end(self, transaction: OpenTransaction, step: Step) -> asyncio.Event | None:
        end = self.database.locks.of_step(step)
        return None if end is transaction.ended else end

    def _begun(self) -> OpenTransaction:
        if self.open is None:
            self.open = OpenTransaction()
        return self.open

    def _write(self, row: Row, value: bytes | None) -> None:
        transaction = self._begun()
        self.database.locks.take_row(row, transaction.ended)
        transaction.rows[row] = value

    def _seen(self) -> dict[Row, bytes]:
        written: Iterable[tuple[Row, bytes | None]] = () if self.open is None else self.open.rows.items()
        return _with(self.database.rows, written)

    async def _lose(self, fate: LostCommit) -> None:
        """Send a COMMIT whose reply never arrives."""
        transaction, self.open = self.open, None
        self.link.close()
        if fate == "late":
            self._on_its_way = transaction
        elif transaction is not None:
            if fate == "applied":
                self._commit(transaction)
            else:
                self.database.locks.release(transaction.ended)
        raise OutcomeUnknown(f"{self.link.name} was lost, and with it the reply to a COMMIT")

    def _commit_open(self) -> None:
        transaction, self.open = self.open, None
        if transaction is not None:
            self._commit(transaction)

    def _commit(self, transaction: OpenTransaction) -> None:
        """Make everything take effect atomically: without an await, nothing sees the rows without the records."""
        database = self.database
        after = _with(database.rows, transaction.rows.items())
        try:
            for constraint in database.constraints:
                constraint(after)
            if transaction.step is not None:
                transaction.step()
            database.rows = after
        finally:
            database.locks.release(transaction.ended)

    def _rollback(self) -> None:
        transaction, self.open = self.open, None
        if transaction is not None:
            self.database.locks.release(transaction.ended)


def _with(rows: Mapping[Row, bytes], written: Iterable[tuple[Row, bytes | None]]) -> dict[Row, bytes]:
    after = dict(rows)
    for row, value in written:
        if value is None:
            after.pop(row, None)
        else:
            after[row] = value
    return after

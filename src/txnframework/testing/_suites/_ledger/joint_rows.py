"""Rules of ILedgerStore: joint appends that are the last part of a transaction of the application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from txnframework.errors import (
    InvalidInput,
    LedgerNotFound,
    LedgerSealed,
    OutcomeUnknown,
    TxnFrameworkError,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import ICoCommitStore, IDatabaseTransaction, ILedgerStore
from txnframework.model import Append, Applied, Expect, Key, Put, Step
from txnframework.testing._suites._ledger._case import read_all
from txnframework.testing._suites._ledger._joint_case import (
    ACKS,
    CALLS,
    CURSOR,
    HEADER,
    OLD,
    TAKEN,
    JointRules,
    LedgersAndRecords,
    joint,
    positions_of,
)
from txnframework.testing.capabilities import requires
from txnframework.testing.harness import CoCommitting, Colocated, OwnRows

ROW = "row"
A = Append(b"a")
_ARRIVAL_S = 0.05


class StepWithRows(NamedTuple):
    """Ledgers and records, and a transaction of the application that has inserted a row."""

    opened: LedgersAndRecords
    rows: OwnRows
    transaction: IDatabaseTransaction

    def request(self) -> Step:
        """Return a step that appends to each ledger, creates a header and moves the cursor."""
        return joint(self.opened.appends(A), self.opened.puts(), (ACKS,))

    async def step(self) -> Applied:
        """Make that step in the transaction."""
        return await self.opened.make(self.request(), self.transaction)


Refusing = Callable[[LedgersAndRecords], Awaitable[object]]
"""What makes the stores refuse the step."""


async def _put_the_header(opened: LedgersAndRecords) -> None:
    await opened.records.put(Put(HEADER, b"aborted", Expect.ABSENT))


async def _move_the_cursor(opened: LedgersAndRecords) -> None:
    await opened.records.put(Put(CURSOR, b"elsewhere", opened.cursor))


async def _take_the_range(opened: LedgersAndRecords) -> None:
    await opened.records.put(Put(OLD, b"ack", Expect.ABSENT, (TAKEN,)))


async def _seal(opened: LedgersAndRecords) -> None:
    await opened.ledgers[1].seal()


async def _delete(opened: LedgersAndRecords) -> None:
    await opened.store.delete(opened.ledgers[1].name, None)


REFUSALS: tuple[tuple[Refusing, type[TxnFrameworkError]], ...] = (
    (_put_the_header, VersionMismatch),
    (_move_the_cursor, VersionMismatch),
    (_take_the_range, VersionMismatch),
    (_seal, LedgerSealed),
    (_delete, LedgerNotFound),
)


class JointRowRules(JointRules):
    """A step in a transaction of the application takes effect with its rows, or neither does."""

    @requires(Colocated, CoCommitting)
    async def test_a_step_takes_effect_with_rows(self) -> None:
        """Before the COMMIT nothing is visible; afterwards everything is, as the step said, and watches wake."""
        for kind in self._kinds():
            async with self._joined(kind) as joined:
                opened = joined.opened
                watches = [await ledger.watch() for ledger in opened.ledgers]
                changed = await opened.records.watch(HEADER)
                done = await joined.step()
                await opened.require_nothing_written()
                assert await self._rows() == set()
                await joined.transaction.commit()
                assert await self._rows() == {ROW}
                assert [await read_all(ledger) for ledger in opened.ledgers] == [[b"a"]] * 3
                tails = [(await ledger.tail()).last_confirmed for ledger in opened.ledgers]
                assert [some[-1] for some in positions_of(done)] == tails
                for put, record in zip(opened.puts().puts, done.records, strict=True):
                    assert await opened.records.get(put.key) == record  # type: ignore[union-attr]
                for watch in (*watches, changed):
                    await self.soon(watch.changed())
                await joined.transaction.rollback()
                assert await self._rows() == {ROW}
                assert not await joined.rows.is_open()

    @requires(Colocated, CoCommitting)
    async def test_a_step_is_rolled_back_with_rows(self) -> None:
        """After a rollback nothing counts, and the same step can be made without the rows."""
        for kind in self._kinds():
            async with self._joined(kind) as joined:
                await joined.step()
                await joined.transaction.rollback()
                await joined.transaction.rollback()
                assert not await joined.rows.is_open()
                await joined.opened.require_nothing_written()
                assert await self._rows() == set()
                await self.soon(joined.opened.make(joined.request()))
                assert [await read_all(ledger) for ledger in joined.opened.ledgers] == [[b"a"]] * 3

    @requires(Colocated, CoCommitting)
    async def test_a_refused_step_with_rows(self) -> None:
        """
        A step that is refused writes nothing, whatever becomes of the rows.

        They are kept unless the transaction says that it keeps the store waiting. It can then only be rolled back.
        """
        for kind in self._kinds():
            for refuse, error in REFUSALS:
                async with self._connected(kind) as (opened, rows):
                    await refuse(opened)
                    found = await _contents(opened)
                    transaction = await self._join(opened, rows.connection)
                    await self._insert(rows)
                    with pytest.raises(error):
                        await opened.make(joint(opened.appends(A), opened.puts(), (ACKS,)), transaction)
                    keeps = transaction.store_waits is None
                    if keeps:
                        assert await rows.is_open()
                        await rows.commit()
                    await transaction.rollback()
                    assert await self._rows() == ({ROW} if keeps else set())
                    assert await _contents(opened) == found

    @requires(Colocated, CoCommitting)
    async def test_a_refused_commit_of_a_step(self) -> None:
        """If the database refuses the COMMIT, the driver's own error is raised, and nothing takes effect."""
        for kind in self._kinds():
            async with self._joined(kind) as joined:
                await joined.rows.refuse_commit()
                await joined.step()
                with pytest.raises(joined.rows.refusal) as caught:
                    await joined.transaction.commit()
                assert not isinstance(caught.value, TxnFrameworkError)
                await joined.transaction.rollback()
                await joined.opened.require_nothing_written()
                assert await self._rows() == set()

    @requires(Colocated, CoCommitting)
    async def test_a_lost_commit_of_a_step(self) -> None:
        """After a COMMIT without a reply everything counts or nothing; a put of the header finds out which."""
        for kind in self._kinds():
            for applied in (True, False):
                async with self._joined(kind) as joined:
                    opened = joined.opened
                    await joined.step()
                    await joined.rows.lose_commit(applied)
                    with pytest.raises(OutcomeUnknown):
                        await self.soon(joined.transaction.commit())
                    await joined.transaction.rollback()
                    await self.data.settle()
                    fence = opened.records.put(Put(HEADER, b"aborted", Expect.ABSENT))
                    if applied:
                        with pytest.raises(VersionMismatch):
                            await self.soon(fence)
                    else:
                        await self.soon(fence)
                    assert [await read_all(ledger) for ledger in opened.ledgers] == [[b"a"] if applied else []] * 3
                    assert await self._rows() == ({ROW} if applied else set())

    @requires(Colocated, CoCommitting)
    async def test_a_fence_beside_a_step_with_rows(self) -> None:
        """
        While a step with rows is uncommitted, another client puts its header: one of the two succeeds, not both.

        So a fence that was put refuses a COMMIT that comes late.
        """
        for kind in self._kinds():
            for commits in (True, False):
                async with self._joined(kind) as joined:
                    opened = joined.opened
                    await joined.step()
                    fence = asyncio.ensure_future(opened.records.put(Put(HEADER, b"aborted", Expect.ABSENT)))
                    await asyncio.wait({fence}, timeout=_ARRIVAL_S)
                    committed = commits and await _commits(joined.transaction)
                    await joined.transaction.rollback()
                    (fenced,) = await asyncio.gather(self.soon(fence), return_exceptions=True)
                    assert isinstance(fenced, int | VersionMismatch | Unavailable), fenced
                    assert not (committed and isinstance(fenced, int)), "both have succeeded"
                    assert [await read_all(ledger) for ledger in opened.ledgers] == [[b"a"] if committed else []] * 3
                    assert await self._rows() == ({ROW} if committed else set())

    @requires(Colocated, CoCommitting)
    async def test_a_step_after_the_end_of_its_transaction(self) -> None:
        """After the application's own COMMIT a step raises InvalidInput, and writes nothing."""
        for kind in self._kinds():
            async with self._joined(kind) as joined:
                await joined.rows.commit()
                with pytest.raises(InvalidInput):
                    await joined.step()
                await joined.transaction.rollback()
                await joined.opened.require_nothing_written()
                assert await self._rows() == {ROW}

    @requires(Colocated, CoCommitting)
    async def test_appends_beside_steps_with_rows(self) -> None:
        """Entries before, beside and after steps with rows have positions in one order, each once."""
        for kind in self._kinds():
            async with self._connected(kind) as (opened, rows):
                ledger = opened.ledgers[0]
                stored: list[bytes] = []
                for number in range(CALLS // 4):
                    await ledger.append((Append(b"before"),), None)
                    transaction = await self._join(opened, rows.connection)
                    await self._insert(rows, f"{ROW}-{number}")
                    batch = Step(puts=(self._header(number),))
                    request = joint(opened.appends(Append(b"step"), Append(b"step")), batch)
                    done = await opened.make(request, transaction)
                    beside = asyncio.ensure_future(ledger.append((Append(b"beside"),), None))
                    for _ in range(number):
                        await asyncio.sleep(0)
                    await transaction.commit()
                    ((appended,), _) = await asyncio.gather(self.soon(beside), asyncio.sleep(0))
                    (after,) = await ledger.append((Append(b"after"),), None)
                    stepped = positions_of(done)[0]
                    assert len({*stepped, appended.position, after.position}) == 4
                    assert max(*stepped, appended.position) < after.position
                    first, second = stepped
                    assert first < second
                    assert not first < appended.position < second
                    stored += [b"before", b"step", b"step", b"after"]
                assert [one for one in await read_all(ledger) if one != b"beside"] == stored
                assert len(await read_all(ledger)) == len(stored) + CALLS // 4

    @requires(Colocated, CoCommitting)
    async def test_one_of_two_steps_with_rows(self) -> None:
        """Of two transactions with rows whose steps move one record from the same version, one is committed."""
        for kind in self._kinds():
            async with self._connected(kind) as (opened, first), self._harness().connect(opened.store, kind) as second:
                outcomes = []
                for number, rows in enumerate((first, second)):
                    transaction = await self._join(opened, rows.connection)
                    await self._insert(rows, f"{ROW}-{number}")
                    move = Put(CURSOR, b"%d" % number, opened.cursor)
                    batch = Step(puts=(self._header(number), move))
                    try:
                        await opened.make(joint(opened.appends(A), batch), transaction)
                        await transaction.commit()
                    except VersionMismatch:
                        await transaction.rollback()
                        outcomes.append(False)
                    else:
                        outcomes.append(True)
                assert outcomes == [True, False]
                assert await self._rows() == {f"{ROW}-0"}
                assert [await read_all(ledger) for ledger in opened.ledgers] == [[b"a"]] * 3

    @requires(Colocated, CoCommitting)
    async def test_connections_for_a_step(self) -> None:
        """An unknown object and a connection to another database are refused, by the join or by the step."""
        for kind in self._kinds():
            async with self._connected(kind) as (opened, _), self._harness().connect_elsewhere(kind) as elsewhere:
                await elsewhere.insert(ROW)
                for wrong in (elsewhere.connection, object(), None, "a URL"):
                    with pytest.raises(InvalidInput):
                        await self._step_with(opened, wrong)
                await opened.require_nothing_written()

    # -- what the tests have in common ----------------------------------------------------------------

    _old: frozenset[str] = frozenset()
    _prefix = ""

    def _harness(self) -> CoCommitting[ILedgerStore]:
        assert isinstance(self.data, CoCommitting)
        return self.data

    def _kinds(self) -> tuple[str, ...]:
        return self._harness().kinds

    async def _rows(self) -> frozenset[str]:
        """Return the rows that were committed since the connection was opened."""
        found = await self._harness().committed_rows() - self._old
        return frozenset(key.removeprefix(self._prefix) for key in found)

    async def _insert(self, rows: OwnRows, key: str = ROW) -> None:
        await rows.insert(f"{self._prefix}{key}")

    async def _join(self, opened: LedgersAndRecords, connection: object) -> IDatabaseTransaction:
        assert ICoCommitStore.providedBy(opened.records)
        return await opened.records.join(connection)

    async def _step_with(self, opened: LedgersAndRecords, connection: object) -> None:
        transaction = await self._join(opened, connection)
        try:
            await opened.make(joint(opened.appends(A), opened.puts()), transaction)
        finally:
            await transaction.rollback()

    def _header(self, number: int) -> Put:
        """Return the creation of a record of its own."""
        return Put(Key(f"/txn/rows/{self._prefix}{number}", "joint"), b"committed", Expect.ABSENT)

    @asynccontextmanager
    async def _connected(self, kind: str) -> AsyncIterator[tuple[LedgersAndRecords, OwnRows]]:
        """Open new ledgers and records, and a connection of the application."""
        async with self._ledgers_and_records() as opened:
            self._old = await self._harness().committed_rows()
            self._prefix = f"{len(self._old)}-"
            async with self._harness().connect(opened.store, kind) as rows:
                yield opened, rows
            for key in (HEADER, CURSOR, OLD):
                await opened.records.delete(key, Expect.ANY)
            for ledger in opened.ledgers:
                await opened.store.delete(ledger.name, None)

    @asynccontextmanager
    async def _joined(self, kind: str) -> AsyncIterator[StepWithRows]:
        """Join a new transaction of the application, and insert a row in it."""
        async with self._connected(kind) as (opened, rows):
            transaction = await self._join(opened, rows.connection)
            await self._insert(rows)
            yield StepWithRows(opened, rows, transaction)


async def _commits(transaction: IDatabaseTransaction) -> bool:
    """Return whether a COMMIT succeeds."""
    try:
        await transaction.commit()
    except Exception:
        return False
    return True


async def _contents(opened: LedgersAndRecords) -> list[object]:
    """Return what the ledgers and records have; None for a ledger that was deleted."""
    found: list[object] = [await opened.records.get(key) for key in (HEADER, CURSOR, OLD)]
    for ledger in opened.ledgers:
        try:
            found.append(await read_all(ledger))
        except LedgerNotFound:
            found.append(None)
    return found

"""The rules of steps with rows detect faults: each store here breaks one rule, and its test fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from txnframework.errors import InvalidInput, OutcomeUnknown, TxnFrameworkError
from txnframework.interfaces import IDatabaseTransaction, ILedgerStore, IMetadataStore
from txnframework.model import Applied, Expect, Put, Step
from txnframework.testing import LedgerStoreSuite
from txnframework_memory._co_commit import MemoryTransaction
from txnframework_memory._database import MemoryConnection
from txnframework_memory._metadata_store import MemoryMetadataStore
from txnframework_memory._steps import apply_step, foresee_step
from txnframework_memory.testing import MemoryLedgerHarness

whole = MemoryMetadataStore.apply

# -- steps --------------------------------------------------------------------------------------------


async def _unseen(store: Any, step: Any, transaction: Any) -> Applied:
    """Make a step that no store takes with rows, without checking it."""
    if transaction is None:
        return await whole(store, step)
    records = store._records
    done: Applied = await transaction.step(
        step, partial(foresee_step, records, step), partial(apply_step, records, step)
    )
    return done


async def outside(store: Any, step: Any, _: Any = None) -> Applied:
    """Makes the step at once, by the store's own connection."""
    return await whole(store, step)


async def entries_outside(store: Any, step: Any, transaction: Any = None) -> Applied:
    """Leaves only the records to the COMMIT."""
    done = await whole(store, Step(appends=step.appends))
    records = await whole(store, replace(step, appends=()), transaction)
    return Applied(records.records, done.appended)


async def without_records(store: Any, step: Any, transaction: Any = None) -> Applied:
    """Appends without the header, so nothing excludes a fence."""
    done = await _unseen(store, replace(step, puts=()), transaction)
    return Applied(foresee_step(store._records, step).records, done.appended)


async def without_conditions(store: Any, step: Any, transaction: Any = None) -> Applied:
    """Writes records without comparing versions, and does not check ranges."""
    puts = tuple(Put(put.key, put.value, Expect.ANY, put.indexes) for put in step.puts)
    return await _unseen(store, replace(step, puts=puts, vacant=()), transaction)


async def rolling_back(store: Any, step: Any, transaction: Any = None) -> Applied:
    """Rolls the rows back after a refusal, and does not report that."""
    try:
        return await whole(store, step, transaction)
    except TxnFrameworkError:
        if transaction is not None:
            await transaction.rollback()
        raise


async def again(store: Any, step: Any, transaction: Any = None) -> Applied:
    """Makes the step without the rows if their transaction has ended."""
    try:
        return await whole(store, step, transaction)
    except InvalidInput:
        return await whole(store, step)


async def unlocked(store: Any, step: Any, transaction: Any = None) -> Applied:
    """Lets other writers in between the step and its COMMIT."""
    done = await whole(store, step, transaction)
    if transaction is not None:
        transaction._connection.database.locks._everything = None
    return done


async def guessing(store: Any, step: Any, transaction: Any = None) -> Applied:
    """Returns positions that are not those of the entries."""
    done = await whole(store, step, transaction)
    return Applied(done.records, tuple(tuple(reversed(some)) for some in done.appended))


STEPS: tuple[tuple[Any, str], ...] = (
    (outside, "test_a_step_takes_effect_with_rows"),
    (outside, "test_a_step_is_rolled_back_with_rows"),
    (outside, "test_a_lost_commit_of_a_step"),
    (outside, "test_a_refused_commit_of_a_step"),
    (entries_outside, "test_a_step_takes_effect_with_rows"),
    (entries_outside, "test_a_refused_step_with_rows"),
    (without_records, "test_a_fence_beside_a_step_with_rows"),
    (without_conditions, "test_a_refused_step_with_rows"),
    (without_conditions, "test_one_of_two_steps_with_rows"),
    (rolling_back, "test_a_refused_step_with_rows"),
    (again, "test_a_step_after_the_end_of_its_transaction"),
    (unlocked, "test_appends_beside_steps_with_rows"),
    (guessing, "test_appends_beside_steps_with_rows"),
)


@pytest.mark.parametrize(("step", "name"), STEPS)
def test_broken_steps(step: Any, name: str, must_fail: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that breaks the rule fails its test."""
    monkeypatch.setattr(MemoryMetadataStore, "apply", step)
    must_fail(LedgerStoreSuite, MemoryLedgerHarness, name)


# -- transactions -------------------------------------------------------------------------------------


class Broken(MemoryTransaction):
    """A joined transaction of a connection."""

    def __init__(self, connection: MemoryConnection) -> None:
        assert connection.open is not None
        super().__init__(connection, connection.open)
        self.connection = connection


class LeavesTheRows(Broken):
    """Commits the step, and rolls the rows back."""

    async def commit(self) -> None:
        self.connection._begun().rows.clear()
        await super().commit()


class LeavesTheStep(Broken):
    """Commits the rows, and forgets the step."""

    async def commit(self) -> None:
        self.connection._begun().step = None
        await super().commit()


class BelievesInLostReplies(Broken):
    """Reports success for a COMMIT without a reply."""

    async def commit(self) -> None:
        try:
            await super().commit()
        except OutcomeUnknown:
            return


class TakesRefusalsForUnknown(Broken):
    """Reports an unknown outcome for a COMMIT that the database refused."""

    async def commit(self) -> None:
        try:
            await super().commit()
        except TxnFrameworkError:
            raise
        except Exception as error:
            raise OutcomeUnknown(str(error)) from error


class CommitsInRollback(Broken):
    """Ends the transaction by a COMMIT where it is to be rolled back."""

    async def rollback(self) -> None:
        if self.connection.open is self._joined:
            await self.connection.commit()


class JoinsAnything(Broken):
    """A transaction of a connection that was not checked."""


TRANSACTIONS: tuple[tuple[type[Broken], str], ...] = (
    (LeavesTheRows, "test_a_step_takes_effect_with_rows"),
    (LeavesTheStep, "test_a_step_takes_effect_with_rows"),
    (LeavesTheStep, "test_a_lost_commit_of_a_step"),
    (BelievesInLostReplies, "test_a_lost_commit_of_a_step"),
    (TakesRefusalsForUnknown, "test_a_refused_commit_of_a_step"),
    (CommitsInRollback, "test_a_step_is_rolled_back_with_rows"),
    (JoinsAnything, "test_connections_for_a_step"),
)


class BrokenHarness(MemoryLedgerHarness):
    """Opens stores whose joined transactions are broken."""

    transaction: ClassVar[type[Broken]]

    @asynccontextmanager
    async def open_with_records(self) -> AsyncIterator[tuple[ILedgerStore, IMetadataStore]]:
        async with super().open_with_records() as (ledgers, records):
            assert isinstance(records, MemoryMetadataStore)
            join = records.join

            async def join_broken(connection: object) -> IDatabaseTransaction:
                if self.transaction is not JoinsAnything or not isinstance(connection, MemoryConnection):
                    await join(connection)
                assert isinstance(connection, MemoryConnection)
                return self.transaction(connection)

            records.join = join_broken  # type: ignore[method-assign]
            yield ledgers, records


@pytest.mark.parametrize(("transaction", "name"), TRANSACTIONS)
def test_broken_transactions(transaction: type[Broken], name: str, must_fail: Callable[..., None]) -> None:
    """A store that breaks the rule fails its test."""
    harness = type("BrokenTransactions", (BrokenHarness,), {"transaction": transaction})
    must_fail(LedgerStoreSuite, harness, name)


def test_every_rule_can_be_broken() -> None:
    """Each test of steps with rows fails on some broken store."""
    from txnframework.testing._suites._ledger.joint_rows import JointRowRules

    tests = {name for name in vars(JointRowRules) if name.startswith("test_")}
    assert tests == {name for _, name in (*STEPS, *TRANSACTIONS)}

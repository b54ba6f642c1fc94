"""The rules of ICoCommitStore detect faults: each store here breaks one rule, and the test of that rule fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from txnframework.errors import InvalidInput, OutcomeUnknown
from txnframework.interfaces import IDatabaseTransaction, IMetadataStore
from txnframework.model import Applied, Expect, Put, Step
from txnframework.testing import MetadataStoreSuite
from txnframework.testing._suites._base import run_test
from txnframework_memory import MemoryMetadataStore, yield_once
from txnframework_memory._co_commit import MemoryTransaction
from txnframework_memory._database import MemoryConnection
from txnframework_memory._steps import apply_step, foresee_step
from txnframework_memory.testing import MemoryMetadataHarness

Examine = Callable[[], Applied]
Apply = Callable[[Applied], object]


class Broken(MemoryTransaction):
    """A joined transaction that also knows its store and its connection."""

    def __init__(self, store: MemoryMetadataStore, connection: MemoryConnection) -> None:
        assert connection.open is not None
        super().__init__(connection, connection.open)
        self.store = store
        self.connection = connection


class PutsOutside(Broken):
    """Makes the step at once, by the store's own connection."""

    async def step(self, step: Step, examine: Examine, apply: Apply) -> Applied:
        return await self.store.apply(step)


class PutsAtTheCommit(Broken):
    """Makes the step after the COMMIT of the rows."""

    left: Step | None = None

    async def step(self, step: Step, examine: Examine, apply: Apply) -> Applied:
        self.left = step
        return examine()

    async def commit(self) -> None:
        await super().commit()
        assert self.left is not None
        await self.store.apply(self.left)


class Changing(Broken):
    """Makes a changed step."""

    def changed(self, put: Put) -> Put:
        return put

    async def step(self, step: Step, examine: Examine, apply: Apply) -> Applied:
        (put,) = step.puts
        assert isinstance(put, Put)
        other, records = Step(puts=(self.changed(put),)), self.store._records
        return await super().step(other, partial(foresee_step, records, other), partial(apply_step, records, other))


class IgnoresTheVersion(Changing):
    """Writes without comparing the expected version."""

    def changed(self, put: Put) -> Put:
        return msgspec.structs.replace(put, expected=Expect.ANY)


class LeavesTheRows(Broken):
    """Commits the record, and rolls the rows back."""

    async def commit(self) -> None:
        self.connection._begun().rows.clear()
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
        except OutcomeUnknown:
            raise
        except Exception as error:
            raise OutcomeUnknown(str(error)) from error


class LocksNothing(IgnoresTheVersion):
    """Lets other writers change the record before the COMMIT, and writes over them."""

    async def step(self, step: Step, examine: Examine, apply: Apply) -> Applied:
        applied = await super().step(step, examine, apply)
        self.connection.database.locks._records.clear()
        return applied


class ForgetsIndexes(Changing):
    """Writes the record without its index entries."""

    def changed(self, put: Put) -> Put:
        return msgspec.structs.replace(put, indexes=())


class BeginsAgain(Broken):
    """Continues in a new transaction after the application has ended the joined one."""

    async def step(self, step: Step, examine: Examine, apply: Apply) -> Applied:
        try:
            return await super().step(step, examine, apply)
        except InvalidInput:
            await self.connection.begin()
            assert self.connection.open is not None
            self._joined = self.connection.open
            applied = await super().step(step, examine, apply)
            await self.connection.commit()
            return applied


class BrokenHarness(MemoryMetadataHarness):
    """Opens stores whose joined transactions are broken."""

    transaction: ClassVar[type[Broken]]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[IMetadataStore]:
        store = BrokenStore(self.space, self.space.next_session(), yield_once)
        store.transaction = self.transaction
        try:
            yield store
        finally:
            await store.close()


class BrokenStore(MemoryMetadataStore):
    """Joins by a broken transaction."""

    transaction: type[Broken]

    async def join(self, connection: object) -> IDatabaseTransaction:
        await super().join(connection)
        assert isinstance(connection, MemoryConnection)
        return self.transaction(self, connection)


class JoinsAnything(MemoryMetadataStore):
    """Takes a connection to another space."""

    async def join(self, connection: object) -> IDatabaseTransaction:
        if not isinstance(connection, MemoryConnection):
            return await super().join(connection)
        connection._begun()
        return Broken(self, connection)


class JoinsAnythingHarness(MemoryMetadataHarness):
    """Opens stores that do not check the connection."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[IMetadataStore]:
        store = JoinsAnything(self.space, self.space.next_session(), yield_once)
        try:
            yield store
        finally:
            await store.close()


BROKEN: tuple[tuple[type[Broken], str], ...] = (
    (PutsOutside, "test_put_takes_effect_with_the_rows"),
    (PutsOutside, "test_put_is_rolled_back_with_the_rows"),
    (PutsAtTheCommit, "test_lost_reply_of_a_commit"),
    (PutsAtTheCommit, "test_of_two_writers_one_wins"),
    (IgnoresTheVersion, "test_put_checks_the_version"),
    (LeavesTheRows, "test_put_takes_effect_with_the_rows"),
    (BelievesInLostReplies, "test_lost_reply_of_a_commit"),
    (TakesRefusalsForUnknown, "test_refused_commit"),
    (LocksNothing, "test_of_two_writers_one_wins"),
    (ForgetsIndexes, "test_put_takes_effect_with_the_rows"),
    (BeginsAgain, "test_transaction_that_the_application_has_ended"),
)


def run(harness: type[MemoryMetadataHarness], name: str, directory: Path) -> None:
    """Run one test of the suite."""
    suite: type[Any] = type("Suite", (MetadataStoreSuite,), {"harness": harness})
    case = suite()
    asyncio.run(run_test(case, getattr(case, name), directory))


@pytest.mark.parametrize(("transaction", "name"), BROKEN)
def test_broken_transaction(transaction: type[Broken], name: str, tmp_path: Path) -> None:
    """The test of the broken rule fails."""
    harness = type("BrokenTransactions", (BrokenHarness,), {"transaction": transaction})
    with pytest.raises((AssertionError, OutcomeUnknown, pytest.fail.Exception)):
        run(harness, name, tmp_path)


def test_a_connection_that_is_not_looked_at(tmp_path: Path) -> None:
    """The test of the broken rule fails for a store that does not check the connection."""
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run(JoinsAnythingHarness, "test_what_cannot_be_joined", tmp_path)


@pytest.mark.parametrize("name", sorted({name for _, name in BROKEN} | {"test_what_cannot_be_joined"}))
def test_whole_transaction_passes(name: str, tmp_path: Path) -> None:
    """The correct store passes, so the tests above fail for the reason that they name."""
    run(type("WholeTransactions", (BrokenHarness,), {"transaction": Broken}), name, tmp_path)

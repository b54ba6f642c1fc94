"""Rules of ICoCommitStore and IDatabaseTransaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from txnframework.errors import InvalidInput, OutcomeUnknown, TxnFrameworkError, Unavailable, VersionMismatch
from txnframework.interfaces import ICoCommitStore, IDatabaseTransaction, IMetadataStore
from txnframework.model import Key, Put, Step
from txnframework.testing._suites._metadata._case import (
    MetadataStoreRules,
    create,
    entries,
    paths,
    scan_kinds,
    value_of,
)
from txnframework.testing.capabilities import requires
from txnframework.testing.harness import CoCommitting, OwnRows

HEADER = "/co-commit/header"
_ARRIVAL_S = 0.05


@dataclass
class Joined:
    """A store, another client of it, a record, and a transaction of the application that has inserted one row."""

    store: ICoCommitStore
    other: IMetadataStore
    rows: OwnRows
    version: int
    transaction: IDatabaseTransaction

    def put(self) -> Put:
        """Return a change of the record and of its index entry."""
        return Put(Key(HEADER), b"ended", self.version, entries(b"ended"))

    async def step(self) -> int:
        """Make that change in the transaction; return the new version."""
        (record,) = (await self.store.apply(Step(puts=(self.put(),)), self.transaction)).records
        return record.version

    async def found(self) -> bytes | None:
        """Return the record's value, as another client reads it."""
        return await value_of(self.other, HEADER)


class CoCommitRules(MetadataStoreRules):
    """A put in a transaction of the application takes effect together with its rows, or neither does."""

    @requires(ICoCommitStore, CoCommitting)
    async def test_put_takes_effect_with_the_rows(self) -> None:
        """Before the COMMIT neither the record nor the rows are visible; afterwards both are, and watches wake."""
        for kind in self._kinds():
            async with self._joined(kind) as joined:
                watch = await joined.other.watch(Key(HEADER))
                version = await joined.step()
                assert await joined.found() == b"open"
                assert await self._rows() == set()
                assert [record.value for record in await scan_kinds(joined.other)] == [b"open"]
                await joined.transaction.commit()
                record = await joined.other.get(Key(HEADER))
                assert record is not None
                assert (record.value, record.version) == (b"ended", version)
                assert await self._rows() == {self._row}
                assert [record.value for record in await scan_kinds(joined.other)] == [b"ended"]
                await self.soon(watch.changed())
                await joined.transaction.rollback()
                assert await joined.found() == b"ended"
                assert not await joined.rows.is_open()

    @requires(ICoCommitStore, CoCommitting)
    async def test_put_is_rolled_back_with_the_rows(self) -> None:
        """After a rollback neither counts; a rollback may be repeated, and the record can be changed again."""
        for kind in self._kinds():
            async with self._joined(kind) as joined:
                await joined.step()
                await joined.transaction.rollback()
                await joined.transaction.rollback()
                assert await joined.found() == b"open"
                assert await self._rows() == set()
                assert not await joined.rows.is_open()
                await self.soon(joined.other.put(joined.put()))
                assert paths(await scan_kinds(joined.other)) == [HEADER]

    @requires(ICoCommitStore, CoCommitting)
    async def test_put_checks_the_version(self) -> None:
        """
        If another client has changed the record, the put raises VersionMismatch, and the rows are rolled back.

        If this fails, check that the put names the expected version, and that it sees changes after the snapshot.
        """
        for kind in self._kinds():
            for inserts_first in (False, True):
                async with self._joined(kind, inserts=inserts_first) as joined:
                    # After a row of its own, a transaction may keep the other client waiting.
                    if joined.transaction.store_waits is None:
                        await joined.other.put(Put(Key(HEADER), b"other", joined.version))
                        if not inserts_first:
                            await joined.rows.insert(self._row)
                        with pytest.raises(VersionMismatch):
                            await joined.step()
                        assert await joined.found() == b"other"
                    else:
                        assert inserts_first, "nothing was written, and the store would wait"
                    await joined.transaction.rollback()
                    assert await self._rows() == set()

    @requires(ICoCommitStore, CoCommitting)
    async def test_of_two_writers_one_wins(self) -> None:
        """
        While a put with rows is uncommitted, another client writes the same record: this succeeds only if the rows are
        rolled back.

        The framework finds out in this way whether a COMMIT was carried out whose reply was lost.
        """
        for kind in self._kinds():
            for commits in (True, False):
                async with self._joined(kind) as joined:
                    await joined.step()
                    write = Put(Key(HEADER), b"other", joined.version)
                    async with self._writing_beside(joined.other.put(write)) as writing:
                        committed = False
                        if commits:
                            try:
                                await joined.transaction.commit()
                                committed = True
                            except Exception:
                                await joined.transaction.rollback()
                        else:
                            await joined.transaction.rollback()
                        (written,) = await asyncio.gather(self.soon(writing), return_exceptions=True)
                    assert isinstance(written, int | VersionMismatch | Unavailable), written
                    assert not (committed and isinstance(written, int)), "both writers have succeeded"
                    if isinstance(written, int) or committed:
                        assert await joined.found() == (b"ended" if committed else b"other")
                    assert await self._rows() == ({self._row} if committed else set())

    @requires(ICoCommitStore, CoCommitting)
    async def test_lost_reply_of_a_commit(self) -> None:
        """A COMMIT without a reply raises OutcomeUnknown, whether it was applied or not; both parts agree."""
        for kind in self._kinds():
            for applied in (True, False):
                async with self._joined(kind) as joined:
                    await joined.step()
                    await joined.rows.lose_commit(applied)
                    with pytest.raises(OutcomeUnknown):
                        await self.soon(joined.transaction.commit())
                    await joined.transaction.rollback()
                    await self.data.settle()
                    if applied:
                        assert await joined.found() == b"ended"
                    else:
                        await self.soon(joined.other.put(Put(Key(HEADER), b"aborted", joined.version)))
                    assert await self._rows() == ({self._row} if applied else set())

    @requires(ICoCommitStore, CoCommitting)
    async def test_refused_commit(self) -> None:
        """If the database refuses the COMMIT, the driver's own error is raised, and nothing takes effect."""
        for kind in self._kinds():
            async with self._joined(kind) as joined:
                await joined.rows.refuse_commit()
                await joined.step()
                with pytest.raises(joined.rows.refusal) as caught:
                    await joined.transaction.commit()
                assert not isinstance(caught.value, TxnFrameworkError)
                await joined.transaction.rollback()
                assert await joined.found() == b"open"
                assert await self._rows() == set()

    @requires(ICoCommitStore, CoCommitting)
    async def test_transaction_that_the_application_has_ended(self) -> None:
        """A put after the application's own COMMIT raises InvalidInput, and writes nothing."""
        for kind in self._kinds():
            async with self._joined(kind) as joined:
                await joined.rows.commit()
                with pytest.raises(InvalidInput):
                    await joined.step()
                await joined.transaction.rollback()
                assert await joined.found() == b"open"
                assert await self._rows() == {self._row}

    @requires(ICoCommitStore, CoCommitting)
    async def test_open_transaction_is_joined(self) -> None:
        """Rows that were inserted before the join take effect with the put."""
        harness = self._harness()
        for kind in self._kinds():
            async with self._opened(kind) as (store, other, rows):
                version = await self._create(store)
                await rows.insert(f"{self._row}-before")
                transaction = await store.join(rows.connection)
                await rows.insert(f"{self._row}-after")
                await store.apply(Step(puts=(Put(Key(HEADER), b"ended", version),)), transaction)
                assert await harness.committed_rows() - self._old == set()
                await transaction.commit()
                assert await harness.committed_rows() - self._old == {f"{self._row}-before", f"{self._row}-after"}
                assert await value_of(other, HEADER) == b"ended"

    @requires(ICoCommitStore, CoCommitting)
    async def test_what_cannot_be_joined(self) -> None:
        """A connection to another database and an unknown object are refused, by the join or by the step."""
        harness = self._harness()
        for kind in self._kinds():
            async with self._opened(kind) as (store, other, rows), harness.connect_elsewhere(kind) as elsewhere:
                version = await self._create(store)
                await elsewhere.insert("row")
                for wrong in (elsewhere.connection, object(), None, "a URL"):
                    with pytest.raises(InvalidInput):
                        await self._step_with(store, wrong, version)
                assert await value_of(other, HEADER) == b"open"
                await self._step_with(store, rows.connection, version)

    # -- what the tests have in common ----------------------------------------------------------------

    _old: frozenset[str] = frozenset()
    _row = "row-0"

    def _harness(self) -> CoCommitting[IMetadataStore]:
        assert isinstance(self.data, CoCommitting)
        return self.data

    def _kinds(self) -> tuple[str, ...]:
        return self._harness().kinds

    async def _rows(self) -> frozenset[str]:
        """Return the keys of the rows that were committed since the connection was opened."""
        return await self._harness().committed_rows() - self._old

    async def _step_with(self, store: ICoCommitStore, connection: object, version: int) -> None:
        transaction = await store.join(connection)
        try:
            await store.apply(Step(puts=(Put(Key(HEADER), b"ended", version),)), transaction)
        finally:
            await transaction.rollback()

    async def _create(self, store: IMetadataStore) -> int:
        """Delete the record if it exists, and create it again."""
        record = await store.get(Key(HEADER))
        if record is not None:
            await store.delete(Key(HEADER), record.version)
        return await create(store, HEADER, b"open", b"open")

    @asynccontextmanager
    async def _writing_beside(self, write: Coroutine[Any, Any, int]) -> AsyncIterator[asyncio.Task[int]]:
        """
        Run a write that may wait for the transaction; it is cancelled at the end of the block.

        Here ``settle`` would wait until the database answers, and thus until the write times out. The rule holds
        whether or not the write has arrived at the database; the pause only makes that likely.
        """
        task = asyncio.get_running_loop().create_task(write)
        try:
            await asyncio.wait({task}, timeout=_ARRIVAL_S)
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def _opened(self, kind: str) -> AsyncIterator[tuple[ICoCommitStore, IMetadataStore, OwnRows]]:
        """Open two clients of the store and a connection of the application."""
        harness = self._harness()
        async with self.data.open() as store, self.data.open() as other:
            assert ICoCommitStore.providedBy(store)
            self._old = await harness.committed_rows()
            self._row = f"row-{len(self._old)}"
            async with harness.connect(store, kind) as rows:
                yield store, other, rows

    @asynccontextmanager
    async def _joined(self, kind: str, *, inserts: bool = True) -> AsyncIterator[Joined]:
        """Join a new transaction of the application, and insert a row in it, unless ``inserts`` is False."""
        async with self._opened(kind) as (store, other, rows):
            version = await self._create(store)
            transaction = await store.join(rows.connection)
            if inserts:
                await rows.insert(self._row)
            yield Joined(store, other, rows, version, transaction)

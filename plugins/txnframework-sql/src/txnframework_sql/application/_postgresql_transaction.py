"""A transaction of the application on PostgreSQL that a step joins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from zope.interface import implementer

from txnframework.errors import InvalidInput, TxnFrameworkError, VersionMismatch
from txnframework.interfaces import IDatabaseTransaction
from txnframework.model import Put, Step
from txnframework_sql.application._connection import (
    ApplicationConnection,
    Row,
    commit,
    ended,
    of_old_snapshot,
    of_snapshot,
    reason,
    require_joined,
    roll_back,
    sqlstate,
    undone,
)
from txnframework_sql.application._postgresql_statements import IS_JOINED, MARK
from txnframework_sql.application._postgresql_store import FAILED_TRANSACTION, NOT_THERE, JoinedStore, failed
from txnframework_sql.postgresql._connection import SCHEMA
from txnframework_sql.postgresql._schema import APPLY_STEPS
from txnframework_sql.steps.ledger_references import deciding_put
from txnframework_sql.steps.shared_reads import record_id
from txnframework_sql.steps.statements import Change, partition_of

_SERIALIZATION_FAILURE = "40001"
# Why apply_steps did nothing.
_IS_FREE, _IS_SNAPSHOT, _IS_UNDONE = 1, 2, 4


class Joined(NamedTuple):
    """A transaction that the join has marked, as the server knows it."""

    pid: int
    began_us: int


@implementer(IDatabaseTransaction)
class PostgresqlTransaction:
    """
    One transaction of the application's connection.

    The step locks its records until the COMMIT. If this process stops in between, the server ends the transaction after
    ``pause_max_ms``.
    """

    def __init__(self, store: JoinedStore, connection: ApplicationConnection, joined: Joined | None) -> None:
        self._store = store
        self._connection = connection
        self._joined = joined
        self._changes: tuple[Change, ...] = ()
        # A query that finds the put which decides; None: it is outside all savepoints.
        self._check: str | None = None
        self._is_ended = False

    store_waits: str | None = None
    """Set once a step was made, whose locks are held. Otherwise writers of different rows do not wait."""

    async def step(self, step: Step, columns: Sequence[object]) -> Row:
        """Make a step inside the application's transaction; see ``StepOfRows``."""
        put = deciding_put(step)
        await require_joined(self._connection)
        await self._connection.flush()
        try:
            answer = await self._step(await self._store.witness.key(), columns)
            if answer[0] == _IS_FREE:
                # Perhaps the store has lost the connection that held the lock.
                answer = await self._step(await self._store.witness.renew(), columns)
        except TxnFrameworkError:
            raise
        except Exception as error:
            code = sqlstate(error)
            if code in NOT_THERE:
                raise self._store.another(self._connection, reason(error)) from error
            if code == FAILED_TRANSACTION:
                raise failed(self._connection) from error
            if code == _SERIALIZATION_FAILURE and (actual := await self._store.version(put.key)) != put.expected:
                # Another process has changed the record since the snapshot of this transaction.
                raise VersionMismatch(put.key, actual) from error
            explained = self._store.explained(self._connection, error)
            if explained is error:
                raise
            raise explained from error
        unjoined, is_outermost, refused, versions, *_ = answer
        if unjoined is not None:
            raise self._unjoined(unjoined)
        self.store_waits = "a step was refused, and its locks are held until the transaction ends"
        version = versions[sorted(record_id(part.key) for part in step.keyed()).index(record_id(put.key))]
        if refused and version is None and await self._store.version(put.key) == put.expected:
            raise of_old_snapshot(self._connection)
        self._check = None if is_outermost or version is None else self._find(put, version)
        return answer

    def changed(self, changes: tuple[Change, ...]) -> None:
        """Report these changes after the COMMIT, too."""
        self._changes += changes

    async def _step(self, witness: int, columns: Sequence[object]) -> Row:
        own = [witness, self._store.pause_max_ms, *(self._joined or (None, None))]
        rows = await self._execute(APPLY_STEPS.call, own, MARK, *columns)
        return rows[0]

    async def commit(self) -> None:
        """Commit the application's transaction."""
        try:
            await commit(self._connection, self._check, lambda error: sqlstate(error) is not None)
            self._is_ended = True
        finally:
            await self._connection.leave()
            # The outcome is not always known: a possible change wakes watches as well.
            self._store.executor.changed(self._changes)

    async def rollback(self) -> None:
        """Roll the application's transaction back; do nothing if it has ended."""
        if self._is_ended:
            return
        self._is_ended = True
        try:
            if await self._is_joined():
                await roll_back(self._connection)
        finally:
            await self._connection.leave()

    async def _is_joined(self) -> bool:
        """Return False if the application has ended the transaction; another one may be open by now."""
        try:
            if not await self._connection.is_joined():
                return False
            if self._joined is None:
                return True
            joined: bool = (await self._execute(f"SELECT {IS_JOINED}", *self._joined))[0][0]
        except Exception:  # The connection is lost, or the transaction has failed and can only be rolled back.
            return True
        return joined

    def _unjoined(self, why: int) -> InvalidInput:
        if why == _IS_FREE:
            return self._store.another(self._connection)
        if why == _IS_UNDONE:
            return undone(self._connection.what)
        return of_snapshot(self._connection) if why == _IS_SNAPSHOT else ended(self._connection)

    def _find(self, write: Put, version: int) -> str:
        """
        Return a query that finds the put.

        A ROLLBACK TO without RELEASE keeps the savepoint, and asyncpg and SQLAlchemy do so. The put is then inside it.
        The COMMIT includes both, unless another task rolls back to the savepoint in between. Then the COMMIT would
        decide the rows without the header.
        """
        path, partition = (
            f"pg_catalog.convert_from(pg_catalog.decode('{part.encode().hex()}', 'hex'), 'UTF8')"
            for part in (write.key.path, partition_of(write.key))
        )
        return self._store.qualified(
            f"SELECT 1 FROM {SCHEMA}.records"  # noqa: S608 - no text of others
            f" WHERE path = {path} AND partition = {partition} AND version = {version}"
        )

    async def _execute(self, text: str, *arguments: object) -> list[Row]:
        return await self._connection.execute(self._store.qualified(text), *arguments)

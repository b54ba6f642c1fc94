"""A transaction of the application on PostgreSQL that a header's put joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from zope.interface import implementer

from txnframework.errors import TxnFrameworkError, VersionMismatch
from txnframework.interfaces import IDatabaseTransaction
from txnframework.model import IndexEntry, Key, Put, Step
from txnframework_sql.application._connection import (
    ApplicationConnection,
    Row,
    commit,
    ended,
    of_snapshot,
    reason,
    require_joined,
    roll_back,
    sqlstate,
    undone,
)
from txnframework_sql.application._postgresql_statements import (
    BIND,
    IS_JOINED,
    IS_OUTERMOST,
    NEW_NUMBER,
    REPLACE,
)
from txnframework_sql.application._postgresql_store import FAILED_TRANSACTION, NOT_THERE, JoinedStore, failed
from txnframework_sql.postgresql._connection import SCHEMA
from txnframework_sql.postgresql._executor import prepare
from txnframework_sql.postgresql._schema import APPLY_STEPS
from txnframework_sql.steps.joint_appends import deciding_put
from txnframework_sql.steps.record_writes import put_record
from txnframework_sql.steps.records import encode_indexes
from txnframework_sql.steps.shared_reads import record_id
from txnframework_sql.steps.statements import Change, NewNumber, RecordChange, Rows, Steps, Write, partition_of

T = TypeVar("T")

_SERIALIZATION_FAILURE = "40001"
# Why apply_steps did nothing.
_IS_FREE, _IS_SNAPSHOT, _HAS_ENDED, _IS_UNDONE = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Joined:
    """The transaction, as the server knows it, and the header at its version."""

    pid: int
    began_us: int
    header: Key
    version: int
    before: frozenset[IndexEntry]
    pause_ms: int

    @property
    def bounds(self) -> tuple[object, ...]:
        """The first three arguments of the statements that write."""
        return self.pid, self.began_us, str(self.pause_ms)


@implementer(IDatabaseTransaction)
class PostgresqlTransaction:
    """
    One transaction of the application's connection.

    The put locks the header until the COMMIT. If this process stops in between, the server ends the transaction after
    ``pause_max_ms``.
    """

    def __init__(self, store: JoinedStore, connection: ApplicationConnection, joined: Joined | None) -> None:
        self._store = store
        self._connection = connection
        self._known = joined
        self._changes: tuple[Change, ...] = ()
        # A query that finds the put; None: the put is outside all savepoints.
        self._check: str | None = None
        self._is_ended = False

    @property
    def _joined(self) -> Joined:
        assert self._known is not None, "it was joined with a header"
        return self._known

    store_waits: str | None = None
    """Set once a step was refused, whose locks are held. Otherwise writers of different rows do not wait."""

    async def put(self, write: Put) -> int:
        """Write the record inside the application's transaction."""
        await require_joined(self._connection)
        await self._connection.flush()
        try:
            if write.key == self._joined.header and write.expected == self._joined.version:
                return await self._replace(write)
            return await self._put_by_steps(write)
        except TxnFrameworkError:
            raise
        except Exception as error:
            if sqlstate(error) == _SERIALIZATION_FAILURE:
                await self._require_unchanged(write, error)
            explained = self._store.explained(self._connection, error)
            if explained is error:
                raise
            raise explained from error

    async def step(self, step: Step, columns: Sequence[object]) -> Row:
        """Make a step inside the application's transaction; see ``StepOfRows``."""
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
            explained = self._store.explained(self._connection, error)
            if explained is error:
                raise
            raise explained from error
        unjoined, is_outermost, _, versions, *_ = answer
        if unjoined == _IS_FREE:
            raise self._store.another(self._connection)
        if unjoined == _IS_SNAPSHOT:
            raise of_snapshot(self._connection)
        self._require_kept(unjoined != _HAS_ENDED, unjoined != _IS_UNDONE)
        self.store_waits = "a step was refused, and its locks are held until the transaction ends"
        if not is_outermost:
            deciding = deciding_put(step)
            at = sorted(record_id(part.key) for part in step.keyed()).index(record_id(deciding.key))
            version = versions[at]
            self._check = None if version is None else self._find(deciding, version)
        return answer

    def changed(self, changes: tuple[Change, ...]) -> None:
        """Report these changes after the COMMIT, too."""
        self._changes += changes

    async def _step(self, witness: int, columns: Sequence[object]) -> Row:
        known = self._known
        own = [witness, self._store.pause_max_ms, *((None, None) if known is None else (known.pid, known.began_us))]
        mark = None if known is None else known.header.path
        rows = await self._execute(APPLY_STEPS.call, own, mark, *columns)
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
            if self._known is None:
                return True
            joined: bool = (await self._execute(f"SELECT {IS_JOINED}", self._known.pid, self._known.began_us))[0][0]
        except Exception:  # The connection is lost, or the transaction has failed and can only be rolled back.
            return True
        return joined

    async def _replace(self, write: Put) -> int:
        """Write the header in one statement; versions are never reused, so its index entries before are known."""
        joined, after = self._joined, frozenset(write.indexes)
        change = RecordChange(write.key.path, partition_of(write.key), joined.before | after)
        rows = await self._execute(
            REPLACE,
            *joined.bounds,
            *(write.key.path, partition_of(write.key), bytes(write.value), encode_indexes(after)),
            *(write.expected, encode_indexes(joined.before)),
            *_columns(joined.before - after),
            *_columns(after - joined.before),
        )
        is_same, is_kept, version, is_outermost = rows[0]
        self._require_kept(is_same, is_kept)
        if version is None:
            found = await self._execute(
                f"SELECT version FROM {SCHEMA}.records WHERE path = $1::text AND partition = $2::text",  # noqa: S608
                write.key.path,
                partition_of(write.key),
            )
            raise VersionMismatch(write.key, found[0][0] if found else None)
        self._check = None if is_outermost else self._find(write, int(version))
        self._changes = (change,)
        return int(version)

    def _require_kept(self, is_same: bool, is_kept: bool) -> None:
        if not is_same:
            raise ended(self._connection)
        if not is_kept:
            raise undone(self._connection)

    def _find(self, write: Put, version: int) -> str:
        """
        Return a query that finds the put.

        A ROLLBACK TO without RELEASE keeps the savepoint, and asyncpg and SQLAlchemy do so. The put is then inside it.
        The COMMIT includes both, unless another task rolls back to the savepoint in between. Then the COMMIT would
        decide the rows without the header.
        """
        at = (
            f"pg_catalog.convert_from(pg_catalog.decode('{part.encode().hex()}', 'hex'), 'UTF8')" for part in _at(write)
        )
        path, partition = at
        return self._store.qualified(
            f"SELECT 1 FROM {SCHEMA}.records"  # noqa: S608 - no text of others
            f" WHERE path = {path} AND partition = {partition} AND version = {version}"
        )

    async def _require_unchanged(self, write: Put, error: Exception) -> None:
        """Raise VersionMismatch if a serialization failure is due to a change of the record itself."""
        record = await self._store.record(write.key)
        actual = None if record is None else record.version
        if isinstance(write.expected, int) and actual != write.expected:
            raise VersionMismatch(write.key, actual) from error

    async def _put_by_steps(self, write: Put) -> int:
        """Write any record, in several statements."""
        rows = await self._execute(BIND, *self._joined.bounds, self._joined.header.path)
        self._require_kept(*rows[0][:2])
        changes: list[Change] = []
        record = await self._perform(put_record(write), changes)
        is_outermost = (await self._execute(IS_OUTERMOST, *_at(write)))[0][0]
        self._check = None if is_outermost else self._find(write, record.version)
        self._changes = tuple(changes)
        return record.version

    async def _perform(self, steps: Steps[T], changes: list[Change]) -> T:
        answer: object = None
        try:
            while True:
                call = steps.send(answer)
                if isinstance(call, Rows | Write):
                    answer = await self._answer(call.statement, call.parameters)
                elif isinstance(call, NewNumber):
                    answer = (await self._execute(NEW_NUMBER))[0][0]
                else:
                    assert isinstance(call, RecordChange), "a put needs nothing else"
                    changes.append(call)
                    answer = None
        except StopIteration as end:
            result: T = end.value
            return result

    async def _answer(self, statement: Any, parameters: Mapping[str, object]) -> object:
        prepared = prepare(statement)
        return await self._execute(prepared.text, *prepared.bind(parameters))

    async def _execute(self, text: str, *arguments: object) -> list[Row]:
        return await self._connection.execute(self._store.qualified(text), *arguments)


def _at(write: Put) -> tuple[str, str]:
    return write.key.path, partition_of(write.key)


def _columns(entries: frozenset[IndexEntry]) -> tuple[list[str], list[bytes]]:
    return [entry.index for entry in entries], [entry.key for entry in entries]

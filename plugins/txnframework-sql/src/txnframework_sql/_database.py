"""The interface between the stores and a database; each kind of database implements it."""

from __future__ import annotations

from typing import Any, Protocol

from txnframework.environment import Environment
from txnframework.interfaces import IDatabaseTransaction
from txnframework.model import (
    Append,
    Appended,
    Applied,
    Delete,
    EntryRange,
    IndexRange,
    Key,
    KeyRange,
    LedgerEntry,
    Limit,
    Put,
    Record,
    RecordPage,
    Step,
    Tail,
)
from txnframework.model.diagnoses import Diagnosis
from txnframework_sql._leases import LeaseSession
from txnframework_sql._options import LedgerOptions, MetadataOptions
from txnframework_sql._watch import WakeUps, Watches
from txnframework_sql.steps import appends, ledgers, reads
from txnframework_sql.steps.leases import Clock
from txnframework_sql.steps.ledgers import LedgerRef
from txnframework_sql.steps.statements import Executor


class Records(Protocol):
    """
    The operations of a metadata store on records; IMetadataStore describes what each method promises.

    SQLite performs them as steps, PostgreSQL by statements of its own.
    """

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""

    async def put(self, write: Put) -> int:
        """Write a record and its index entries; return its new version."""

    async def delete(self, part: Delete) -> None:
        """Delete a record and its index entries."""

    async def apply(self, step: Step) -> tuple[Record, ...]:
        """Make a valid step of records; return what its puts wrote."""

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""

    async def close(self) -> None:
        """Wait for the running operations; each still returns its true result."""


class Entries(Protocol):
    """The entries of one store's ledgers; IManagedLedger describes what each method promises."""

    async def append(
        self, managed: LedgerRef, entries: tuple[Append, ...], ledger_id: int | None, now_ms: int
    ) -> tuple[Appended, ...]:
        """Append durably, in order, adjacent, to ledger ``ledger_id`` only."""

    async def apply(self, step: Step, now_ms: int, transaction: Any = None) -> Applied:
        """
        Make a valid step with appends to these ledgers, or with vacant ranges; see IMetadataStore.

        :param transaction: one of an application that ``Joins`` has joined; the step becomes the last part of it.
        """

    async def tail(self, managed: LedgerRef) -> Tail:
        """Return last confirmed position, open ledger and sealed flag, read at one moment."""

    async def read(self, managed: LedgerRef, range_: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range in order."""

    async def close(self) -> None:
        """Wait for the running operations; each still returns its true result."""


class EntrySteps:
    """Entries by steps: all operations in SQLite, and the exceptional cases in PostgreSQL."""

    def __init__(self, executor: Executor, options: LedgerOptions) -> None:
        self._executor = executor
        self._options = options

    async def append(
        self, managed: LedgerRef, entries: tuple[Append, ...], ledger_id: int | None, now_ms: int
    ) -> tuple[Appended, ...]:
        """Append durably, in order, adjacent, to ledger ``ledger_id`` only."""
        return await self._executor.write(lambda: appends.append(managed, entries, ledger_id, now_ms, self._options))

    async def append_intended(self, managed: LedgerRef, step: Step, now_ms: int) -> Applied:
        """Make a step with an intent; see IMetadataStore."""
        return await self._executor.write(lambda: appends.append_intended(managed, step, now_ms, self._options))

    async def tail(self, managed: LedgerRef) -> Tail:
        """Return last confirmed position, open ledger and sealed flag, read at one moment."""
        return await self._executor.read(lambda: ledgers.tail_of(managed))

    async def read(self, managed: LedgerRef, range_: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range in order."""
        return await self._executor.read(lambda: reads.read(managed, range_, limit))

    async def close(self) -> None:
        """Return immediately: the executor waits for its own running operations."""


class Joins(Protocol):
    """Joins transactions of applications; see ``ICoCommitStore.join``."""

    async def join(self, given: object) -> IDatabaseTransaction:
        """Join the open transaction of a connection; begin one if none is open."""


class Database(Executor, Protocol):
    """
    An executor, and the operations that differ between the kinds of database.

    ``location`` is equal for two databases if one step can change what both have.
    """

    @property
    def location(self) -> object: ...

    has_one_writer: bool
    """Whether each writer waits for every other one."""

    def records(self, options: MetadataOptions) -> Records:
        """Return the operations on records."""

    def entries(self, options: LedgerOptions) -> Entries:
        """Return the operations that append and read the entries of one store's ledgers."""

    def clock(self, environment: Environment) -> Clock:
        """Return the clock by which leases expire for all users of the database."""

    def lease_session(self, environment: Environment, name: str, ttl_ms: int, clock: Clock) -> LeaseSession:
        """Return a new session, to which leases can be bound; by ``clock`` it expires in the database."""

    def wake_ups(self, watches: Watches, environment: Environment) -> WakeUps:
        """Return the wake-ups of one store's watches after the commits of other processes."""

    def joins(self, environment: Environment, options: MetadataOptions) -> Joins:
        """Return what joins the transactions of applications in this database."""

    async def diagnose(self, age_ms_min: int) -> tuple[Diagnosis, ...]:
        """Return what makes the database slow; see ``IDiagnosable``."""

    async def close(self) -> None:
        """Finish the running operations and release the database; idempotent."""

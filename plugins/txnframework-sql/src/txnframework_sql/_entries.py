"""Operations on the entries of managed ledgers; each kind of database implements them."""

from __future__ import annotations

from typing import Protocol

from txnframework.model import Append, Appended, EntryRange, LedgerEntry, Limit, Tail
from txnframework_sql._database import Executor
from txnframework_sql._options import LedgerOptions
from txnframework_sql.steps import appending, ledgers, reading
from txnframework_sql.steps.ledgers import Managed


class Entries(Protocol):
    """The entries of one store's ledgers; IManagedLedger describes what each method promises."""

    async def append(
        self, managed: Managed, entries: tuple[Append, ...], ledger_id: int | None, now_ms: int
    ) -> tuple[Appended, ...]:
        """Append durably, in order, adjacent, to ledger ``ledger_id`` only."""

    async def tail(self, managed: Managed) -> Tail:
        """Return last confirmed position, open ledger and sealed flag, read at one moment."""

    async def read(self, managed: Managed, range_: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range in order."""

    async def close(self) -> None:
        """Wait for the running operations; each still returns its true result."""


class EntrySteps:
    """Entries by steps that are correct in every kind of database."""

    def __init__(self, executor: Executor, options: LedgerOptions) -> None:
        self._executor = executor
        self._options = options

    async def append(
        self, managed: Managed, entries: tuple[Append, ...], ledger_id: int | None, now_ms: int
    ) -> tuple[Appended, ...]:
        """Append durably, in order, adjacent, to ledger ``ledger_id`` only."""
        return await self._executor.write(lambda: appending.append(managed, entries, ledger_id, now_ms, self._options))

    async def tail(self, managed: Managed) -> Tail:
        """Return last confirmed position, open ledger and sealed flag, read at one moment."""
        return await self._executor.read(lambda: ledgers.tail_of(managed))

    async def read(self, managed: Managed, range_: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range in order."""
        return await self._executor.read(lambda: reading.read(managed, range_, limit))

    async def close(self) -> None:
        """Return at once: the executor waits for its own running operations."""

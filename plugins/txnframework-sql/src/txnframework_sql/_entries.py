"""How entries are appended to managed ledgers and read: the operations that each database does in its own way."""

from __future__ import annotations

from typing import Protocol

from txnframework.model import Append, Appended, EntryRange, LedgerEntry, Limit, Tail
from txnframework_sql._database import Executor
from txnframework_sql._options import LedgerOptions
from txnframework_sql.steps import appending, ledgers, reading
from txnframework_sql.steps.ledgers import Managed


class Entries(Protocol):
    """The entries of one store's ledgers; see IManagedLedger for what each method promises."""

    async def append(
        self, managed: Managed, entries: tuple[Append, ...], ledger_id: int | None, now_ms: int
    ) -> tuple[Appended, ...]:
        """Append durably, in order, adjacent, to ``ledger_id`` and no other."""

    async def tail(self, managed: Managed) -> Tail:
        """Return last confirmed position, open ledger and sealed flag, as one consistent fact."""

    async def read(self, managed: Managed, range_: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range in order."""

    async def close(self) -> None:
        """Wait for what is under way; each still gets its true answer."""


class EntrySteps:
    """Entries by the steps that are right in every database."""

    def __init__(self, executor: Executor, options: LedgerOptions) -> None:
        self._executor = executor
        self._options = options

    async def append(
        self, managed: Managed, entries: tuple[Append, ...], ledger_id: int | None, now_ms: int
    ) -> tuple[Appended, ...]:
        """Append durably, in order, adjacent, to ``ledger_id`` and no other."""
        return await self._executor.write(lambda: appending.append(managed, entries, ledger_id, now_ms, self._options))

    async def tail(self, managed: Managed) -> Tail:
        """Return last confirmed position, open ledger and sealed flag, as one consistent fact."""
        return await self._executor.read(lambda: ledgers.tail_of(managed))

    async def read(self, managed: Managed, range_: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range in order."""
        return await self._executor.read(lambda: reading.read(managed, range_, limit))

    async def close(self) -> None:
        """Nothing is under way here that is not the executor's."""

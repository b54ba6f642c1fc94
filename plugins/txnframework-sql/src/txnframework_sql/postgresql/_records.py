"""The operations on records in PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from txnframework.model import IndexRange, KeyRange, RecordPage
from txnframework_sql._options import MetadataOptions
from txnframework_sql._records import RecordSteps
from txnframework_sql.steps import records

if TYPE_CHECKING:
    from txnframework_sql.postgresql._executor import PostgresqlExecutor


class PostgresqlRecords(RecordSteps):
    """Operations on records."""

    def __init__(self, executor: PostgresqlExecutor, _: MetadataOptions) -> None:
        super().__init__(executor)
        self._database = executor

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        range_ = replace(keys, start=_without_nul(keys.start), stop=_without_nul(keys.stop))
        return await self._database.read_loosely(lambda: records.scan_records(range_, items_max))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        return await self._database.read_loosely(lambda: records.scan_index_entries(entries, items_max))


def _without_nul(bound: str) -> str:
    """
    Return a bound that stands where this one does among all texts without the character NUL.

    PostgreSQL takes no other text, and the range that is left of a page begins with a NUL behind its last path.
    """
    before, nul, _ = bound.partition("\0")
    return f"{before}\1" if nul else bound

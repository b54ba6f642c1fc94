"""The operations on records, where steps are all that there is."""

from __future__ import annotations

from typing import Protocol

from txnframework.model import Batch, Delete, IndexRange, Key, KeyRange, Put, PutSequential, Record, RecordPage
from txnframework_sql._database import Executor
from txnframework_sql.steps import records


class Records(Protocol):
    """What a metadata store does with records; see IMetadataStore. PostgreSQL has statements of its own for it."""

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""

    async def put(self, write: Put) -> int:
        """Write a record and its index entries; return its new version."""

    async def delete(self, step: Delete) -> None:
        """Remove a record and its index entries."""

    async def put_sequential(self, write: PutSequential) -> Key:
        """Write a record under the next number; return its key."""

    async def apply(self, batch: Batch) -> tuple[Record, ...]:
        """Apply every step of a batch that was checked, or none."""

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""

    async def close(self) -> None:
        """Wait for what is under way; each still gets its true answer."""


class RecordSteps:
    """Operations performed as steps by an executor whose writers are serial."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        return await self._executor.read(lambda: records.get_record(key))

    async def put(self, write: Put) -> int:
        """Write a record and its index entries; return its new version."""
        return (await self._executor.write(lambda: records.put_record(write))).version

    async def delete(self, step: Delete) -> None:
        """Remove a record and its index entries."""
        await self._executor.write(lambda: records.delete_record(step))

    async def put_sequential(self, write: PutSequential) -> Key:
        """Write a record under the next number; return its key."""
        return (await self._executor.write(lambda: records.put_next(write))).key

    async def apply(self, batch: Batch) -> tuple[Record, ...]:
        """Apply every step of a batch, or none."""
        return await self._executor.write(lambda: records.apply_batch(batch))

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        return await self._executor.read(lambda: records.scan_records(keys, items_max))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        return await self._executor.read(lambda: records.scan_index_entries(entries, items_max))

    async def close(self) -> None:
        """Nothing is under way here that is not the executor's."""

"""The operations on records, and their implementation by steps."""

from __future__ import annotations

from typing import Protocol

from txnframework.model import Batch, Delete, IndexRange, Key, KeyRange, Put, PutSequential, Record, RecordPage
from txnframework_sql._database import Executor
from txnframework_sql.steps import records


class Records(Protocol):
    """
    The operations of a metadata store on records; see IMetadataStore. PostgreSQL implements them by its own statements.
    """

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""

    async def put(self, write: Put) -> int:
        """Write a record and its index entries; return its new version."""

    async def delete(self, step: Delete) -> None:
        """Delete a record and its index entries."""

    async def put_sequential(self, write: PutSequential) -> Key:
        """Write a record under the next number; return its key."""

    async def apply(self, batch: Batch) -> tuple[Record, ...]:
        """Apply all steps of a checked batch, or none."""

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""

    async def close(self) -> None:
        """Wait for the running operations; each still returns its true result."""


class RecordSteps:
    """Operations performed as steps, by an executor with serialized writers."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        return await self._executor.read(lambda: records.get_record(key))

    async def put(self, write: Put) -> int:
        """Write a record and its index entries; return its new version."""
        return (await self._executor.write(lambda: records.put_record(write))).version

    async def delete(self, step: Delete) -> None:
        """Delete a record and its index entries."""
        await self._executor.write(lambda: records.delete_record(step))

    async def put_sequential(self, write: PutSequential) -> Key:
        """Write a record under the next number; return its key."""
        return (await self._executor.write(lambda: records.put_next(write))).key

    async def apply(self, batch: Batch) -> tuple[Record, ...]:
        """Apply all steps of a batch, or none."""
        return await self._executor.write(lambda: records.apply_batch(batch))

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        return await self._executor.read(lambda: records.scan_records(keys, items_max))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        return await self._executor.read(lambda: records.scan_index_entries(entries, items_max))

    async def close(self) -> None:
        """Return at once: the executor waits for its own running operations."""

"""The operations on records in PostgreSQL: one statement for each, or one for many."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from txnframework.errors import TxnFrameworkError
from txnframework.model import Delete, IndexRange, Key, KeyRange, Put, Record, RecordPage, Step
from txnframework_sql._options import MetadataOptions, ledger_options_of
from txnframework_sql.postgresql._call_groups import CallGroups
from txnframework_sql.postgresql._connection import SCHEMA
from txnframework_sql.postgresql._executor import PostgresqlExecutor
from txnframework_sql.postgresql._step_calls import StepCalls
from txnframework_sql.steps import records
from txnframework_sql.steps.statements import Row, partition_of

_Scan = tuple[KeyRange, int]

_GET = f"SELECT value, version FROM {SCHEMA}.records WHERE path = $1 AND partition = $2"  # noqa: S608 - a name of our own
# Each is looked up by its key, whatever row count the planner estimates.
_GET_MANY = f"""
SELECT wanted.at, found.value, found.version
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS wanted (path, partition, at)
CROSS JOIN LATERAL (
    SELECT r.value, r.version FROM {SCHEMA}.records r
    WHERE r.path = wanted.path AND r.partition = wanted.partition LIMIT 1
) found
"""  # noqa: S608 - a name of our own
# The same query as steps.records.scan_records, for many ranges.
_SCAN_MANY = f"""
SELECT wanted.at, found.path, found.partition, found.value, found.version
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) WITH ORDINALITY
    AS wanted (start, stop, partition, items, at)
CROSS JOIN LATERAL (
    SELECT r.path, r.partition, r.value, r.version FROM {SCHEMA}.records r
    WHERE r.path >= wanted.start AND r.path < wanted.stop AND r.partition = coalesce(wanted.partition, r.partition)
    ORDER BY r.path, r.partition LIMIT wanted.items
) found
ORDER BY wanted.at, found.path, found.partition
"""  # noqa: S608 - a name of our own
# Their pages are in memory at the same time.
_SCANS_TOGETHER_MAX = 32
_READS_UNDER_WAY = 2


class PostgresqlRecords:
    """
    Operations on records; calls that arrive while others are running share statements, and therefore commits.

    :raises OutcomeUnknown: a write got no reply; raised for each call that shared the write.
    """

    def __init__(self, executor: PostgresqlExecutor, options: MetadataOptions) -> None:
        self._executor = executor
        self._pool = executor.pool
        self._steps = StepCalls(executor, ledger_options_of(options), is_of_ledgers=False)
        self._reads: CallGroups[Key, Record | None] = CallGroups(
            self._get,
            queue_max=options.queue_max,
            group_max=options.group_max,
            under_way_max=_READS_UNDER_WAY,
            may_be_alone=True,
        )
        self._scans: CallGroups[_Scan, RecordPage] = CallGroups(
            self._scan,
            queue_max=options.queue_max,
            group_max=min(_SCANS_TOGETHER_MAX, options.group_max),
            under_way_max=_READS_UNDER_WAY,
        )

    async def get(self, key: Key) -> Record | None:
        """Return the record, or None."""
        self._executor.require_open()
        if "\0" in key.path or "\0" in key.partition:
            # PostgreSQL cannot store such a key.
            return None
        return await self._reads.submit(key)

    async def put(self, write: Put) -> int:
        """Write a record and its index entries; return its new version."""
        return (await self._steps.apply(Step(puts=(write,)))).records[0].version

    async def delete(self, part: Delete) -> None:
        """Delete a record and its index entries."""
        await self._steps.apply(Step(deletes=(part,)))

    async def apply(self, step: Step) -> tuple[Record, ...]:
        """Make a step of records."""
        return (await self._steps.apply(step)).records

    async def scan(self, keys: KeyRange, items_max: int) -> RecordPage:
        """Return a page of records in key order."""
        range_ = msgspec.structs.replace(keys, start=_without_nul(keys.start), stop=_without_nul(keys.stop))
        return await self._scans.submit((range_, items_max))

    async def scan_index(self, entries: IndexRange, items_max: int) -> RecordPage:
        """Return a page of records in the order of an index."""
        return await self._executor.read_loosely(lambda: records.scan_index_entries(entries, items_max))

    async def close(self) -> None:
        """Wait for the running operations; each still returns its true result."""
        await self._reads.close()
        await self._scans.close()
        await self._steps.close()

    async def _get(self, keys: Sequence[Key]) -> list[Record | TxnFrameworkError | None]:
        if len(keys) == 1:
            (key,) = keys
            rows = await self._pool.run(lambda connection: connection.read(_GET, key.path, partition_of(key)))
            return [Record(key, *rows[0]) if rows else None]
        paths, partitions = [key.path for key in keys], [partition_of(key) for key in keys]
        rows = await self._pool.run(lambda connection: connection.read(_GET_MANY, paths, partitions))
        found = {at: (value, version) for at, value, version in rows}
        return [Record(key, *found[at]) if at in found else None for at, key in enumerate(keys, 1)]

    async def _scan(self, scans: Sequence[_Scan]) -> list[RecordPage | TxnFrameworkError]:
        if len(scans) == 1:
            return [await self._scan_alone(*scans[0])]
        columns = (
            [keys.start for keys, _ in scans],
            [keys.stop for keys, _ in scans],
            [keys.partition for keys, _ in scans],
            [items_max + 1 for _, items_max in scans],
        )
        rows = await self._pool.run(lambda connection: connection.read(_SCAN_MANY, *columns))
        found: list[list[Row]] = [[] for _ in scans]
        for at, *record in rows:
            found[at - 1].append(tuple(record))
        return [
            records.whole_page(own) if len(own) <= items_max else await self._scan_alone(keys, items_max)
            for (keys, items_max), own in zip(scans, found, strict=True)
        ]

    async def _scan_alone(self, keys: KeyRange, items_max: int) -> RecordPage:
        return await self._executor.read_loosely(lambda: records.scan_records(keys, items_max))


def _without_nul(bound: str) -> str:
    """
    Return the equivalent bound among all texts without the character NUL.

    PostgreSQL rejects NUL in text, and the remaining range of a page begins with a NUL after its last path.
    """
    before, nul, _ = bound.partition("\0")
    return f"{before}\1" if nul else bound

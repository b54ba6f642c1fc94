"""
The statements of a single put or delete.

They do the same as ``functions/apply_steps.sql`` at a lower cost: PL/pgSQL's setup in every transaction costs more than
a single put. They decide only success. If a statement changes nothing, because the record is not as expected, the
function is called, which reads again. The function also performs every write that these statements do not support.

Each of these statements is correct in one snapshot, although it may wait for the record. Versions are never reused, so
a record with the expected version after the wait also has its earlier index entries.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from txnframework.model import Delete, Expect, IndexEntry, Put, Record
from txnframework_sql.postgresql._connection import SCHEMA
from txnframework_sql.schema import NUMBERS
from txnframework_sql.steps.records import encode_indexes
from txnframework_sql.steps.statements import RecordChange, partition_of

# The number of records whose index entries are remembered: about the number of simultaneously open transactions.
_KNOWN_MAX = 4_096

_MADE = f"""
WITH made AS (
    INSERT INTO {SCHEMA}.records (path, partition, version, indexes, value)
    VALUES ($1, $2, nextval('{SCHEMA}.{NUMBERS}'), $4, $3) ON CONFLICT DO NOTHING RETURNING version
), added AS (
    INSERT INTO {SCHEMA}.index_entries (index_name, key, path, partition)
    SELECT added.name, added.key, $1, $2 FROM made, unnest($5::text[], $6::bytea[]) AS added (name, key)
)
SELECT version FROM made
"""  # noqa: S608 - a name of our own
_REPLACED = f"""
WITH bounded AS MATERIALIZED (
    SELECT set_config('lock_timeout', $11, true)
), written AS (
    UPDATE {SCHEMA}.records SET version = nextval('{SCHEMA}.{NUMBERS}'), indexes = $4, value = $3
    FROM bounded
    WHERE path = $1 AND partition = $2 AND version = $7 AND indexes IS NOT DISTINCT FROM $8 RETURNING version
), removed AS (
    DELETE FROM {SCHEMA}.index_entries e USING written, unnest($9::text[], $10::bytea[]) AS removed (name, key)
    WHERE e.index_name = removed.name AND e.key = removed.key AND e.path = $1 AND e.partition = $2
), added AS (
    INSERT INTO {SCHEMA}.index_entries (index_name, key, path, partition)
    SELECT added.name, added.key, $1, $2 FROM written, unnest($5::text[], $6::bytea[]) AS added (name, key)
)
SELECT version FROM written
"""  # noqa: S608 - a name of our own

_DELETED = f"""
WITH bounded AS MATERIALIZED (
    SELECT set_config('lock_timeout', $4, true)
), gone AS (
    DELETE FROM {SCHEMA}.records USING bounded
    WHERE path = $1 AND partition = $2 AND version = $3 RETURNING indexes
), removed AS (
    DELETE FROM {SCHEMA}.index_entries e USING gone, jsonb_array_elements(gone.indexes::jsonb) AS removed (pair)
    WHERE e.index_name = removed.pair ->> 0 AND e.key = decode(removed.pair ->> 1, 'hex')
        AND e.path = $1 AND e.partition = $2
)
SELECT indexes FROM gone
"""  # noqa: S608 - a name of our own

_Entries = frozenset[IndexEntry]


class SinglePut(NamedTuple):
    """One put with its statement, and the index entries before and after it."""

    put: Put
    before: _Entries
    after: _Entries
    text: str
    arguments: tuple[object, ...]


class SinglePuts:
    """
    Builds the statements of single puts, and remembers the index entries that records got from them.

    The memory only chooses the statement. The statement names the expected entries and changes nothing if they differ.

    :param lock_wait_ms: how long a statement waits for the lock of its record.
    """

    def __init__(self, lock_wait_ms: int) -> None:
        self._lock_wait_ms = str(lock_wait_ms)
        self._known: OrderedDict[tuple[str, str], tuple[int, _Entries]] = OrderedDict()

    def statement(self, put: Put) -> SinglePut | None:
        """Return a put with its statement, or None if the function must perform it."""
        if put.expected is Expect.ANY:
            return None
        path, partition = put.key.path, partition_of(put.key)
        before, after = frozenset[IndexEntry](), frozenset(put.indexes)
        is_new = put.expected is Expect.ABSENT
        if not is_new:
            version, known = self._known.get((path, partition), (None, before))
            if version == put.expected:
                before = known
            elif after:
                return None
        before_list, after_list = encode_indexes(before), encode_indexes(after)
        arguments = (path, partition, bytes(put.value), after_list, *_columns(after - before))
        if is_new:
            return SinglePut(put, before, after, _MADE, arguments)
        more = (put.expected, before_list, *_columns(before - after), self._lock_wait_ms)
        return SinglePut(put, before, after, _REPLACED, arguments + more)

    def written(self, single: SinglePut, version: int) -> tuple[Record, RecordChange]:
        """Return the record that a statement wrote, with the version that it returned, and the change."""
        key = single.put.key
        place = key.path, partition_of(key)
        self._known.pop(place, None)
        if single.after:
            self._known[place] = version, single.after
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        return Record(key, bytes(single.put.value), version), RecordChange(*place, single.before | single.after)


def delete_statement(part: Delete, lock_wait_ms: int) -> tuple[str, tuple[object, ...]] | None:
    """
    Return a statement and its arguments; None: the function must perform it.

    The statement returns the list of index entries that the record had, or no row.
    """
    if not isinstance(part.expected, int):
        return None
    return _DELETED, (part.key.path, partition_of(part.key), part.expected, str(lock_wait_ms))


def _columns(entries: _Entries) -> tuple[list[str], list[bytes]]:
    return [entry.index for entry in entries], [entry.key for entry in entries]

"""
A put that comes alone, as one plain statement.

It does what ``functions/apply_batches.sql`` would, for less: what PL/pgSQL sets up anew in every transaction costs more
than the work of a single put. It decides nothing but success. Where it changes nothing, because the record is not as
expected or because its index entries need more than these statements do, the function is asked, which looks again.

Each is right in one snapshot, although it may have to wait for the record: a version never returns, so a record that
has the expected one after the wait has the index entries that it had before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from txnframework.model import Expect, IndexEntry, Put, Record
from txnframework_sql.postgresql._payloads import BYTES_MAX, CHANNEL
from txnframework_sql.schema import NUMBERS
from txnframework_sql.steps.changes import RecordChange, partition_of
from txnframework_sql.steps.records import decode_indexes, encode_indexes

# Half of a payload is what the record keeps of its index entries before, the other half is what is known here.
_HALF = BYTES_MAX // 2

_MADE = f"""
WITH made AS (
    INSERT INTO records (path, partition, version, indexes, value)
    VALUES ($1, $2, nextval('{NUMBERS}'), NULL, $3) ON CONFLICT DO NOTHING RETURNING version
)
SELECT version, NULL, pg_notify($4, $5) FROM made
"""  # noqa: S608 - a name of our own
_MADE_WITH_ENTRY = f"""
WITH made AS (
    INSERT INTO records (path, partition, version, indexes, value)
    VALUES ($1, $2, nextval('{NUMBERS}'), $6, $3) ON CONFLICT DO NOTHING RETURNING version
), entry AS (
    INSERT INTO index_entries (index_name, key, path, partition) SELECT $7, $8, $1, $2 FROM made
)
SELECT version, NULL, pg_notify($4, $5) FROM made
"""  # noqa: S608 - a name of our own
_REPLACED = f"""
WITH written AS (
    UPDATE records SET version = nextval('{NUMBERS}'), value = $3
    WHERE path = $1 AND partition = $2 AND version = $6 AND indexes IS NULL RETURNING version
)
SELECT version, NULL, pg_notify($4, $5) FROM written
"""  # noqa: S608 - a name of our own
# One entry before, one after: it is moved.
_REPLACED_WITH_ENTRY = f"""
WITH written AS (
    UPDATE records r SET version = nextval('{NUMBERS}'), indexes = $6, value = $3
    FROM records before
    WHERE r.path = $1 AND r.partition = $2 AND r.version = $9
        AND before.path = $1 AND before.partition = $2 AND before.version = $9
        AND jsonb_array_length(before.indexes::jsonb) = 1 AND octet_length(before.indexes) <= {_HALF}
    RETURNING r.version, before.indexes AS list_before
), entry AS (
    UPDATE index_entries e SET index_name = $7, key = $8 FROM written
    WHERE e.index_name = list_before::jsonb #>> '{{0,0}}' AND e.key = decode(list_before::jsonb #>> '{{0,1}}', 'hex')
        AND e.path = $1 AND e.partition = $2
)
SELECT version, list_before, pg_notify($4, $5 || list_before || ',' || $6 || ']]') FROM written
"""  # noqa: S608 - a name of our own


@dataclass(frozen=True, slots=True)
class LonePut:
    """One put, and the statement for it; ``written`` takes the row that it returns if it was done."""

    put: Put
    text: str
    arguments: tuple[object, ...]

    def written(self, row: Sequence[Any]) -> tuple[Record, RecordChange]:
        """Return what the statement wrote, and what it changed."""
        version, list_before, _ = row
        key = self.put.key
        indexes = decode_indexes(key, list_before).union(self.put.indexes)
        return Record(key, bytes(self.put.value), version), RecordChange(key.path, partition_of(key), indexes)


def lone_put(put: Put) -> LonePut | None:
    """Return a put with its statement; None for one that is left to the function."""
    if put.expected is Expect.ANY or len(put.indexes) > 1:
        return None
    key, partition = put.key, partition_of(put.key)
    entries: frozenset[IndexEntry] = frozenset(put.indexes)
    list_after = encode_indexes(entries)
    start = f"[{_json(key.path)},{_json(None if partition == key.path else partition)},"
    if len(start.encode()) + len((list_after or "").encode()) > _HALF - len("[,null]]"):
        return None
    ending = f"null,{list_after or 'null'}]]"
    common = (key.path, partition, bytes(put.value), CHANNEL)
    if list_after is None:
        told = f"[{start}{ending}"
        if put.expected is Expect.ABSENT:
            return LonePut(put, _MADE, (*common, told))
        return LonePut(put, _REPLACED, (*common, told, put.expected))
    (entry,) = entries
    of_entry = (list_after, entry.index, entry.key)
    if put.expected is Expect.ABSENT:
        return LonePut(put, _MADE_WITH_ENTRY, (*common, f"[{start}{ending}", *of_entry))
    return LonePut(put, _REPLACED_WITH_ENTRY, (*common, f"[{start}", *of_entry, put.expected))


def _json(text: str | None) -> str:
    return msgspec.json.encode(text).decode()

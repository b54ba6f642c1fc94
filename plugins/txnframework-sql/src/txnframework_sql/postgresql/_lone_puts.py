"""
Puts that come alone, each as one plain statement.

They do what ``functions/apply_batches.sql`` would, for less: what PL/pgSQL sets up anew in every transaction costs more
than the work of a single put. They decide nothing but success: where a statement changes nothing, because the record is
not as expected, the function is asked, which looks again. So is it for what needs more than these statements do.

Each is right in one snapshot, although it may have to wait for the record: a version never returns, so a record that
has the expected one after the wait has the index entries that it had before it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import msgspec

from txnframework.model import Expect, IndexEntry, Put, Record
from txnframework_sql.postgresql._payloads import BYTES_MAX
from txnframework_sql.postgresql._qualified import HERE
from txnframework_sql.schema import NUMBERS
from txnframework_sql.steps.changes import RecordChange, partition_of

# Of so many records it is known which index entry they have: about as many as there are transactions open at a time.
_KNOWN_MAX = 4_096

_MADE = f"""
WITH made AS (
    INSERT INTO {HERE}.records (path, partition, version, indexes, value)
    VALUES ($1, $2, nextval('{HERE}.{NUMBERS}'), NULL, $3) ON CONFLICT DO NOTHING RETURNING version
)
SELECT version, pg_notify($4, $5) FROM made
"""  # noqa: S608 - a name of our own
_MADE_WITH_ENTRY = f"""
WITH made AS (
    INSERT INTO {HERE}.records (path, partition, version, indexes, value)
    VALUES ($1, $2, nextval('{HERE}.{NUMBERS}'), $6, $3) ON CONFLICT DO NOTHING RETURNING version
), entry AS (
    INSERT INTO {HERE}.index_entries (index_name, key, path, partition) SELECT $7, $8, $1, $2 FROM made
)
SELECT version, pg_notify($4, $5) FROM made
"""  # noqa: S608 - a name of our own
_REPLACED = f"""
WITH written AS (
    UPDATE {HERE}.records SET version = nextval('{HERE}.{NUMBERS}'), value = $3
    WHERE path = $1 AND partition = $2 AND version = $6 AND indexes IS NULL RETURNING version
)
SELECT version, pg_notify($4, $5) FROM written
"""  # noqa: S608 - a name of our own
# One entry before, one after: it is moved.
_REPLACED_WITH_ENTRY = f"""
WITH written AS (
    UPDATE {HERE}.records SET version = nextval('{HERE}.{NUMBERS}'), indexes = $6, value = $3
    WHERE path = $1 AND partition = $2 AND version = $9 AND indexes = $10 RETURNING version
), entry AS (
    UPDATE {HERE}.index_entries e SET index_name = $7, key = $8 FROM written
    WHERE e.index_name = $11 AND e.key = $12 AND e.path = $1 AND e.partition = $2
)
SELECT version, pg_notify($4, $5) FROM written
"""  # noqa: S608 - a name of our own


class _Entry(NamedTuple):
    """An index entry, and the list of a record that has no other."""

    entry: IndexEntry
    list: str


class LonePut(NamedTuple):
    """One put with the statement for it; ``before`` and ``after``: the index entry that its record has, if any."""

    put: Put
    partition: str
    before: _Entry | None
    after: _Entry | None
    text: str
    arguments: tuple[object, ...]


class LonePuts:
    """
    The statements for puts that come alone; remembers which index entry records got from them.

    What is remembered only chooses the statement, which names it and does nothing where it is wrong.
    """

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._known: OrderedDict[tuple[str, str], tuple[int, _Entry]] = OrderedDict()

    def statement(self, put: Put) -> LonePut | None:
        """Return a put with its statement; None for one that is left to the function."""
        if put.expected is Expect.ANY or len(put.indexes) > 1:
            return None
        path, partition = put.key.path, partition_of(put.key)
        is_new = put.expected is Expect.ABSENT
        before = after = None
        if put.indexes:
            after = _Entry(put.indexes[0], _list_of(put.indexes[0]))
            if not is_new:
                version, before = self._known.get((path, partition), (None, None))
                if before is None or version != put.expected:
                    return None
        value = bytes(put.value)
        payload = _payload(path, partition, before, after)
        if len(payload.encode()) > BYTES_MAX:
            return None
        arguments: tuple[object, ...] = (path, partition, value, self._channel, payload)
        if after is None:
            text, more = (_MADE, ()) if is_new else (_REPLACED, (put.expected,))
            return LonePut(put, partition, None, None, text, arguments + more)
        arguments = (*arguments, after.list, after.entry.index, after.entry.key)
        if before is None:
            return LonePut(put, partition, None, after, _MADE_WITH_ENTRY, arguments)
        arguments = (*arguments, put.expected, before.list, before.entry.index, before.entry.key)
        return LonePut(put, partition, before, after, _REPLACED_WITH_ENTRY, arguments)

    def written(self, lone: LonePut, version: int) -> tuple[Record, RecordChange]:
        """Return what a statement wrote, by the version that it returned, and what it changed."""
        key, value = lone.put.key, bytes(lone.put.value)
        place = key.path, lone.partition
        self._known.pop(place, None)
        if lone.after is not None:
            self._known[place] = version, lone.after
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        entries = frozenset(known.entry for known in (lone.before, lone.after) if known is not None)
        return Record(key, value, version), RecordChange(*place, entries)


def _list_of(entry: IndexEntry) -> str:
    """Return ``encode_indexes`` of one entry, which the record keeps as its list."""
    return msgspec.json.encode(((entry.index, entry.key.hex()),)).decode()


def _payload(path: str, partition: str, before: _Entry | None, after: _Entry | None) -> str:
    """Return what is notified: the entries before and after apart, as the function does it."""
    start = msgspec.json.encode((path, None if partition == path else partition)).decode()[:-1]
    return f"[{start},{before.list if before else 'null'},{after.list if after else 'null'}]]"

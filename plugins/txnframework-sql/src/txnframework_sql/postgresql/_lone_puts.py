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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from txnframework.model import Expect, IndexEntry, Put, Record
from txnframework_sql.postgresql._payloads import BYTES_MAX, CHANNEL, told_value
from txnframework_sql.schema import NUMBERS
from txnframework_sql.steps.changes import RecordChange, partition_of
from txnframework_sql.steps.records import encode_indexes

# Of so many records it is known which index entry they have: about as many as there are transactions open at a time.
_KNOWN_MAX = 4_096

_MADE = f"""
WITH made AS (
    INSERT INTO records (path, partition, version, indexes, value)
    VALUES ($1, $2, nextval('{NUMBERS}'), NULL, $3) ON CONFLICT DO NOTHING RETURNING version
)
SELECT version, pg_notify($4, $5) FROM made
"""  # noqa: S608 - a name of our own
_MADE_WITH_ENTRY = f"""
WITH made AS (
    INSERT INTO records (path, partition, version, indexes, value)
    VALUES ($1, $2, nextval('{NUMBERS}'), $6, $3) ON CONFLICT DO NOTHING RETURNING version
), entry AS (
    INSERT INTO index_entries (index_name, key, path, partition) SELECT $7, $8, $1, $2 FROM made
)
SELECT version, pg_notify($4, $5) FROM made
"""  # noqa: S608 - a name of our own
_REPLACED = f"""
WITH written AS (
    UPDATE records SET version = nextval('{NUMBERS}'), value = $3
    WHERE path = $1 AND partition = $2 AND version = $6 AND indexes IS NULL RETURNING version
)
SELECT version, pg_notify($4, $5) FROM written
"""  # noqa: S608 - a name of our own
# One entry before, one after: it is moved.
_REPLACED_WITH_ENTRY = f"""
WITH written AS (
    UPDATE records SET version = nextval('{NUMBERS}'), indexes = $6, value = $3
    WHERE path = $1 AND partition = $2 AND version = $9 AND indexes = $10 RETURNING version
), entry AS (
    UPDATE index_entries e SET index_name = $7, key = $8 FROM written
    WHERE e.index_name = $11 AND e.key = $12 AND e.path = $1 AND e.partition = $2
)
SELECT version, pg_notify($4, $5) FROM written
"""  # noqa: S608 - a name of our own


@dataclass(frozen=True, slots=True)
class LonePut:
    """One put with the statement for it; ``before``: the index entries that its record has until then."""

    put: Put
    before: frozenset[IndexEntry]
    text: str
    arguments: tuple[object, ...]


class LonePuts:
    """
    The statements for puts that come alone; remembers which index entry records got from them.

    What is remembered only chooses the statement, which names it and does nothing where it is wrong.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], tuple[int, IndexEntry]] = OrderedDict()

    def statement(self, put: Put) -> LonePut | None:
        """Return a put with its statement; None for one that is left to the function."""
        if put.expected is Expect.ANY or len(put.indexes) > 1:
            return None
        place = put.key.path, partition_of(put.key)
        after = frozenset(put.indexes)
        before: frozenset[IndexEntry] = frozenset()
        if after and put.expected is not Expect.ABSENT:
            version, known = self._known.get(place, (None, None))
            if known is None or version != put.expected:
                return None
            before = frozenset((known,))
        list_before, list_after = encode_indexes(before), encode_indexes(after)
        # Somebody may wait for just that: how a transaction ended, or that a cursor is as it was left.
        value = None if put.expected is Expect.ABSENT else told_value(put.value)
        told = _payload(*place, list_before, list_after, value)
        if len(told.encode()) > BYTES_MAX:
            return None
        common = (*place, bytes(put.value), CHANNEL, told)
        is_new = put.expected is Expect.ABSENT
        if not after:
            text, more = (_MADE, ()) if is_new else (_REPLACED, (put.expected,))
            return LonePut(put, before, text, (*common, *more))
        text = _MADE_WITH_ENTRY if is_new else _REPLACED_WITH_ENTRY
        of_after = (list_after, *_columns(after))
        of_before = () if is_new else (put.expected, list_before, *_columns(before))
        return LonePut(put, before, text, (*common, *of_after, *of_before))

    def written(self, lone: LonePut, row: Sequence[Any]) -> tuple[Record, RecordChange]:
        """Return what a statement wrote, by the row that it returned, and what it changed."""
        put, (version, _) = lone.put, row
        place = put.key.path, partition_of(put.key)
        self._known.pop(place, None)
        for entry in put.indexes:
            self._known[place] = version, entry
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        value = bytes(put.value)
        return Record(put.key, value, version), RecordChange(*place, lone.before.union(put.indexes), value)


def _columns(entries: frozenset[IndexEntry]) -> tuple[str, bytes]:
    (entry,) = entries
    return entry.index, entry.key


def _payload(path: str, partition: str, list_before: str | None, list_after: str | None, value: str | None) -> str:
    """Return what is notified: the entries before and after apart, as the function does it, and the value if given."""
    start = msgspec.json.encode((path, None if partition == path else partition)).decode()[:-1]
    told = "" if value is None else f",{value}"
    return f"[{start},{list_before or 'null'},{list_after or 'null'}{told}]]"

"""Steps that read the state of many records and ledgers by one statement each, where writers are serialized."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Text, and_, bindparam, func, select

from txnframework.model import Key
from txnframework_sql.schema import producer_copies, records
from txnframework_sql.steps.appends import newest_copy
from txnframework_sql.steps.statements import Steps, partition_of, rows

# A JSON array as a table: "key" is the number of an element, and "value" the element, which is an array, too.
_GIVEN = func.json_each(bindparam("given", type_=Text)).table_valued("key", "value")


def _part(number: int) -> ColumnElement[Any]:
    return func.json_extract(_GIVEN.c.value, f"$[{number}]")


_HEADS = select(_GIVEN.c.key, records.c.version, records.c.indexes).join_from(
    _GIVEN, records, and_(records.c.path == _part(0), records.c.partition == _part(1))
)
_BETWEEN = (
    select(records.c.version)
    .join_from(_GIVEN, records, and_(records.c.path.between(_part(0), _part(1)), records.c.partition == _part(2)))
    .limit(1)
)
_COPY = producer_copies.c
_OTHER = producer_copies.alias("other")
_NEWEST = select(_GIVEN.c.key, _COPY.last, _COPY.sequences_through).join_from(
    _GIVEN,
    producer_copies,
    and_(
        _COPY.managed_id == _part(0),
        _COPY.producer == _part(1),
        _COPY.last
        == select(func.max(_OTHER.c.last))
        .where(_OTHER.c.managed_id == _part(0), _OTHER.c.producer == _part(1))
        .correlate(_GIVEN)
        .scalar_subquery(),
    ),
)

RecordId = tuple[str, str]
"""The path and the partition of a record."""

Head = tuple[int | None, str | None]
"""The version of a record, and its index entries in their stored form."""

NO_HEAD: Head = (None, None)

ProducerId = tuple[int, str]
"""The id of a managed ledger, and the name of a producer."""


def record_id(key: Key) -> RecordId:
    """Return what identifies the record of a key."""
    return key.path, partition_of(key)


def heads_of(ids: Iterable[RecordId]) -> Steps[dict[RecordId, Head]]:
    """Return the heads of those of the records that exist."""
    given = tuple(dict.fromkeys(ids))
    if not given:
        return {}
    found = yield from rows(_HEADS, given=_json(given))
    return {given[at]: (version, indexes) for at, version, indexes in found}


def has_records(ranges: Sequence[tuple[str, str, str]]) -> Steps[bool]:
    """Return whether there is a record between two paths, both included, of a partition."""
    return bool((yield from rows(_BETWEEN, given=_json(ranges))))


def newest_copies(ids: Iterable[ProducerId]) -> Steps[dict[ProducerId, tuple[int, int]]]:
    """Return the highest remembered sequence of each producer, -1 if there is none, and its sequences until then."""
    wanted = dict.fromkeys(ids)
    given = tuple(one for one in wanted if "\0" not in one[1])
    newest = dict.fromkeys(given, (-1, 0))
    if given:
        for at, last, through in (yield from rows(_NEWEST, given=_json(given))):
            newest[given[at]] = (last, through)
    for managed_id, producer in wanted:
        if (managed_id, producer) not in newest:
            newest[managed_id, producer] = yield from newest_copy(managed_id, producer)
    return newest


def _json(given: Sequence[tuple[int | str, ...]]) -> str:
    text = msgspec.json.encode(given).decode()
    if "\\u0000" in text:
        # SQLite ends a text of JSON there, and would find another record.
        raise ValueError("a text has a NUL character")
    return text

"""Steps that read records and their index entries, and the stored form of the entries."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from sqlalchemy import bindparam, select, tuple_

from txnframework.errors import CorruptRecord
from txnframework.model import (
    IndexedPage,
    IndexedRecord,
    IndexEntry,
    IndexRange,
    Key,
    KeyRange,
    Record,
    RecordPage,
)
from txnframework.model.records import UNREADABLE
from txnframework_sql.schema import index_entries, records
from txnframework_sql.steps.statements import (
    Row,
    Steps,
    key_of,
    partition_of,
    row,
    rows,
)

AT_RECORD = (records.c.path == bindparam("at_path"), records.c.partition == bindparam("at_partition"))
_GET = select(records.c.value, records.c.version).where(*AT_RECORD)
_FOUND = (records.c.path, records.c.partition, records.c.value, records.c.version)
_SCAN = (
    select(*_FOUND)
    .where(records.c.path >= bindparam("start"), records.c.path < bindparam("stop"))
    .order_by(records.c.path, records.c.partition)
    .limit(bindparam("items"))
)
_SCAN_INDEXED = _SCAN.add_columns(records.c.indexes)
_SCAN_PARTITION = _SCAN.where(records.c.partition == bindparam("in_partition"))
_SAME_PATH = (
    select(*_FOUND)
    .where(records.c.path == bindparam("at_path"), records.c.partition > bindparam("after_partition"))
    .order_by(records.c.partition)
)
_SAME_PATH_INDEXED = _SAME_PATH.add_columns(records.c.indexes)
_SCAN_INDEX = (
    select(*_FOUND, index_entries.c.key)
    .select_from(
        index_entries.join(
            records,
            (records.c.path == index_entries.c.path) & (records.c.partition == index_entries.c.partition),
        )
    )
    .where(
        index_entries.c.index_name == bindparam("index"),
        index_entries.c.key >= bindparam("start"),
        index_entries.c.key < bindparam("stop"),
    )
    .order_by(index_entries.c.key, index_entries.c.path, index_entries.c.partition)
    .limit(bindparam("items"))
)
_SCAN_INDEX_AFTER = _SCAN_INDEX.where(
    tuple_(index_entries.c.key, index_entries.c.path, index_entries.c.partition)
    > tuple_(bindparam("start"), bindparam("after_path"), bindparam("after_partition"))
)


def get_record(key: Key) -> Steps[Record | None]:
    """Return a record, or None."""
    found = yield from row(_GET, at_path=key.path, at_partition=partition_of(key))
    return None if found is None else Record(key, found[0], found[1])


def scan_records(keys: KeyRange, items_max: int) -> Steps[RecordPage]:
    """Return a page of a key range."""
    range_ = {"start": keys.start, "stop": keys.stop, "items": items_max + 1}
    if keys.partition is None:
        found = yield from rows(_SCAN, **range_)
    else:
        found = yield from rows(_SCAN_PARTITION, in_partition=keys.partition, **range_)
    if len(found) <= items_max:
        return whole_page(found)
    page = found[:items_max]
    path, partition = page[-1][:2]
    if keys.partition is None:
        # One path in two partitions is one key of a range, so a page can end only between two paths.
        page += yield from rows(_SAME_PATH, at_path=path, after_partition=partition)
    # The first text after a path is the path with the lowest character appended.
    return RecordPage(tuple(map(_record, page)), KeyRange(f"{path}\0", keys.stop, keys.partition))


def scan_indexed(keys: KeyRange, items_max: int) -> Steps[IndexedPage]:
    """Return a page of a key range with the index entries of its records."""
    found = yield from rows(_SCAN_INDEXED, start=keys.start, stop=keys.stop, items=items_max + 1)
    resume = None
    if len(found) > items_max:
        path, partition = found[items_max - 1][:2]
        found = found[:items_max] + (yield from rows(_SAME_PATH_INDEXED, at_path=path, after_partition=partition))
        # No path has a control character, and PostgreSQL has no NUL.
        resume = KeyRange(f"{path}\1", keys.stop, keys.partition)
    read = ((_record(one), one[4]) for one in found)
    indexed = (IndexedRecord(record, tuple(sorted(decode_indexes(record.key, text)))) for record, text in read)
    return IndexedPage(tuple(one for one in indexed if keys.partition in (None, partition_of(one.record.key))), resume)


def whole_page(found: Iterable[Row]) -> RecordPage:
    """Return the last page of a range, which contains these records."""
    return RecordPage(tuple(map(_record, found)))


def scan_index_entries(entries: IndexRange, items_max: int) -> Steps[RecordPage]:
    """Return a page of an index range."""
    range_ = {"index": entries.index, "start": entries.start, "stop": entries.stop, "items": items_max + 1}
    if entries.after is None:
        found = yield from rows(_SCAN_INDEX, **range_)
    else:
        after = {"after_path": entries.after.path, "after_partition": partition_of(entries.after)}
        found = yield from rows(_SCAN_INDEX_AFTER, **range_, **after)
    page = tuple(map(_record, found[:items_max]))
    if len(found) <= items_max:
        return RecordPage(page)
    return RecordPage(page, IndexRange(entries.index, found[items_max - 1][4], entries.stop, page[-1].key))


def encode_indexes(entries: frozenset[IndexEntry]) -> str | None:
    """Return index entries in the stored form of a record."""
    if not entries:
        return None
    return msgspec.json.encode([(entry.index, entry.key.hex()) for entry in sorted(entries)]).decode()


def decode_indexes(key: Key, text: str | None) -> frozenset[IndexEntry]:
    """Return the index entries stored in a record."""
    if text is None:
        return frozenset()
    try:
        pairs = msgspec.json.decode(text, type=list[tuple[str, str]])
        return frozenset(IndexEntry(name, bytes.fromhex(index_key)) for name, index_key in pairs)
    except UNREADABLE as error:
        raise CorruptRecord(key.path, "indexes", str(error)) from error


def _record(row: Row) -> Record:
    path, partition, value, version = row[:4]
    return Record(key_of(path, partition), value, version)

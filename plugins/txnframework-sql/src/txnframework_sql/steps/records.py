"""Steps on records and their index entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Executable, bindparam, delete, insert, select, tuple_, update

from txnframework.errors import CorruptRecord, VersionMismatch
from txnframework.model import (
    Batch,
    Check,
    Delete,
    Expect,
    Expected,
    IndexedPage,
    IndexedRecord,
    IndexEntry,
    IndexRange,
    Key,
    KeyRange,
    Put,
    PutSequential,
    Record,
    RecordPage,
)
from txnframework.model.records import UNREADABLE
from txnframework_sql.schema import counters, index_entries, records
from txnframework_sql.steps.statements import (
    RecordChange,
    Row,
    Steps,
    changed,
    new_number,
    new_numbers,
    partition_of,
    row,
    rows,
    write,
    write_many,
)

_AT = (records.c.path == bindparam("at_path"), records.c.partition == bindparam("at_partition"))
_GET = select(records.c.value, records.c.version).where(*_AT)
# Locked, because the write is decided by it.
_HEAD = select(records.c.version, records.c.indexes).where(*_AT).with_for_update()
# Locked against changes, but not against other checks.
_CHECKED = select(records.c.version).where(*_AT).with_for_update(read=True)
_HEADS = (
    select(records.c.path, records.c.version, records.c.indexes)
    .where(
        records.c.path >= bindparam("first"),
        records.c.path <= bindparam("last"),
        records.c.partition == bindparam("in_partition"),
    )
    .order_by(records.c.path)
    .limit(bindparam("items"))
    .with_for_update()
)
_INSERT = insert(records).values(
    {name: bindparam(name) for name in ("path", "partition", "version", "indexes", "value")}
)
_UPDATE = (
    update(records)
    .where(*_AT)
    .values(version=bindparam("version"), indexes=bindparam("indexes"), value=bindparam("value"))
)
DELETE = delete(records).where(*_AT)

_ENTRY: dict[str, Any] = {name: bindparam(name) for name in ("index_name", "key", "path", "partition")}
INSERT_ENTRY = insert(index_entries).values(_ENTRY)
DELETE_ENTRY = delete(index_entries).where(*(index_entries.c[name] == value for name, value in _ENTRY.items()))

_NEXT_NUMBER = (
    update(counters)
    .where(counters.c.name == bindparam("counter"))
    .values(value=counters.c.value + 1)
    .returning(counters.c.value)
)

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


_Head = tuple[int | None, frozenset[IndexEntry]]
"""The version of a record and its index entries; without a record, None and none."""

_NO_HEAD: _Head = (None, frozenset())
# Up to this number, the heads of records are read one by one.
_HEADS_ALONE_MAX = 3


# -- reading ------------------------------------------------------------------------------------------


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


# -- writing ------------------------------------------------------------------------------------------


def apply_batch(batch: Batch) -> Steps[tuple[Record, ...]]:
    """Apply every step of a batch; raise VersionMismatch before the first change."""
    heads: dict[Key, _Head] = {}
    for step in (*batch.checks, *batch.puts):
        if not isinstance(step, PutSequential):
            heads[step.key] = version, _ = yield from _head(step.key)
            require_version(step.key, step.expected, version)
    by_partition: dict[str, list[Key]] = {}
    for deleted in batch.deletes:
        by_partition.setdefault(partition_of(deleted.key), []).append(deleted.key)
    for keys in by_partition.values():
        heads |= yield from _heads(keys)
    for deleted in batch.deletes:
        require_version(deleted.key, deleted.expected, heads[deleted.key][0])
    written = yield from _put_next_together(batch.puts)
    for put in () if written else batch.puts:
        steps = put_next(put) if isinstance(put, PutSequential) else _write(put, *heads[put.key])
        written.append((yield from steps))
    yield from _remove({deleted.key: heads[deleted.key] for deleted in batch.deletes})
    return tuple(written)


def put_record(put: Put) -> Steps[Record]:
    """Write a record with its index entries; raise VersionMismatch before any change."""
    version, indexes = yield from _head(put.key)
    require_version(put.key, put.expected, version)
    return (yield from _write(put, version, indexes))


def delete_record(step: Delete) -> Steps[None]:
    """Delete a record with its index entries; raise VersionMismatch before any change."""
    version, indexes = yield from _head(step.key)
    require_version(step.key, step.expected, version)
    yield from _remove({step.key: (version, indexes)})


def next_number(counter: str) -> Steps[int]:
    """Return a number that the counter never gave before; the next caller waits for the end of this transaction."""
    found = yield from row(_NEXT_NUMBER, counter=counter)
    assert found is not None, "made with the schema"
    return int(found[0])


def check_batch(batch: Batch) -> None:
    """Raise ValueError for a batch that names two partitions without saying so, or one key twice."""
    steps: list[Check | Put | Delete] = []
    partitions: set[str] = set()
    for step in (*batch.checks, *batch.puts, *batch.deletes):
        if isinstance(step, PutSequential):
            partitions.add(partition_of(step.prefix))
        else:
            steps.append(step)
            partitions.add(partition_of(step.key))
    if len(partitions) > 1 and not batch.across_partitions:
        raise ValueError(f"a batch must have one partition, not {sorted(partitions)}")
    if len({(step.key.path, partition_of(step.key)) for step in steps}) < len(steps):
        raise ValueError("a batch may have only one step for each key")


def _head(key: Key) -> Steps[_Head]:
    """Return the version and the index entries of a record."""
    found = yield from row(_HEAD, at_path=key.path, at_partition=partition_of(key))
    return _NO_HEAD if found is None else (found[0], decode_indexes(key, found[1]))


def _heads(keys: Sequence[Key]) -> Steps[dict[Key, _Head]]:
    """Return the heads of records of one partition, by one statement if they lie close together."""
    heads: dict[Key, _Head] = {}
    left = keys
    if len(keys) > _HEADS_ALONE_MAX:
        paths, items_max = sorted(key.path for key in keys), 2 * len(keys)
        between = {"first": paths[0], "last": paths[-1], "in_partition": partition_of(keys[0])}
        found = {path: head for path, *head in (yield from rows(_HEADS, **between, items=items_max))}
        heads = {
            key: (found[key.path][0], decode_indexes(key, found[key.path][1])) for key in keys if key.path in found
        }
        # A whole page shows which records are absent; a full one only those that are present.
        left = [key for key in keys if key not in heads]
        if len(found) < items_max:
            return heads | dict.fromkeys(left, _NO_HEAD)
    for key in left:
        heads[key] = yield from _head(key)
    return heads


def locked_version(key: Key) -> Steps[int | None]:
    """Return the version of a record, or None; an existing one is not changed until the transaction ends."""
    found = yield from row(_CHECKED, at_path=key.path, at_partition=partition_of(key))
    return None if found is None else int(found[0])


def require_version(key: Key, expected: Expected, actual: int | None) -> None:
    """Raise VersionMismatch unless the version is as expected."""
    if expected is Expect.ANY or (expected is Expect.ABSENT and actual is None):
        return
    if expected is Expect.ABSENT or actual != expected:
        raise VersionMismatch(key, actual)


def _write(put: Put, version: int | None, before: frozenset[IndexEntry]) -> Steps[Record]:
    # All records share one counter of versions: no version returns when a record is created again.
    number = yield from new_number()
    return (yield from _store(put, number, version is None, before))


def put_next(put: PutSequential) -> Steps[Record]:
    """Write under the next number; all prefixes share one counter, so no counter is kept for each."""
    partition = partition_of(put.prefix)
    while True:
        number = yield from new_number()
        key = Key(f"{put.prefix.path}/{number:020d}", partition)
        if (yield from _head(key))[0] is None:
            return (yield from _store(Put(key, put.value, Expect.ABSENT, put.indexes), number, True, frozenset()))


def _put_next_together(puts: Sequence[Put | PutSequential]) -> Steps[list[Record]]:
    """Write several records under the next numbers by few statements; for other puts, write nothing, return nothing."""
    sequential = [put for put in puts if isinstance(put, PutSequential)]
    return (yield from put_all_next(sequential)) if 2 <= len(sequential) == len(puts) else []


def _has_records(ranges: Sequence[tuple[str, str, str]]) -> Steps[bool]:
    for first, last, partition in ranges:
        if (yield from rows(_HEADS, first=first, last=last, in_partition=partition, items=1)):
            return True
    return False


def put_all_next(
    puts: Sequence[PutSequential],
    has_records: Callable[[Sequence[tuple[str, str, str]]], Steps[bool]] = _has_records,
) -> Steps[list[Record]]:
    """
    Write records under the next numbers of their prefixes, by few statements; the prefixes need not be new.

    ``has_records`` returns whether there is a record in a range: its first and last path, and its partition.
    """
    if not puts:
        return []
    numbers = yield from new_numbers(len(puts))
    keys = [
        Key(f"{put.prefix.path}/{number:020d}", partition_of(put.prefix))
        for put, number in zip(puts, numbers, strict=True)
    ]
    if (yield from has_records([(first.path, last.path, first.partition) for first, last in _outer_keys(keys)])):
        # A number is in use under a prefix, such as by a record that was written with its whole key.
        return (yield from _put_each_next(puts))
    indexes = [frozenset(put.indexes) for put in puts]
    written = [Record(key, bytes(put.value), number) for key, put, number in zip(keys, puts, numbers, strict=True)]
    yield from write_many(
        _INSERT,
        [
            {
                "path": record.key.path,
                "partition": record.key.partition,
                "version": record.version,
                "indexes": encode_indexes(entries),
                "value": record.value,
            }
            for record, entries in zip(written, indexes, strict=True)
        ],
    )
    yield from _reindex_all(INSERT_ENTRY, dict(zip(keys, indexes, strict=True)))
    return written


def _put_each_next(puts: Sequence[PutSequential]) -> Steps[list[Record]]:
    records: list[Record] = []
    for put in puts:
        records.append((yield from put_next(put)))
    return records


def _outer_keys(keys: Sequence[Key]) -> Iterable[tuple[Key, Key]]:
    """Return the first and the last key of each partition; the keys ascend in each."""
    outer: dict[tuple[str, str], tuple[Key, Key]] = {}
    for key in keys:
        prefix = key.path[:-21], key.partition
        outer[prefix] = (outer[prefix][0] if prefix in outer else key, key)
    return outer.values()


def _store(put: Put, number: int, is_new: bool, before: frozenset[IndexEntry]) -> Steps[Record]:
    path, partition = put.key.path, partition_of(put.key)
    value, after = bytes(put.value), frozenset(put.indexes)
    columns = {"version": number, "indexes": encode_indexes(after), "value": value}
    if is_new:
        yield from write(_INSERT, path=path, partition=partition, **columns)
    else:
        yield from write(_UPDATE, at_path=path, at_partition=partition, **columns)
    yield from _reindex(put.key, before, after)
    return Record(put.key, value, number)


def _remove(heads: Mapping[Key, _Head]) -> Steps[None]:
    """Delete those of the records that exist."""
    indexes = {key: before for key, (version, before) in heads.items() if version is not None}
    yield from write_many(DELETE, [{"at_path": key.path, "at_partition": partition_of(key)} for key in indexes])
    yield from _reindex_all(DELETE_ENTRY, indexes)


def _reindex_all(statement: Executable, indexes: Mapping[Key, frozenset[IndexEntry]]) -> Steps[None]:
    """Add or delete all index entries of records that are new or deleted, in the same transaction."""
    yield from write_many(
        statement,
        [
            {"index_name": entry.index, "key": entry.key, "path": key.path, "partition": partition_of(key)}
            for key, entries in indexes.items()
            for entry in entries
        ],
    )
    for key, entries in indexes.items():
        yield from changed(RecordChange(key.path, partition_of(key), entries))


def _reindex(key: Key, before: frozenset[IndexEntry], after: frozenset[IndexEntry]) -> Steps[None]:
    """Update the index entries to match the record, in the same transaction."""
    path, partition = key.path, partition_of(key)
    for statement, concerned in ((DELETE_ENTRY, before - after), (INSERT_ENTRY, after - before)):
        for entry in concerned:
            yield from write(statement, index_name=entry.index, key=entry.key, path=path, partition=partition)
    yield from changed(RecordChange(path, partition, before | after))


def _record(row: Row) -> Record:
    path, partition, value, version = row[:4]
    return Record(Key(path, "" if partition == path else partition), value, version)


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

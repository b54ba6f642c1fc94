"""Steps that write records with their index entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Executable, bindparam, delete, insert, select, update

from txnframework.errors import VersionMismatch
from txnframework.model import (
    Delete,
    Expect,
    Expected,
    IndexEntry,
    Key,
    Put,
    PutSequential,
    Record,
    Step,
)
from txnframework_sql.schema import counters, index_entries, records
from txnframework_sql.steps.records import AT_RECORD, decode_indexes, encode_indexes
from txnframework_sql.steps.statements import (
    RecordChange,
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

# Locked, because the write is decided by it.
_HEAD = select(records.c.version, records.c.indexes).where(*AT_RECORD).with_for_update()
# Locked against changes, but not against other checks.
_CHECKED = select(records.c.version).where(*AT_RECORD).with_for_update(read=True)
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
    .where(*AT_RECORD)
    .values(version=bindparam("version"), indexes=bindparam("indexes"), value=bindparam("value"))
)
DELETE = delete(records).where(*AT_RECORD)

_ENTRY: dict[str, Any] = {name: bindparam(name) for name in ("index_name", "key", "path", "partition")}
INSERT_ENTRY = insert(index_entries).values(_ENTRY)
DELETE_ENTRY = delete(index_entries).where(*(index_entries.c[name] == value for name, value in _ENTRY.items()))

_NEXT_NUMBER = (
    update(counters)
    .where(counters.c.name == bindparam("counter"))
    .values(value=counters.c.value + 1)
    .returning(counters.c.value)
)


_Head = tuple[int | None, frozenset[IndexEntry]]
"""The version of a record and its index entries; without a record, None and none."""

_NO_HEAD: _Head = (None, frozenset())
# Up to this number, the heads of records are read one by one.
_HEADS_ALONE_MAX = 3


def apply_alone(step: Step) -> Steps[tuple[Record, ...]]:
    """Apply every part of a step of records; raise VersionMismatch before the first change."""
    heads: dict[Key, _Head] = {}
    for part in (*step.checks, *step.puts):
        if not isinstance(part, PutSequential):
            heads[part.key] = version, _ = yield from _head(part.key)
            require_version(part.key, part.expected, version)
    by_partition: dict[str, list[Key]] = {}
    for deleted in step.deletes:
        by_partition.setdefault(partition_of(deleted.key), []).append(deleted.key)
    for keys in by_partition.values():
        heads |= yield from _heads(keys)
    for deleted in step.deletes:
        require_version(deleted.key, deleted.expected, heads[deleted.key][0])
    written = yield from _put_next_together(step.puts)
    for put in () if written else step.puts:
        parts = put_next(put) if isinstance(put, PutSequential) else _write(put, *heads[put.key])
        written.append((yield from parts))
    yield from _remove({deleted.key: heads[deleted.key] for deleted in step.deletes})
    return tuple(written)


def put_record(put: Put) -> Steps[Record]:
    """Write a record with its index entries; raise VersionMismatch before any change."""
    version, indexes = yield from _head(put.key)
    require_version(put.key, put.expected, version)
    return (yield from _write(put, version, indexes))


def delete_record(part: Delete) -> Steps[None]:
    """Delete a record with its index entries; raise VersionMismatch before any change."""
    version, indexes = yield from _head(part.key)
    require_version(part.key, part.expected, version)
    yield from _remove({part.key: (version, indexes)})


def next_number(counter: str) -> Steps[int]:
    """Return a number that the counter never gave before; the next caller waits for the end of this transaction."""
    found = yield from row(_NEXT_NUMBER, counter=counter)
    assert found is not None, "made with the schema"
    return int(found[0])


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
    yield from write_many(statement, index_rows(indexes))
    for key, entries in indexes.items():
        yield from changed(RecordChange(key.path, partition_of(key), entries))


def index_rows(indexes: Mapping[Key, frozenset[IndexEntry]]) -> list[dict[str, object]]:
    """Return the index entries of records as the parameters of INSERT_ENTRY and DELETE_ENTRY."""
    return [
        {"index_name": entry.index, "key": entry.key, "path": key.path, "partition": partition_of(key)}
        for key, entries in indexes.items()
        for entry in entries
    ]


def _reindex(key: Key, before: frozenset[IndexEntry], after: frozenset[IndexEntry]) -> Steps[None]:
    """Update the index entries to match the record, in the same transaction."""
    path, partition = key.path, partition_of(key)
    for statement, concerned in ((DELETE_ENTRY, before - after), (INSERT_ENTRY, after - before)):
        for entry in concerned:
            yield from write(statement, index_name=entry.index, key=entry.key, path=path, partition=partition)
    yield from changed(RecordChange(path, partition, before | after))

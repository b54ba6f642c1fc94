"""Steps that apply any number of batches to records with few statements, where writers are serialized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import bindparam
from sqlalchemy.dialects.sqlite import insert

from txnframework.errors import VersionMismatch
from txnframework.model import Delete, IndexEntry, Put, PutSequential, Record, Step
from txnframework_sql.schema import records
from txnframework_sql.steps.record_writes import (
    DELETE,
    DELETE_ENTRY,
    INSERT_ENTRY,
    apply_batch,
    index_rows,
    put_all_next,
    require_version,
)
from txnframework_sql.steps.records import decode_indexes, encode_indexes
from txnframework_sql.steps.shared_reads import NO_HEAD, Head, RecordId, has_records, heads_of, record_id
from txnframework_sql.steps.statements import RecordChange, Steps, changed, new_numbers, partition_of, write_many

_STORE = insert(records).values({column.name: bindparam(column.name) for column in records.c})
_STORE = _STORE.on_conflict_do_update(
    index_elements=[records.c.path, records.c.partition],
    set_={name: _STORE.excluded[name] for name in ("version", "indexes", "value")},
)

Written = tuple[Record, ...]


def apply_all(steps: Sequence[Step]) -> Steps[list[Written | Exception]]:
    """
    Apply each batch by itself, one after the other; return its records, or the error that refuses it.

    All of them are decided by one look at the records, and written together. A batch that follows another one at the
    same record is decided after that one is written.
    """
    if len(steps) == 1:
        return [(yield from apply_batch(steps[0]))]
    answers: list[Written | Exception] = []
    group: list[Step] = []
    touched: set[RecordId] = set()
    for step in steps:
        ids = {record_id(part.key) for part in step.keyed()}
        if not touched.isdisjoint(ids):
            answers += yield from _apply_apart(group)
            group, touched = [], set()
        group.append(step)
        touched |= ids
    answers += yield from _apply_apart(group)
    return answers


def _apply_apart(steps: Sequence[Step]) -> Steps[list[Written | Exception]]:
    """Apply batches that have no record in common."""
    heads = yield from heads_of(record_id(part.key) for step in steps for part in step.keyed())
    refusals = [refusal_of(step, heads) for step in steps]
    accepted = [step for step, refusal in zip(steps, refusals, strict=True) if refusal is None]
    written = iter((yield from write_all(accepted, heads)))
    return [next(written) if refusal is None else refusal for refusal in refusals]


def refusal_of(step: Step, heads: Mapping[RecordId, Head]) -> VersionMismatch | None:
    """Return why a batch is refused, or None."""
    try:
        for part in step.keyed():
            require_version(part.key, part.expected, heads.get(record_id(part.key), NO_HEAD)[0])
    except VersionMismatch as error:
        return error
    return None


def write_all(steps: Sequence[Step], heads: Mapping[RecordId, Head]) -> Steps[list[Written]]:
    """Write accepted batches; return the records of each, in the order of its puts."""
    puts = [put for step in steps for put in step.puts if isinstance(put, Put)]
    deletes = [deleted for step in steps for deleted in step.deletes if record_id(deleted.key) in heads]
    changing: tuple[Put | Delete, ...] = (*puts, *deletes)
    before = {part.key: decode_indexes(part.key, heads.get(record_id(part.key), NO_HEAD)[1]) for part in changing}
    after = {put.key: frozenset(put.indexes) for put in puts}
    numbers = (yield from new_numbers(len(puts))) if puts else ()
    stored = [Record(put.key, bytes(put.value), number) for put, number in zip(puts, numbers, strict=True)]
    yield from write_many(
        _STORE,
        [
            {
                "path": record.key.path,
                "partition": partition_of(record.key),
                "version": record.version,
                "indexes": encode_indexes(after[record.key]),
                "value": record.value,
            }
            for record in stored
        ],
    )
    yield from write_many(
        DELETE, [{"at_path": part.key.path, "at_partition": partition_of(part.key)} for part in deletes]
    )
    none: frozenset[IndexEntry] = frozenset()
    yield from write_many(DELETE_ENTRY, index_rows({key: old - after.get(key, none) for key, old in before.items()}))
    yield from write_many(INSERT_ENTRY, index_rows({key: new - before[key] for key, new in after.items()}))
    for key, old in before.items():
        yield from changed(RecordChange(key.path, partition_of(key), old | after.get(key, none)))
    # After the others, because a record that was written with its whole key may have the next number.
    sequential = [put for step in steps for put in step.puts if isinstance(put, PutSequential)]
    numbered, named = iter((yield from put_all_next(sequential, has_records))), iter(stored)
    return [tuple(next(named if isinstance(put, Put) else numbered) for put in step.puts) for step in steps]

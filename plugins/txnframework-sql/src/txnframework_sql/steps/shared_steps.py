"""
Statements that make any number of steps, without an intent, where writers are serialized.

One look at all records and ledgers decides many steps, and one execution of each statement writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import bindparam
from sqlalchemy.dialects.sqlite import insert

from txnframework.errors import LedgerNotFound, LedgerSealed, VersionMismatch
from txnframework.model import (
    Appended,
    Applied,
    Delete,
    IndexEntry,
    IndexRange,
    Put,
    PutSequential,
    Record,
    Step,
)
from txnframework_sql._options import LedgerOptions
from txnframework_sql.schema import records
from txnframework_sql.steps.appends import append
from txnframework_sql.steps.ledger_references import ledger_of
from txnframework_sql.steps.ledgers import ends_of
from txnframework_sql.steps.record_writes import (
    DELETE,
    DELETE_ENTRY,
    INSERT_ENTRY,
    apply_alone,
    index_rows,
    put_all_next,
    require_version,
)
from txnframework_sql.steps.records import decode_indexes, encode_indexes, scan_index_entries
from txnframework_sql.steps.shared_appends import GrowingEnd, Growth
from txnframework_sql.steps.shared_reads import NO_HEAD, Head, RecordId, has_records, heads_of, record_id
from txnframework_sql.steps.statements import RecordChange, Steps, changed, new_numbers, partition_of, write_many

_STORE = insert(records).values({column.name: bindparam(column.name) for column in records.c})
_STORE = _STORE.on_conflict_do_update(
    index_elements=[records.c.path, records.c.partition],
    set_={name: _STORE.excluded[name] for name in ("version", "indexes", "value")},
)

Answer = Applied | Exception
Refusal = LedgerNotFound | LedgerSealed | VersionMismatch


class StepCall(NamedTuple):
    """One step, without an intent."""

    step: Step
    now_ms: int


def apply_steps(calls: Sequence[StepCall], options: LedgerOptions) -> Steps[list[Answer]]:
    """
    Perform each call by itself, one after the other; return its result, or the error that refuses it.

    A call that follows another one at the same record, or at an index range that the other one writes to, is decided
    after that one is written.
    """
    if len(calls) == 1 and calls[0].step.is_of_records:
        try:
            return [Applied((yield from apply_alone(calls[0].step)))]
        except VersionMismatch as error:
            return [error]
    answers: list[Answer] = []
    group: list[StepCall] = []
    touched: set[RecordId] = set()
    indexed: list[IndexEntry] = []
    for call in calls:
        ids = {record_id(part.key) for part in call.step.keyed()}
        if not touched.isdisjoint(ids) or (call.step.vacant and holds_one(call.step.vacant, indexed)):
            answers += yield from _apply_apart(group, options)
            group, touched, indexed = [], set(), []
        group.append(call)
        touched |= ids
        indexed += [entry for put in call.step.puts for entry in put.indexes]
    answers += yield from _apply_apart(group, options)
    return answers


def holds_one(ranges: Iterable[IndexRange], entries: Sequence[IndexEntry]) -> bool:
    """Return whether one of the entries is in one of the ranges."""
    return any(one.index == entry.index and one.start <= entry.key < one.stop for one in ranges for entry in entries)


def _apply_apart(calls: Sequence[StepCall], options: LedgerOptions) -> Steps[list[Answer]]:
    """Perform calls that have no record in common; a ledger may be in several."""
    heads = yield from heads_of(record_id(part.key) for call in calls for part in call.step.keyed())
    ends = _Ends()
    yield from ends.look(call.step for call in calls)
    appended: list[tuple[tuple[Appended, ...], ...] | Refusal] = []
    for call in calls:
        # Every condition of a call precedes its first change.
        refusal: Refusal | None = _refusal(call.step, heads)
        if refusal is None and call.step.vacant:
            refusal = yield from _taken(call.step.vacant)
        refusal = refusal or ends.refusal(call.step)
        if refusal is None and call.step.appends:
            appended.append((yield from ends.append(call, options)))
        else:
            appended.append(refusal or ())
    yield from ends.growth.write()
    accepted = [call.step for call, done in zip(calls, appended, strict=True) if not isinstance(done, Exception)]
    written = iter((yield from _write_all(accepted, heads)))
    return [done if isinstance(done, Exception) else Applied(next(written), done) for done in appended]


def _refusal(step: Step, heads: Mapping[RecordId, Head]) -> VersionMismatch | None:
    """Return why the records refuse a step, or None."""
    try:
        for part in step.keyed():
            require_version(part.key, part.expected, heads.get(record_id(part.key), NO_HEAD)[0])
    except VersionMismatch as error:
        return error
    return None


def _taken(ranges: Iterable[IndexRange]) -> Steps[VersionMismatch | None]:
    """Return the refusal by a record that has an entry in one of the ranges, or None."""
    for entries in ranges:
        for record in (yield from scan_index_entries(entries, 1)).records:
            return VersionMismatch(record.key, record.version)
    return None


def _write_all(steps: Sequence[Step], heads: Mapping[RecordId, Head]) -> Steps[list[tuple[Record, ...]]]:
    """Write accepted steps; return the records of each, in the order of its puts."""
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


class _Ends:
    """The ends of ledgers, with what was decided to be added to them."""

    def __init__(self) -> None:
        self.growth = Growth()
        self._ends: dict[int, GrowingEnd] = {}

    def look(self, steps: Iterable[Step]) -> Steps[None]:
        """Read the ends of the ledgers of steps."""
        ledgers = [ledger_of(one.ledger) for step in steps for one in step.appends]
        found = (yield from ends_of(ledgers)) if ledgers else {}
        for managed in ledgers:
            if managed.id in found:
                self._ends[managed.id] = GrowingEnd(managed, found[managed.id], {})

    def refusal(self, step: Step) -> Refusal | None:
        """Return why a ledger refuses the step, or None."""
        for one in step.appends:
            managed = ledger_of(one.ledger)
            end = self._ends.get(managed.id)
            if end is None:
                return LedgerNotFound(managed.name)
            if end.tail.sealed:
                return LedgerSealed(managed.name)
        return None

    def append(self, call: StepCall, options: LedgerOptions) -> Steps[tuple[tuple[Appended, ...], ...]]:
        """Append the entries of a call that no ledger refuses."""
        appended: dict[int, tuple[Appended, ...]] = {}
        apart = []
        for one in call.step.appends:
            managed = ledger_of(one.ledger)
            end = self._ends[managed.id]
            if end.takes(one.entries, options):
                appended[managed.id] = end.grow(one.entries, call.now_ms, self.growth, options)
            else:
                apart.append(one)
        if apart:
            # Such as one that fills its ledger: it changes more than it adds.
            yield from self.growth.write()
            for one in apart:
                managed = ledger_of(one.ledger)
                appended[managed.id] = yield from append(managed, one.entries, None, call.now_ms, options)
            yield from self.look([Step(appends=tuple(apart))])
        return tuple([appended[ledger_of(one.ledger).id] for one in call.step.appends])

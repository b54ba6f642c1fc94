"""
The statements that write records, and the decoding of their results.

``BatchGroup`` sends batches as the columns of one call of ``functions/apply_batches.sql``. ``SinglePuts`` sends a
single put as one plain statement. It does the same as the function at a lower cost: PL/pgSQL's setup in every
transaction costs more than a single put. These statements decide only success. If a statement changes nothing, because
the record is not as expected, the function is called, which reads again. The function also performs every put that
these statements do not support.

Each of these statements is correct in one snapshot, although it may wait for the record. Versions are never reused, so
a record with the expected version after the wait also has its earlier index entries.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from txnframework.errors import InvalidInput, TxnFrameworkError, VersionMismatch
from txnframework.model import Check, Delete, Expect, Expected, IndexEntry, Key, Put, PutSequential, Record
from txnframework_sql.postgresql._connection import SCHEMA
from txnframework_sql.schema import NUMBERS
from txnframework_sql.steps.records import decode_indexes, encode_indexes
from txnframework_sql.steps.statements import RecordChange, partition_of

Part = Check | Put | PutSequential | Delete
Parts = tuple[Part, ...]
"""The parts of one step that are of records, in the order of the checks; the puts are in the order of the result."""

# How long a statement waits for a lock. Afterwards each of its batches gets a statement of its own, which at first
# waits for a shorter time. So the others do not wait for an application that holds the lock of a record, and neither do
# the statements behind it.
LOCK_WAIT_MS = 250
ATTEMPT_LOCK_WAIT_MS = 20
_CHECK, _PUT, _PUT_SEQUENTIAL, _DELETE = range(4)


Answer = tuple[Record, ...] | TxnFrameworkError
"""The records that the puts of a batch wrote, or the error that refused the batch."""


class BatchGroup:
    """
    Batches that are sent as one statement; each is applied or refused separately.

    :param lock_wait_ms: how long the statement waits for a lock; 0: as long as the connection's setting allows.
    """

    def __init__(self, batches: Sequence[Parts], lock_wait_ms: int = 0) -> None:
        self.batches = batches
        self._lock_wait_ms = lock_wait_ms
        # Every statement locks records in the order of their keys, so that two statements never deadlock. If no batch
        # has more than one key, the batches themselves are sorted. Batches of one record keep the order in which they
        # arrived.
        self._is_simple = all(_keys(batch) <= 1 for batch in batches)
        self._order = sorted(range(len(batches)), key=lambda number: _place(batches[number][0]))
        self._steps: list[tuple[int, Part]] = []
        self._ends: list[int] = []
        for number in self._order:
            self._steps += [(number, step) for step in batches[number]]
            self._ends.append(len(self._steps))

    def columns(self) -> tuple[object, ...]:
        """Return the arguments of the function."""
        return self._ends, *self.step_columns(), *self._locks(), self._lock_wait_ms

    def step_columns(self) -> tuple[list[Any], ...]:
        """Return the columns of the steps."""
        kinds: list[int] = []
        paths: list[str] = []
        partitions: list[str] = []
        expecteds: list[int | None] = []
        lists: list[str | None] = []
        values: list[bytes | None] = []
        for _, step in self._steps:
            kind, key = _kind_and_key(step)
            kinds.append(kind)
            paths.append(key.path)
            partitions.append(partition_of(key))
            expecteds.append(None if isinstance(step, PutSequential) else _number(step.expected))
            if isinstance(step, Put | PutSequential):
                lists.append(encode_indexes(frozenset(step.indexes)))
                values.append(bytes(step.value))
            else:
                lists.append(None)
                values.append(None)
        return kinds, paths, partitions, expecteds, lists, values

    def answers(self, rows: Iterable[Sequence[Any]]) -> tuple[list[Answer], list[RecordChange]]:
        """Return the answer of each batch, the written records or an error, and all changes."""
        refused: dict[int, TxnFrameworkError] = {}
        written: dict[int, list[Record]] = {}
        changes: list[RecordChange] = []
        for place, is_met, version, list_before in rows:
            number, step = self._steps[place - 1]
            _, key = _kind_and_key(step)
            if not is_met:
                refused[number] = VersionMismatch(key, version)
                continue
            before = decode_indexes(key, list_before)
            if isinstance(step, PutSequential):
                key = Key(f"{key.path}/{version:020d}", partition_of(key))
            if isinstance(step, Put | PutSequential):
                written.setdefault(number, []).append(Record(key, bytes(step.value), version))
                before = before.union(step.indexes)
            changes.append(RecordChange(key.path, partition_of(key), before))
        answers: list[Answer] = [
            refused[number] if number in refused else tuple(written.get(number, ()))
            for number in range(len(self.batches))
        ]
        return answers, changes

    def _locks(self) -> tuple[list[str], list[str], list[bool], list[bool]]:
        """Return the records to lock first, in order: paths, partitions, may be written, may be created."""
        wanted: dict[tuple[str, str], tuple[bool, bool]] = {}
        if not self._is_simple:
            for _, step in self._steps:
                if not isinstance(step, PutSequential):
                    place = _place(step)
                    writes, makes = wanted.get(place, (False, False))
                    wanted[place] = writes or not isinstance(step, Check), makes or _may_make(step)
        ordered = sorted(wanted)
        return (
            [path for path, _ in ordered],
            [partition for _, partition in ordered],
            [wanted[place][0] for place in ordered],
            [wanted[place][1] for place in ordered],
        )


def require_storable(batch: Parts, shown_url: str) -> None:
    """Raise InvalidInput for a text that PostgreSQL does not store."""
    for step in batch:
        _, key = _kind_and_key(step)
        names = [entry.index for entry in step.indexes] if isinstance(step, Put | PutSequential) else []
        for text in (key.path, key.partition, *names):
            if "\0" in text:
                raise InvalidInput(f"{shown_url} cannot store text with the character NUL, as in {text!r}; remove it")


def _kind_and_key(step: Part) -> tuple[int, Key]:
    if isinstance(step, Put):
        return _PUT, step.key
    if isinstance(step, PutSequential):
        # Its records are stored in the partition of the prefix.
        return _PUT_SEQUENTIAL, step.prefix
    return (_CHECK if isinstance(step, Check) else _DELETE), step.key


def _may_make(step: Check | Put | Delete) -> bool:
    """Return whether an absent record must be locked: the step creates it, or no other process may create it."""
    return step.expected is Expect.ABSENT or (isinstance(step, Put) and step.expected is Expect.ANY)


def _place(step: Part) -> tuple[str, str]:
    _, key = _kind_and_key(step)
    return key.path, partition_of(key)


def _keys(batch: Parts) -> int:
    return sum(not isinstance(step, PutSequential) for step in batch)


def _number(expected: Expected) -> int:
    if isinstance(expected, Expect):
        return -1 if expected is Expect.ABSENT else -2
    return expected


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

    def __init__(self, lock_wait_ms: int = LOCK_WAIT_MS) -> None:
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


def _columns(entries: _Entries) -> tuple[list[str], list[bytes]]:
    return [entry.index for entry in entries], [entry.key for entry in entries]

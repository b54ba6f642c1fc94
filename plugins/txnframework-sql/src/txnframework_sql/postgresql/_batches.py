"""
Batches as the columns of one call of ``functions/apply_batches.sql``, and the decoding of its result for each batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from txnframework.errors import InvalidInput, TxnFrameworkError, VersionMismatch
from txnframework.model import Check, Delete, Expect, Expected, Key, Put, PutSequential, Record
from txnframework_sql.postgresql._payloads import BYTES_MAX, PAYLOADS_MAX
from txnframework_sql.steps.changes import RecordChange, partition_of
from txnframework_sql.steps.records import decode_indexes, encode_indexes

Step = Check | Put | PutSequential | Delete
Steps = tuple[Step, ...]
"""The steps of one batch, in the order in which they are checked; the order of the puts is also that of the result."""

_CHECK, _PUT, _PUT_SEQUENTIAL, _DELETE = range(4)


Answer = tuple[Record, ...] | TxnFrameworkError
"""The records that the puts of a batch wrote, or the error that refused the batch."""


class BatchGroup:
    """Batches that are sent as one statement; each is applied or refused separately."""

    def __init__(self, batches: Sequence[Steps]) -> None:
        self.batches = batches
        # Every statement locks records in the order of their keys, so that two statements never deadlock. If no batch
        # has more than one key, the batches themselves are sorted. Batches of one record keep the order in which they
        # arrived.
        self._is_simple = all(_keys(batch) <= 1 for batch in batches)
        self._order = sorted(range(len(batches)), key=lambda number: _place(batches[number][0]))
        self._steps: list[tuple[int, Step]] = []
        self._ends: list[int] = []
        for number in self._order:
            self._steps += [(number, step) for step in batches[number]]
            self._ends.append(len(self._steps))

    def columns(self, channel: str) -> tuple[object, ...]:
        """Return the arguments of the function; ``channel`` is the channel on which the changes are notified."""
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
        return (
            *(self._ends, kinds, paths, partitions, expecteds, lists, values),
            *self._locks(),
            *(channel, BYTES_MAX, PAYLOADS_MAX),
        )

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


def require_storable(batch: Steps, shown_url: str) -> None:
    """Raise InvalidInput for a text that PostgreSQL does not store."""
    for step in batch:
        _, key = _kind_and_key(step)
        names = [entry.index for entry in step.indexes] if isinstance(step, Put | PutSequential) else []
        for text in (key.path, key.partition, *names):
            if "\0" in text:
                raise InvalidInput(f"{shown_url} stores no text with the character NUL, as in {text!r}; leave it out")


def _kind_and_key(step: Step) -> tuple[int, Key]:
    if isinstance(step, Put):
        return _PUT, step.key
    if isinstance(step, PutSequential):
        # Its records are stored in the partition of the prefix.
        return _PUT_SEQUENTIAL, step.prefix
    return (_CHECK if isinstance(step, Check) else _DELETE), step.key


def _may_make(step: Check | Put | Delete) -> bool:
    """Return whether an absent record must be locked: the step creates it, or no other process may create it."""
    return step.expected is Expect.ABSENT or (isinstance(step, Put) and step.expected is Expect.ANY)


def _place(step: Step) -> tuple[str, str]:
    _, key = _kind_and_key(step)
    return key.path, partition_of(key)


def _keys(batch: Steps) -> int:
    return sum(not isinstance(step, PutSequential) for step in batch)


def _number(expected: Expected) -> int:
    if isinstance(expected, Expect):
        return -1 if expected is Expect.ABSENT else -2
    return expected

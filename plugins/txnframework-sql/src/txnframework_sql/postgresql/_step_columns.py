"""Steps as the columns of one statement, and the decoding of its results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from txnframework.errors import InvalidInput, VersionMismatch
from txnframework.model import (
    Append,
    Appended,
    Applied,
    Check,
    Delete,
    Expect,
    Expected,
    IndexEntry,
    Key,
    Position,
    Put,
    PutSequential,
    Record,
    Step,
)
from txnframework_sql.schema import PLACE_BITS
from txnframework_sql.steps.ledger_references import ledger_of
from txnframework_sql.steps.records import decode_indexes, encode_indexes
from txnframework_sql.steps.shared_reads import RecordId, record_id
from txnframework_sql.steps.shared_steps import holds_one
from txnframework_sql.steps.statements import Change, LedgerChange, RecordChange, key_of, partition_of

Answer = Applied | Exception

_ENTRY_IDS = (1 << PLACE_BITS) - 1
_KINDS = {Check: 0, Put: 1, Delete: 3}
_NO_ENTRIES: frozenset[IndexEntry] = frozenset()


class GroupableStep(NamedTuple):
    """One step, and what decides which others it may share a statement with."""

    step: Step
    now_ms: int
    held: frozenset[RecordId]
    """The records that no other step of the statement may touch."""
    shared: frozenset[RecordId]
    """The existing records that are only checked."""
    bytes: int

    @classmethod
    def of(cls, step: Step, now_ms: int) -> GroupableStep:
        """Return a valid step without an intent."""
        shared = frozenset(record_id(check.key) for check in step.checks if check.expected is not Expect.ABSENT)
        known = frozenset(record_id(part.key) for part in step.keyed())
        size = sum(len(entry.data) for one in step.appends for entry in one.entries)
        size += sum(len(put.value) for put in step.puts)
        return cls(step, now_ms, known - shared, shared, size)


def steps_together(steps: Iterable[GroupableStep], bytes_max: int) -> int:
    """
    Return how many steps from the front one statement takes, at least one.

    No step touches a record of another one, unless both only check it. None puts an entry into a range that a later one
    requires to be vacant.
    """
    held: set[RecordId] = set()
    shared: set[RecordId] = set()
    entries: list[IndexEntry] = []
    size = taken = 0
    for one in steps:
        size += one.bytes
        if taken and (
            size > bytes_max
            or not held.isdisjoint(one.held)
            or not held.isdisjoint(one.shared)
            or not shared.isdisjoint(one.held)
            or holds_one(one.step.vacant, entries)
        ):
            break
        held |= one.held
        shared |= one.shared
        entries += [entry for put in one.step.puts for entry in put.indexes]
        taken += 1
    return taken


def require_storable(step: Step, shown_url: str) -> None:
    """Raise InvalidInput for a text that PostgreSQL does not store."""
    for part in (*step.checks, *step.puts, *step.deletes):
        key = part.prefix if isinstance(part, PutSequential) else part.key
        indexes = () if isinstance(part, Check | Delete) else part.indexes
        for text in (key.path, key.partition, *(entry.index for entry in indexes)):
            if "\0" in text:
                raise InvalidInput(f"{shown_url} cannot store text with the character NUL, as in {text!r}; remove it")


class StepGroup:
    """Steps that are sent as one statement; see ``functions/apply_steps.sql``."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        # In the order of their keys, in which the records are locked; each with the number of its step.
        self._parts = [
            (part.key.path, partition_of(part.key), number, part)
            for number, step in enumerate(steps)
            for part in step.keyed()
        ]
        self._parts.sort()
        self._sequential = [put for step in steps for put in step.puts if isinstance(put, PutSequential)]
        self._vacant = [(number, one) for number, step in enumerate(steps) for one in step.vacant]
        entries: dict[int, list[Append]] = {}
        for step in steps:
            for one in step.appends:
                entries.setdefault(ledger_of(one.ledger).id, []).extend(one.entries)
        # In the order of their ids, in which the ledgers are locked.
        self._entries = dict(sorted(entries.items())) if len(entries) > 1 else entries

    def columns(self, lock_wait_ms: int, now_ms: int, limits: tuple[int, int]) -> tuple[object, ...]:
        """Return the arguments of the function, behind those of an application; ``limits``: entries, bytes."""
        kinds: list[int] = []
        texts: list[str | None] = []
        contents: list[bytes | None] = []
        for path, partition, _, part in self._parts:
            kinds += (_KINDS[type(part)], _number(part.expected))
            if isinstance(part, Put):
                texts += (path, partition, encode_indexes(frozenset(part.indexes)) if part.indexes else None)
                contents.append(bytes(part.value))
            else:
                texts += (path, partition, None)
                contents.append(None)
        for put in self._sequential:
            texts += (put.prefix.path, partition_of(put.prefix), encode_indexes(frozenset(put.indexes)))
            contents.append(bytes(put.value))
        bounds: list[bytes] = []
        for _, one in self._vacant:
            texts.append(one.index)
            bounds += (one.start, one.stop)
        ledgers: list[int] = []
        datas: list[bytes] = []
        through: list[int] = []
        highest: dict[int, int] = {}
        entries_max, bytes_max = limits
        for managed_id, entries in self._entries.items():
            size = messages = 0
            for entry in entries:
                size += len(entry.data)
                messages += entry.messages
                datas.append(entry.data)
                through.append(messages)
                if entry.branch is not None:
                    txn_id = entry.branch.txn_id
                    highest[txn_id.coordinator] = max(txn_id.number, highest.get(txn_id.coordinator, 0))
            ledgers += (managed_id, len(entries), size, messages)
            # An empty ledger takes any step, and is full then.
            entries_max = max(entries_max, 1 + len(entries))
            bytes_max = max(bytes_max, 1 + size)
        return (
            *(lock_wait_ms, kinds, texts, contents, bounds, now_ms, entries_max, bytes_max, ledgers, datas, through),
            [text for coordinator, number in highest.items() for text in (str(coordinator), f"{number:028x}")],
        )

    def possible_changes(self) -> list[Change]:
        """Return what changes if the steps are made; earlier index entries of their records change, too."""
        written = [part for *_, part in self._parts if not isinstance(part, Check)]
        numbered = [
            RecordChange(f"{put.prefix.path}/", partition_of(put.prefix), frozenset(put.indexes))
            for put in self._sequential
        ]
        return [*self._ledger_changes(), *(change_of(part, None) for part in written), *numbered]

    @property
    def has_appends(self) -> bool:
        """Whether the statement may wait for the locks of ledgers."""
        return bool(self._entries)

    def refusing(self, answer: Iterable[Any]) -> set[int]:
        """Return the ids of the managed ledgers that refused their entries."""
        *_, places = answer
        return {managed_id for managed_id, place in zip(self._entries, places or (), strict=False) if not place}

    def answers(self, answer: Iterable[Any]) -> tuple[list[Answer | None], list[Change]]:
        """Return the answer of each step, None if it must be sent again, and all changes."""
        _, _, refused, versions, befores, taken, places = answer
        if refused or taken or 0 in (places or ()):
            found: list[Answer | None] = [None] * len(self._steps)
            for at in refused or ():
                _, _, number, part = self._parts[at - 1]
                found[number] = found[number] or VersionMismatch(part.key, versions[at - 1])
            for at, path, partition, version in zip(*(iter(taken or ()),) * 4, strict=True):
                found[self._vacant[int(at) - 1][0]] = VersionMismatch(key_of(path, partition), int(version))
            return found, []
        changes = self._ledger_changes()
        written: dict[RecordId, int] = {}
        for at, (path, partition, _, part) in enumerate(self._parts):
            version = versions[at]
            if version is not None and not isinstance(part, Check):
                written[path, partition] = version
                changes.append(change_of(part, befores[at] if befores else None))
        numbers = versions[len(self._parts) :] if self._sequential else ()
        for put, number in zip(self._sequential, numbers, strict=True):
            changes.append(RecordChange(_path(put, number), partition_of(put.prefix), frozenset(put.indexes)))
        nexts = dict(zip(self._entries, places or (), strict=True))
        left = iter(numbers)
        return [_applied(step, written, left, nexts) for step in self._steps], changes

    def _ledger_changes(self) -> list[Change]:
        return [LedgerChange(managed_id) for managed_id in self._entries]


def _applied(step: Step, written: Mapping[RecordId, int], left: Iterator[int], nexts: dict[int, int]) -> Applied:
    """
    Return what a step has written.

    :param left: the numbers of the records whose keys end in them, from those of this step on.
    :param nexts: for each ledger the place of the next entry, which is moved behind those of this step.
    """
    records: list[Record] = []
    for put in step.puts:
        if isinstance(put, Put):
            records.append(Record(put.key, bytes(put.value), written[record_id(put.key)]))
        else:
            number = next(left)
            records.append(Record(Key(_path(put, number), partition_of(put.prefix)), bytes(put.value), number))
    appended: list[tuple[Appended, ...]] = []
    for one in step.appends:
        managed_id, count = ledger_of(one.ledger).id, len(one.entries)
        ledger_id, entry_id = nexts[managed_id] >> PLACE_BITS, nexts[managed_id] & _ENTRY_IDS
        nexts[managed_id] += count
        appended.append(tuple([Appended(Position(ledger_id, number)) for number in range(entry_id, entry_id + count)]))
    return Applied(tuple(records), tuple(appended))


def change_of(part: Put | Delete, list_before: str | None) -> RecordChange:
    """Return the change of a record that was put or deleted, and had these index entries before."""
    before = _NO_ENTRIES if list_before is None else decode_indexes(part.key, list_before)
    after = part.indexes if isinstance(part, Put) else ()
    return RecordChange(part.key.path, partition_of(part.key), before.union(after) if after else before)


def _path(put: PutSequential, number: int) -> str:
    return f"{put.prefix.path}/{number:020d}"


def _number(expected: Expected) -> int:
    if isinstance(expected, int):
        return expected
    return -1 if expected is Expect.ABSENT else -2

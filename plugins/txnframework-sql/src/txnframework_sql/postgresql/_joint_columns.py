"""Joint appends as the columns of one statement, and the decoding of its results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from txnframework.errors import TxnFrameworkError, VersionMismatch
from txnframework.model import Expect, IndexEntry, JointAppend, JointAppended, Position, Put, PutSequential
from txnframework_sql.postgresql._append_columns import AppendCall, LedgerGroup, PendingCall, SharedAppend, ascend
from txnframework_sql.postgresql._connection import Row
from txnframework_sql.postgresql._record_writes import BatchGroup, Step
from txnframework_sql.steps.joint_appends import holds_one, ledger_of
from txnframework_sql.steps.shared_reads import RecordId, record_id
from txnframework_sql.steps.statements import Change, LedgerChange, RecordChange, key_of, partition_of

Answer = JointAppended | Exception


class GroupableCall(NamedTuple):
    """One call of ``append_jointly``, and what decides which others it may share a statement with."""

    request: JointAppend
    now_ms: int
    steps: tuple[Step, ...]
    held: frozenset[RecordId]
    """The records that no other call of the statement may touch."""
    shared: frozenset[RecordId]
    """The existing records that are only checked."""
    bytes: int

    @classmethod
    def of(cls, request: JointAppend, now_ms: int) -> GroupableCall:
        """Return the call of a checked request."""
        batch = request.batch
        shared = frozenset(record_id(check.key) for check in batch.checks if check.expected is not Expect.ABSENT)
        steps = (*batch.checks, *batch.puts, *batch.deletes)
        known = (record_id(step.key) for step in steps if not isinstance(step, PutSequential))
        size = sum(len(entry.data) for one in request.appends for entry in one.entries)
        size += sum(len(put.value) for put in batch.puts)
        return cls(request, now_ms, steps, frozenset(known) - shared, shared, size)

    def changes(self) -> list[Change]:
        """Return what changes if the call is applied; earlier index entries of its records change, too."""
        batch = self.request.batch
        return [
            *(LedgerChange(ledger_of(one.ledger).id) for one in self.request.appends),
            *(
                RecordChange(
                    step.key.path, partition_of(step.key), frozenset(step.indexes if isinstance(step, Put) else ())
                )
                for step in (*batch.puts, *batch.deletes)
                if not isinstance(step, PutSequential)
            ),
        ]


def calls_together(calls: Iterable[GroupableCall], bytes_max: int) -> int:
    """
    Return how many calls from the front one statement takes, at least one.

    No call touches a record of another one, unless both only check it. None puts an entry into a range that a later one
    requires to be vacant, and the sequences of each producer ascend.
    """
    held: set[RecordId] = set()
    shared: set[RecordId] = set()
    highest: dict[int, dict[str, int]] = {}
    entries: list[IndexEntry] = []
    size = taken = 0
    for call in calls:
        size += call.bytes
        if taken and (
            size > bytes_max
            or not held.isdisjoint(call.held)
            or not held.isdisjoint(call.shared)
            or not shared.isdisjoint(call.held)
            or holds_one(call.request.vacant, entries)
        ):
            break
        appends = ((highest.setdefault(ledger_of(one.ledger).id, {}), one.entries) for one in call.request.appends)
        if not all(ascend(entries, before) for before, entries in appends) and taken:
            break
        held |= call.held
        shared |= call.shared
        entries += [entry for put in call.request.batch.puts for entry in put.indexes]
        taken += 1
    return taken


class JointGroup:
    """Calls that are sent as one statement; see ``functions/append_jointly.sql``."""

    def __init__(self, calls: Sequence[GroupableCall]) -> None:
        self._calls = calls
        # The calls that have steps, in the order of their batches.
        self._stepping = [number for number, call in enumerate(calls) if call.steps]
        self._batches = BatchGroup([calls[number].steps for number in self._stepping])
        # The index ranges that must be vacant, each with the number of its call.
        self._vacant = [(number, one) for number, call in enumerate(calls) for one in call.request.vacant]
        self._groups: dict[int, LedgerGroup] = {}
        loop = asyncio.get_running_loop()
        for call in calls:
            for one in call.request.appends:
                managed = ledger_of(one.ledger)
                group = self._groups.setdefault(managed.id, LedgerGroup(managed, []))
                group.pending.append(PendingCall(AppendCall(one.entries, None, call.now_ms), loop.create_future()))
        self._shared = SharedAppend(tuple(self._groups.values()))

    def columns(self, lock_wait_ms: int, limits: Sequence[int]) -> tuple[object, ...]:
        """Return the arguments of the function; ``limits`` begin with entries, bytes."""
        ledgers, (*others, _) = self._shared.columns()
        # An empty ledger takes any call, and is full then.
        entries_max = max(limits[0], 1 + max(ledgers[2], default=0))
        bytes_max = max(limits[1], 1 + max(ledgers[3], default=0))
        return (
            *self._batches.step_columns(),
            self._batches.key_order(),
            lock_wait_ms,
            *([getattr(one, name) for _, one in self._vacant] for name in ("index", "start", "stop")),
            *ledgers[:2],
            self._shared.now_ms,
            *(entries_max, bytes_max, *limits[2:]),
            *ledgers[2:],
            *others,
        )

    def ledger_changes(self) -> list[Change]:
        """Return the changes of the ledgers."""
        return [LedgerChange(managed_id) for managed_id in self._groups]

    def refusing(self, answer: Row) -> set[int]:
        """Return the ids of the managed ledgers that refused their entries."""
        pairs = zip(self._groups, answer["ledger_ids"], strict=False)
        return {managed_id for managed_id, ledger_id in pairs if not ledger_id}

    def answers(self, answer: Row) -> tuple[list[Answer | None], list[Change]]:
        """Return the answer of each call, None if it must be sent again, and all changes."""
        refused, versions, befores, *taken, ledger_ids, entry_ids = answer
        if refused or taken[0] or 0 in ledger_ids:
            rows = ((place, False, versions[place - 1], None) for place in refused)
            errors, _ = self._batches.answers(rows)
            found: list[Answer | None] = [None] * len(self._calls)
            for number, error in zip(self._stepping, errors, strict=True):
                found[number] = error if isinstance(error, TxnFrameworkError) else None
            for place, path, partition, version in zip(*(column or () for column in taken), strict=True):
                found[self._vacant[place - 1][0]] = VersionMismatch(key_of(path, partition), version)
            return found, []
        places = enumerate(zip(versions or (), befores or (), strict=True), 1)
        written, changed = self._batches.answers(
            (place, True, version, before) for place, (version, before) in places if version is not None
        )
        records = dict(zip(self._stepping, written, strict=True))
        nexts = dict(zip(self._groups, zip(ledger_ids, entry_ids, strict=True), strict=True))
        done: list[Answer | None] = []
        for number, call in enumerate(self._calls):
            stored = records.get(number, ())
            assert not isinstance(stored, TxnFrameworkError)
            done.append(JointAppended(tuple(_positions(call, nexts)), stored))
        return done, [*self.ledger_changes(), *changed]


def _positions(call: GroupableCall, nexts: dict[int, tuple[int, int]]) -> Iterator[tuple[Position, ...]]:
    """Yield the positions of the entries of each ledger, and move its next position behind them."""
    for one in call.request.appends:
        managed_id = ledger_of(one.ledger).id
        ledger_id, entry_id = nexts[managed_id]
        after = entry_id + len(one.entries)
        nexts[managed_id] = (ledger_id, after)
        yield tuple(Position(ledger_id, number) for number in range(entry_id, after))

"""Joint appends as the columns of one statement, and the decoding of its results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from txnframework.errors import TxnFrameworkError, VersionMismatch
from txnframework.model import Append, Appended, Applied, Delete, Expect, IndexEntry, Position, Put, Step
from txnframework_sql.postgresql._record_writes import BatchGroup, Parts
from txnframework_sql.steps.joint_appends import holds_one, ledger_of
from txnframework_sql.steps.shared_reads import RecordId, record_id
from txnframework_sql.steps.statements import Change, LedgerChange, RecordChange, key_of, partition_of

Answer = Applied | Exception


class GroupableCall(NamedTuple):
    """One step, and what decides which others it may share a statement with."""

    step: Step
    now_ms: int
    parts: Parts
    held: frozenset[RecordId]
    """The records that no other call of the statement may touch."""
    shared: frozenset[RecordId]
    """The existing records that are only checked."""
    bytes: int

    @classmethod
    def of(cls, step: Step, now_ms: int) -> GroupableCall:
        """Return the call of a valid step."""
        shared = frozenset(record_id(check.key) for check in step.checks if check.expected is not Expect.ABSENT)
        parts = step.keyed()
        known = (record_id(part.key) for part in parts)
        size = sum(len(entry.data) for one in step.appends for entry in one.entries)
        size += sum(len(put.value) for put in step.puts)
        return cls(step, now_ms, parts, frozenset(known) - shared, shared, size)

    def changes(self) -> list[Change]:
        """Return what changes if the call is applied; earlier index entries of its records change, too."""
        written = [part for part in self.step.keyed() if isinstance(part, Put | Delete)]
        return [
            *(LedgerChange(ledger_of(one.ledger).id) for one in self.step.appends),
            *(
                RecordChange(
                    part.key.path, partition_of(part.key), frozenset(part.indexes if isinstance(part, Put) else ())
                )
                for part in written
            ),
        ]


def calls_together(calls: Iterable[GroupableCall], bytes_max: int) -> int:
    """
    Return how many calls from the front one statement takes, at least one.

    No call touches a record of another one, unless both only check it. None puts an entry into a range that a later one
    requires to be vacant.
    """
    held: set[RecordId] = set()
    shared: set[RecordId] = set()
    entries: list[IndexEntry] = []
    size = taken = 0
    for call in calls:
        size += call.bytes
        if taken and (
            size > bytes_max
            or not held.isdisjoint(call.held)
            or not held.isdisjoint(call.shared)
            or not shared.isdisjoint(call.held)
            or holds_one(call.step.vacant, entries)
        ):
            break
        held |= call.held
        shared |= call.shared
        entries += [entry for put in call.step.puts for entry in put.indexes]
        taken += 1
    return taken


class JointGroup:
    """Calls that are sent as one statement; see ``functions/append_jointly.sql``."""

    def __init__(self, calls: Sequence[GroupableCall]) -> None:
        self._calls = calls
        # The calls that have parts with keys, in their order.
        self._stepping = [number for number, call in enumerate(calls) if call.parts]
        self._batches = BatchGroup([calls[number].parts for number in self._stepping])
        # The index ranges that must be vacant, each with the number of its call.
        self._vacant = [(number, one) for number, call in enumerate(calls) for one in call.step.vacant]
        entries: dict[int, list[Append]] = {}
        for call in calls:
            for one in call.step.appends:
                entries.setdefault(ledger_of(one.ledger).id, []).extend(one.entries)
        self._entries = dict(sorted(entries.items()))

    def columns(self, lock_wait_ms: int, limits: tuple[int, int]) -> tuple[object, ...]:
        """Return the arguments of the function, behind those of an application; ``limits``: entries, bytes."""
        ledgers: list[tuple[int, int, int, int]] = []
        datas: list[bytes] = []
        through: list[int] = []
        highest: dict[int, int] = {}
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
            ledgers.append((managed_id, len(entries), size, messages))
        return (
            *self._batches.step_columns(),
            self._batches.key_order(),
            lock_wait_ms,
            *self._batches.index_columns(),
            *([getattr(one, name) for _, one in self._vacant] for name in ("index", "start", "stop")),
            max(call.now_ms for call in self._calls),
            # An empty ledger takes any call, and is full then.
            max(limits[0], 1 + max((one[1] for one in ledgers), default=0)),
            max(limits[1], 1 + max((one[2] for one in ledgers), default=0)),
            *([one[column] for one in ledgers] for column in range(4)),
            datas,
            through,
            list(highest),
            [f"{number:028x}" for number in highest.values()],
        )

    def ledger_changes(self) -> list[Change]:
        """Return the changes of the ledgers."""
        return [LedgerChange(managed_id) for managed_id in self._entries]

    def refusing(self, answer: Iterable[Any]) -> set[int]:
        """Return the ids of the managed ledgers that refused their entries."""
        *_, ledger_ids, _ = answer
        pairs = zip(self._entries, ledger_ids, strict=False)
        return {managed_id for managed_id, ledger_id in pairs if not ledger_id}

    def answers(self, answer: Iterable[Any]) -> tuple[list[Answer | None], list[Change]]:
        """Return the answer of each call, None if it must be sent again, and all changes."""
        _, _, refused, versions, befores, *taken, ledger_ids, entry_ids = answer
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
        nexts = dict(zip(self._entries, zip(ledger_ids, entry_ids, strict=True), strict=True))
        done: list[Answer | None] = []
        for number, call in enumerate(self._calls):
            stored = records.get(number, ())
            assert not isinstance(stored, TxnFrameworkError)
            done.append(Applied(stored, tuple(_appended(call, nexts))))
        return done, [*self.ledger_changes(), *changed]


def _appended(call: GroupableCall, nexts: dict[int, tuple[int, int]]) -> Iterator[tuple[Appended, ...]]:
    """Yield what became of the entries of each ledger, and move its next position behind them."""
    for one in call.step.appends:
        managed_id = ledger_of(one.ledger).id
        ledger_id, entry_id = nexts[managed_id]
        after = entry_id + len(one.entries)
        nexts[managed_id] = (ledger_id, after)
        yield tuple([Appended(Position(ledger_id, number)) for number in range(entry_id, after)])

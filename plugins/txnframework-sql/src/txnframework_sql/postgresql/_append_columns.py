"""Appends as the columns of a statement, which calls one statement takes, and the decoding of its results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from txnframework.model import (
    Append,
    Appended,
    Applied,
    Branch,
    Position,
    ProducerSequence,
    Step,
    TxnID,
)
from txnframework_sql.postgresql._connection import Row
from txnframework_sql.postgresql._intent_columns import IntentColumns
from txnframework_sql.steps.ledgers import LedgerRef
from txnframework_sql.steps.statements import Change, LedgerChange


class AppendCall(NamedTuple):
    """One call of ``append``, or a ``step`` with an intent and these entries."""

    entries: tuple[Append, ...]
    ledger_id: int | None
    now_ms: int
    step: Step | None = None


@dataclass(slots=True, eq=False)
class PendingCall:
    """A running call, and the known positions of its stored entries."""

    call: AppendCall
    future: asyncio.Future[Any]
    found: dict[int, Appended] = field(default_factory=dict)
    """By their number in the call; these entries are not sent again."""
    answer: tuple[Appended, ...] | Applied | Exception | None = None
    must_wait: bool = False
    """The header of its step is locked by another transaction, or cannot be checked by the statement."""

    def answer_if_whole(self) -> None:
        if self.answer is None and len(self.found) == len(self.call.entries):
            self.answer = tuple(self.found[number] for number in range(len(self.call.entries)))


@dataclass(slots=True)
class _Producer:
    """The sequences of one producer in a group, in ascending order."""

    place: int
    lowest: int
    added: int = 0


class AppendGroup:
    """Calls that are sent together, their entries as columns; see ``functions/append_entries.sql``."""

    def __init__(self, pending: Sequence[PendingCall]) -> None:
        self._pending = pending
        calls = [one.call for one in pending]
        self.ledger_id = next((call.ledger_id for call in calls if call.ledger_id is not None), None)
        self.now_ms = max(call.now_ms for call in calls)
        self._entries: list[tuple[PendingCall, int]] = []
        self._ends: list[tuple[int, int]] = []
        self._datas: list[bytes] = []
        self._messages_through: list[int] = []
        self._bytes = self._messages = 0
        self._producers: dict[str, _Producer] = {}
        self._sequences: list[tuple[int, int, int, int, str | None, int | None, int]] = []
        self._numbers: list[tuple[int, int, str]] = []
        for one in pending:
            self._add(one)

    def columns(self) -> tuple[list[Any], ...]:
        """Return the columns for calls, entries, entries with a sequence, producers and transaction numbers."""
        producers = self._producers.values()
        return (
            *_transposed(self._ends, 2),
            self._datas,
            self._messages_through,
            *_transposed(self._sequences, 7),
            list(self._producers),
            [producer.lowest for producer in producers],
            [producer.added for producer in producers],
            *_transposed(self._numbers, 3),
        )

    def record_appended(self, answer: Row) -> None:
        """Record the positions of the first entries, up to the end of the call that filled the ledger."""
        ledger_id, entry_id = answer["ledger_id"], answer["entry_id"]
        for number, (one, entry) in enumerate(self._entries[: answer["entries"]]):
            one.found[entry] = Appended(Position(ledger_id, entry_id + number))
        for one in self._pending:
            one.answer_if_whole()

    def record_copies(self, answer: Sequence[Row]) -> list[PendingCall]:
        """Record which entries are stored already; return the calls that may replace such a copy."""
        replacing: dict[PendingCall, None] = {}
        for row in answer:
            one, number = self._entries[row["at_entry"] - 1]
            entry = one.call.entries[number]
            assert entry.sequence is not None
            copy = _earlier_copy(row, entry.sequence.producer)
            if entry.replaces is not None and entry.replaces.entry == copy.position:
                replacing[one] = None
            else:
                one.found[number] = copy
        for one in self._pending:
            one.answer_if_whole()
        return list(replacing)

    def _add(self, one: PendingCall) -> None:
        highest: dict[int, int] = {}
        for number, entry in enumerate(one.call.entries):
            if number in one.found:
                continue
            self._entries.append((one, number))
            self._bytes += len(entry.data)
            self._messages += entry.messages
            self._datas.append(entry.data)
            self._messages_through.append(self._messages)
            if entry.branch is not None:
                txn_id = entry.branch.txn_id
                highest[txn_id.coordinator] = max(txn_id.number, highest.get(txn_id.coordinator, 0))
            if entry.sequence is not None:
                self._add_sequence(entry.sequence, entry.branch)
        self._ends.append((len(self._entries), self._bytes))
        for coordinator, txn_number in highest.items():
            self._numbers.append((len(self._entries), coordinator, f"{txn_number:028x}"))

    def _add_sequence(self, sequence: ProducerSequence, branch: Branch | None) -> None:
        producer = self._producers.get(sequence.producer)
        if producer is None:
            producer = _Producer(len(self._producers) + 1, sequence.first)
            self._producers[sequence.producer] = producer
        producer.added += sequence.last - sequence.first + 1
        txn, number = (None, None) if branch is None else (str(branch.txn_id), branch.number)
        self._sequences.append(
            (len(self._entries), producer.place, sequence.first, sequence.last, txn, number, producer.added)
        )


class LedgerGroup(NamedTuple):
    """Calls for one managed ledger that are sent together."""

    managed: LedgerRef
    pending: list[PendingCall]


class SharedAppend:
    """
    Groups of several managed ledgers as the columns of one statement; see ``functions/append_to_ledgers.sql``.

    No entry of a call may be known to be stored.
    """

    def __init__(self, groups: Sequence[LedgerGroup]) -> None:
        self._groups = groups
        self.now_ms = 0
        self._ledgers: list[tuple[int, int | None, int, int, int]] = []
        self._entries: list[tuple[int, int, bytes, int]] = []
        self._copies: list[tuple[int, int, int, str, int, int, str | None, int | None, int]] = []
        self._producers: list[tuple[int, str, int, int]] = []
        self._numbers: list[tuple[int, int, str]] = []
        self._intents = IntentColumns()
        self._intent_places: dict[PendingCall, int] = {}
        for place, group in enumerate(groups, 1):
            self._add(place, group)

    def columns(self) -> tuple[tuple[list[Any], ...], tuple[list[Any], ...]]:
        """Return the columns for ledgers, and those for all else that is in the ledgers."""
        ledgers = _transposed(self._ledgers, 5)
        entries, copies = _transposed(self._entries, 4), _transposed(self._copies, 9)
        others = (*entries, *copies, *_transposed(self._producers, 4), *_transposed(self._numbers, 3))
        return ledgers, (*others, self._intents.rows())

    def record(self, answer: Row) -> tuple[list[LedgerGroup], list[Change]]:
        """Answer the calls of the ledgers that were appended to; return the other groups, and all changes."""
        ledger_ids, entry_ids, *intents = answer
        self._intents.answer(*intents)
        left: list[LedgerGroup] = []
        changes: list[Change] = [LedgerChange(group.managed.id) for group in self._groups]
        for group, ledger_id, entry_id in zip(self._groups, ledger_ids, entry_ids, strict=True):
            if not ledger_id:
                self._record_left(group)
                left.append(group)
                continue
            for one in group.pending:
                after = entry_id + len(one.call.entries)
                appended = tuple(Appended(Position(ledger_id, number)) for number in range(entry_id, after))
                entry_id = after
                one.answer = appended
                if one in self._intent_places:
                    place = self._intent_places[one]
                    one.answer = self._intents.written(place, ledger_id, appended)
                    changes.append(self._intents.change(one.answer, place))
        return left, changes

    def _record_left(self, group: LedgerGroup) -> None:
        """Answer the calls whose headers are not as expected, and note those whose headers were not checked."""
        for one in group.pending:
            if one in self._intent_places:
                place = self._intent_places[one]
                one.answer = self._intents.refusal(place)
                one.must_wait = not self._intents.is_header_known(place)

    def _add(self, place: int, group: LedgerGroup) -> None:
        ledger_id: int | None = None
        entries = size = messages = 0
        producers: dict[str, _Producer] = {}
        highest: dict[int, int] = {}
        for one in group.pending:
            call = one.call
            self.now_ms = max(self.now_ms, call.now_ms)
            ledger_id = ledger_id if call.ledger_id is None else call.ledger_id
            if call.step is not None:
                self._intent_places[one] = self._intents.add(place, entries, call.step)
            for entry in call.entries:
                size += len(entry.data)
                messages += entry.messages
                self._entries.append((place, entries, entry.data, messages))
                if entry.branch is not None:
                    txn_id = entry.branch.txn_id
                    highest[txn_id.coordinator] = max(txn_id.number, highest.get(txn_id.coordinator, 0))
                if entry.sequence is not None:
                    self._add_copy(place, entries, entry.sequence, entry.branch, producers)
                entries += 1
        self._ledgers.append((group.managed.id, ledger_id, entries, size, messages))
        self._producers += [(place, name, producer.lowest, producer.added) for name, producer in producers.items()]
        self._numbers += [(place, coordinator, f"{number:028x}") for coordinator, number in highest.items()]

    def _add_copy(
        self, place: int, entry: int, sequence: ProducerSequence, branch: Branch | None, producers: dict[str, _Producer]
    ) -> None:
        name, first, last = sequence.producer, sequence.first, sequence.last
        producer = producers.get(name)
        if producer is None:
            producer = producers[name] = _Producer(len(self._producers) + len(producers) + 1, first)
        producer.added += last - first + 1
        txn, number = (None, None) if branch is None else (str(branch.txn_id), branch.number)
        self._copies.append((place, entry, producer.place, name, first, last, txn, number, producer.added))


def group_size(waiting: Iterable[AppendCall], calls_max: int, bytes_max: int) -> int:
    """
    Return how many calls from the front are sent together; 0: the first call must be decided entry by entry.

    The calls name at most one ledger in total, and the sequences of each producer ascend. So no two entries of a group
    overlap.
    """
    highest: dict[str, int] = {}
    ledger_id: int | None = None
    size = taken = 0
    for call in islice(waiting, calls_max):
        if call.ledger_id is not None and ledger_id not in (None, call.ledger_id):
            break
        size += sum(len(entry.data) for entry in call.entries)
        if (taken and size > bytes_max) or not call.entries or not ascend(call.entries, highest):
            break
        ledger_id = ledger_id if call.ledger_id is None else call.ledger_id
        taken += 1
    return taken


def ascend(entries: Iterable[Append], highest: dict[str, int]) -> bool:
    """Return whether the sequences of each producer ascend from its ``highest`` one, and update ``highest``."""
    for entry in entries:
        sequence = entry.sequence
        if sequence is not None:
            if not highest.get(sequence.producer, sequence.first - 1) < sequence.first <= sequence.last:
                return False
            highest[sequence.producer] = sequence.last
    return True


def _earlier_copy(row: Row, producer: str) -> Appended:
    txn = row["copy_txn"]
    branch = None if txn is None else Branch(TxnID.parse(txn), row["copy_branch"])
    sequence = ProducerSequence(producer, row["copy_first"], row["copy_last"])
    return Appended(Position(row["ledger_id"], row["entry_id"]), True, branch, sequence)


def _transposed(rows: Sequence[tuple[Any, ...]], width: int) -> tuple[list[Any], ...]:
    """Return the columns of rows."""
    return tuple(list(column) for column in zip(*rows, strict=True)) if rows else tuple([] for _ in range(width))

"""Appends to managed ledgers: waiting calls are sent together, as one statement that is one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from txnframework.errors import (
    Closed,
    InvalidInput,
    LedgerClosed,
    LedgerNotFound,
    LedgerSealed,
    OutcomeUnknown,
    TxnFrameworkError,
)
from txnframework.model import Append, Appended, Branch, Position, ProducerSequence, TxnID
from txnframework_sql._database import EntrySteps, copy_error
from txnframework_sql._options import LedgerOptions
from txnframework_sql.postgresql._call_groups import CallGroups
from txnframework_sql.postgresql._connection import Row
from txnframework_sql.postgresql._executor import PostgresqlExecutor
from txnframework_sql.postgresql._payloads import payloads
from txnframework_sql.postgresql._schema import APPEND_ENTRIES
from txnframework_sql.steps.ledgers import LedgerRef
from txnframework_sql.steps.statements import LedgerChange

# How often a producer's old copies are looked for while it fills its window once: each search costs as much as an
# append.
_LOOKS_A_WINDOW = 16


class AppendCall(NamedTuple):
    """One call of ``append``."""

    entries: tuple[Append, ...]
    ledger_id: int | None
    now_ms: int


@dataclass(slots=True, eq=False)
class _PendingCall:
    """A running call, and the known positions of its stored entries."""

    call: AppendCall
    found: dict[int, Appended] = field(default_factory=dict)
    """By their number in the call; these entries are not sent again."""
    answer: tuple[Appended, ...] | Exception | None = None

    def answer_if_whole(self) -> None:
        if self.answer is None and len(self.found) == len(self.call.entries):
            self.answer = tuple(self.found[number] for number in range(len(self.call.entries)))


class Appends:
    """
    The appends of one store to its ledgers.

    Each managed ledger has one group in progress, and calls made meanwhile form the next group. Calls are therefore
    appended in the order in which they were made. A caller that sends without waiting costs no more statements than a
    caller that waits.
    """

    def __init__(self, executor: PostgresqlExecutor, steps: EntrySteps, options: LedgerOptions) -> None:
        self._executor = executor
        self._pool = executor.pool
        self._steps = steps
        self._options = options
        self._slots = asyncio.Semaphore(options.queue_max)
        # By managed ledger id, for the ledgers with appends in progress.
        self._groups: dict[int, CallGroups[AppendCall, tuple[Appended, ...]]] = {}
        self._is_closed = False

    async def append(self, managed: LedgerRef, call: AppendCall) -> tuple[Appended, ...]:
        """Append durably, in order, adjacent; see IManagedLedger."""
        self._require_open()
        async with self._slots:
            self._require_open()
            groups = self._groups.setdefault(managed.id, self._new_groups(managed))
            try:
                return await groups.submit(call)
            finally:
                if groups.is_idle:
                    self._groups.pop(managed.id, None)

    async def close(self) -> None:
        """
        Wait for the running appends, which return their results normally.

        Idempotent.
        """
        self._is_closed = True
        await asyncio.gather(*(groups.close() for groups in tuple(self._groups.values())))

    def _require_open(self) -> None:
        self._executor.require_open()
        if self._is_closed:
            raise Closed(f"the store {self._executor.shown_url} was closed")

    def _new_groups(self, managed: LedgerRef) -> CallGroups[AppendCall, tuple[Appended, ...]]:
        options = self._options
        return CallGroups(
            partial(self._perform, managed),
            queue_max=options.queue_max,
            group_max=options.group_max,
            under_way_max=1,
            take=lambda waiting: max(1, group_size(waiting, options.group_max, options.group_bytes_max)),
        )

    async def _perform(self, managed: LedgerRef, calls: Sequence[AppendCall]) -> list[tuple[Appended, ...] | Exception]:
        pending = [_PendingCall(call) for call in calls]
        async with self._pool.append_slots:
            if len(calls) > 1 or group_size(calls, 1, self._options.group_bytes_max):
                await self._send_until_answered(managed, pending)
            else:
                await self._send_alone(managed, pending[0])
        return [one.answer for one in pending if one.answer is not None]

    async def _send_until_answered(self, managed: LedgerRef, pending: Sequence[_PendingCall]) -> None:
        """Send calls as one statement, and resend the unanswered ones until all are answered."""
        try:
            while pending := [one for one in pending if one.answer is None]:
                await self._send_group(managed, pending)
        except Exception as error:  # The callers receive it.
            if isinstance(error, InvalidInput) and len(pending) > 1:
                # Nothing was stored, because the database rejected a value. Sending the calls one by one shows which
                # call holds it.
                for one in pending:
                    await self._send_until_answered(managed, [one])
            else:
                # It was one statement, so its outcome applies to each call.
                for one in pending:
                    one.answer = copy_error(error, error.__cause__) if isinstance(error, TxnFrameworkError) else error

    async def _send_group(self, managed: LedgerRef, pending: Sequence[_PendingCall]) -> None:
        """Send calls as one statement; at least one call is answered then, and the others are to be sent again."""
        group = AppendGroup(pending)
        arguments = (
            managed.id,
            group.ledger_id,
            group.now_ms,
            self._options.ledger_entries_max,
            self._options.ledger_bytes_max,
            self._options.deduplication_window_sequences,
            max(1, self._options.deduplication_window_sequences // _LOOKS_A_WINDOW),
            *group.columns(),
            self._pool.channel,
            *payloads((LedgerChange(managed.id),)),
        )
        try:
            rows = await self._pool.run(lambda connection: connection.write(APPEND_ENTRIES.call, *arguments))
        except OutcomeUnknown:
            self._executor.changed((LedgerChange(managed.id),))
            raise
        match rows[0]["answer"]:
            case "appended":
                self._executor.changed((LedgerChange(managed.id),))
                group.record_appended(rows[0])
            case "copies":
                for one in group.record_copies(rows):
                    await self._send_alone(managed, one)
            case "closed":
                for one in pending:
                    if one.call.ledger_id is not None:
                        one.answer = LedgerClosed(managed.name, group.ledger_id or 0)
            case "sealed":
                for one in pending:
                    one.answer = LedgerSealed(managed.name)
            case _:
                for one in pending:
                    one.answer = LedgerNotFound(managed.name)

    async def _send_alone(self, managed: LedgerRef, one: _PendingCall) -> None:
        """Append entry by entry, in a transaction, for calls that replace a copy or have sequences out of order."""
        call = one.call
        try:
            one.answer = await self._steps.append(managed, call.entries, call.ledger_id, call.now_ms)
        except Exception as error:  # The caller receives it.
            one.answer = error


@dataclass(slots=True)
class _Producer:
    """The sequences of one producer in a group, in ascending order."""

    place: int
    lowest: int
    added: int = 0


class AppendGroup:
    """Calls that are sent together, their entries as columns; see ``functions/append_entries.sql``."""

    def __init__(self, pending: Sequence[_PendingCall]) -> None:
        self._pending = pending
        calls = [one.call for one in pending]
        self.ledger_id = next((call.ledger_id for call in calls if call.ledger_id is not None), None)
        self.now_ms = max(call.now_ms for call in calls)
        self._entries: list[tuple[_PendingCall, int]] = []
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

    def record_copies(self, answer: Sequence[Row]) -> list[_PendingCall]:
        """Record which entries are stored already; return the calls that may replace such a copy."""
        replacing: dict[_PendingCall, None] = {}
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

    def _add(self, one: _PendingCall) -> None:
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
        if (taken and size > bytes_max) or not call.entries or not _ascend(call.entries, highest):
            break
        ledger_id = ledger_id if call.ledger_id is None else call.ledger_id
        taken += 1
    return taken


def _ascend(entries: Iterable[Append], highest: dict[str, int]) -> bool:
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
